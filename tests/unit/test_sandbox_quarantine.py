"""Auto-run files by name and by place, and what a program wrote by the kernel's clock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.sandbox import disk_usage
from gpubox.sandbox.auto_run_files import auto_run_kind, find_auto_run_files, is_bare_repository, move_out
from gpubox.sandbox.disk_usage import DiskMonitor, recent_changes, remove_tree
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.quarantine import Quarantine


@pytest.fixture(autouse=True)
def _removed(tmp_path: Path) -> Iterator[None]:
    """What is moved to a quarantine is closed to its owner: pytest could not remove it."""
    yield
    remove_tree(tmp_path)


NEVER = [
    "git",
    ".gitignore",
    ".gitattributes",
    ".github",
    ".env",
    "Makefile",
    "conftest.py",
    "src",
    "x.git",
    "AGENTS.md",
]


@pytest.mark.parametrize(
    "name", [".git", ".GIT", ".Git.", ".git ", "GIT~1", ".g\u200cit", ".git:x", ".ENVRC", ".vscode"]
)
def test_a_name_is_known_as_any_file_system_reads_it(name: str) -> None:
    assert auto_run_kind(name)


@pytest.mark.parametrize("name", NEVER)
def test_other_names_are_left_alone(name: str) -> None:
    assert auto_run_kind(name) == ""


@pytest.mark.parametrize(
    ("names", "whole"),
    [
        (["HEAD", "objects", "refs"], True),
        (["head", "OBJECTS", "Refs", "src"], True),
        (["HEAD", "commondir"], True),
        (["HEAD", "objects"], False),
        (["objects", "refs", "config", "hooks"], False),
    ],
)
def test_a_bare_repository_by_its_entries(names: list[str], whole: bool) -> None:
    assert is_bare_repository(names) is whole


def test_the_owners_own_is_known_wherever_it_is_moved(tmp_path: Path) -> None:
    work, place = tmp_path / "work", tmp_path / "place"
    (work / "a/.git").mkdir(parents=True)
    known = {file.identity for file in find_auto_run_files(work)}
    (work / "a").rename(work / "b")
    (work / "a/.git").mkdir(parents=True)

    moved, left = move_out(work, known, place)

    assert left == []
    assert [str(file) for file in moved] == ["a/.git (a repository)"]
    assert (work / "b/.git").exists() and not (work / "a/.git").exists()
    assert "a/.git" in next(place.glob("*/from.txt")).read_text()


def test_a_file_of_the_owners_that_becomes_part_of_a_repository_stays(tmp_path: Path) -> None:
    work, place = tmp_path / "work", tmp_path / "place"
    work.mkdir()
    (work / "HEAD").write_text("mine")
    (work / "config").write_text("mine")
    known = {file.identity for file in find_auto_run_files(work)}
    (work / "objects").mkdir()
    (work / "refs").mkdir()

    move_out(work, known, place)

    assert sorted(path.name for path in work.iterdir()) == ["HEAD", "config"]


def test_a_change_of_an_unprotected_file_is_reported(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / ".git/hooks").mkdir(parents=True)
    (work / ".git/objects").mkdir()
    quarantine = Quarantine.begin(work, can_protect=False, folder=tmp_path / "place")
    (work / ".git/objects/a").write_text("x")
    (work / ".git/index").write_text("x")
    quarantine.finish()
    assert quarantine.left == []

    quarantine = Quarantine.begin(work, can_protect=False, folder=tmp_path / "place")
    (work / ".git/hooks/pre-commit").write_text("x")
    quarantine.finish()
    assert [file.path for file in quarantine.left] == [".git"]


def test_recent_changes_go_by_the_kernels_clock(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x" * 10_000)
    time.sleep(0.05)  # the clock of file times ticks every 4 ms
    since = time.time_ns() - 20_000_000
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/new").write_text("x" * 10_000)
    os.utime(tmp_path / "node_modules/new", (1, 1))

    changes = recent_changes(tmp_path, since, 100, {})

    assert (changes.entries, changes.too_deep) == (2, False)
    assert 0 < changes.size_bytes < 20_000


def test_a_folder_deeper_than_any_path_is_reported_and_removed(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    fd = os.open(deep, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("dd", dir_fd=fd)
        inner = os.open("dd", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)

    changes = recent_changes(deep, 0, 100_000, {})
    remove_tree(deep)

    assert changes.too_deep
    assert not deep.exists()


def test_files_without_a_name_count_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = DiskMonitor(Policy(workspace=tmp_path, disk_bytes=1000), None, {})
    free_bytes, free_files, counts = disk_usage._free(tmp_path)
    monkeypatch.setattr(disk_usage, "_free", lambda folder: (free_bytes - 10**9, free_files, counts))

    assert monitor.exceeded_limit([]) == ""  # another program filled the disk
    monkeypatch.setattr(disk_usage, "written_bytes", lambda pids: 2000)
    monitor._next_check = 0.0
    assert monitor.exceeded_limit([1]).startswith("disk: more than")
