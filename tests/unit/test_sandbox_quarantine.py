"""Auto-run files by name and by place, and what a program wrote by the kernel's clock."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.errors import GpuboxError
from gpubox.sandbox import auto_run_files, workspace_scan
from gpubox.sandbox.auto_run_files import auto_run_kind, is_bare_repository
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.quarantine import Quarantine
from gpubox.sandbox.workspace_scan import DiskMonitor, recent_changes, remove_tree


@pytest.fixture(autouse=True)
def _removed(tmp_path: Path) -> Iterator[None]:
    """What is moved to a quarantine is closed to its owner: pytest could not remove it."""
    yield
    remove_tree(tmp_path)


NEVER = [
    "git", ".gitignore", ".keep", ".pytest_cache", ".notes.txt.swp", "Makefile", "conftest.py", "src",
    "x.git", "README.md", "model.pth", "env",
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        ".git", ".GIT", ".Git.", ".git ", "GIT~1", ".g\u200cit", ".git:x", ".ENVRC", ".vscode",
        ".env", ".kiro", ".a-tool-of-tomorrow", ".gitattributes", "AGENTS.md", "Lefthook.yaml", "a.code-workspace",
        "node_modules", "venv", "sitecustomize.so",
    ],
)  # fmt: skip
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


def begin(work: Path, *, can_protect: bool = True) -> Quarantine:
    return Quarantine.begin(work, can_protect=can_protect, folder=work.parent / "place")


def test_a_file_of_the_owners_that_becomes_part_of_a_repository_stays(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "HEAD").write_text("mine")
    (work / "config").write_text("mine")
    running = begin(work)
    (work / "objects").mkdir()
    (work / "refs").mkdir()

    running.finish()

    assert sorted(path.name for path in work.iterdir()) == ["HEAD", "config"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("config", ".git"), ("src/hooks", ".vscode"), ("info", ".envrc"), ("objects", ".hidden"), ("x", "HEAD")],
)
def test_a_name_is_new_though_the_inode_is_not(old: str, new: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / old).mkdir(parents=True)
    for name in ("objects", "refs") if new == "HEAD" else ():
        (work / name).mkdir()
    running = begin(work)
    (work / old).rename(work / new)

    running.finish()

    assert not (work / new).exists()
    assert new in [file.path for file in running.moved]


def test_an_inode_that_was_used_before_is_not_known(tmp_path: Path) -> None:
    """A file system gives the number of a removed file to the next one."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "config").write_text("mine")
    running = begin(work)
    (work / "config").unlink()
    (work / ".git").write_text("gitdir: ../x")

    running.finish()

    assert [file.path for file in running.moved] == [".git"]
    assert running.changed == ("config (removed)",)


def test_modes_are_put_back_before_anything_is_looked_for(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub/deep").mkdir(parents=True)
    work.chmod(0o750)
    (work / "sub").chmod(0o555)
    running = begin(work)
    assert (work / "sub").stat().st_mode & 0o777 == 0o555
    (work / "sub").chmod(0o755)
    (work / "sub/deep/.git").mkdir()
    for path, mode in ((work / "sub/deep", 0o300), (work / "sub", 0o100), (work, 0o311)):
        path.chmod(mode)

    running.finish()

    assert [file.path for file in running.moved] == ["sub/deep/.git"]
    assert (work.stat().st_mode & 0o777, (work / "sub").stat().st_mode & 0o777) == (0o750, 0o555)
    assert set(running.changed) == {"./", "sub/", "sub/deep/"}


def test_what_cannot_be_read_or_moved_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    (work / "shut").mkdir(parents=True)
    running = begin(work)
    (work / ".git").mkdir()
    enter = auto_run_files._enter

    def refused(fd: int | None, name: str, path: str) -> auto_run_files._Folder:
        if name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied")
        return enter(fd, name, path)

    def immovable(*arguments: object, **more: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(auto_run_files, "_enter", refused)
    monkeypatch.setattr(os, "rename", immovable)
    running.finish()

    assert running.unchecked == ("shut cannot be read", ".git (a repository) cannot be moved out")
    assert [file.path for file in running.left] == [".git"]
    monkeypatch.setattr(auto_run_files, "_enter", immovable)
    with pytest.raises(GpuboxError, match="cannot be read"):
        begin(work)


def test_bytecode_that_changed_or_is_new_is_removed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "__pycache__").mkdir(parents=True)
    for name in ("same", "changed", "was"):
        (work / f"__pycache__/{name}.cpython-311.pyc").write_bytes(b"header and code")
    running = begin(work)
    (work / "__pycache__/changed.cpython-311.pyc").write_bytes(b"header and evil")
    os.utime(work / "__pycache__/changed.cpython-311.pyc", (1, 1))
    (work / "__pycache__/was.cpython-311.pyc").rename(work / "__pycache__/is.cpython-311.pyc")
    (work / "plain.pyc").write_bytes(b"evil")

    running.finish()

    assert [path.name for path in (work / "__pycache__").iterdir()] == ["same.cpython-311.pyc"]
    assert not (work / "plain.pyc").exists()
    assert running.changed == ("__pycache__/was.cpython-311.pyc (removed)",)


@pytest.mark.parametrize(
    "new", ["mine/__init__.py", "mine.cpython-311-x86_64-linux-gnu.so", "json.py", "json/__init__.py", "sub/own.so"]
)
def test_what_would_be_imported_instead_is_moved(new: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "mine.py").touch()
    (work / "sub/own.py").touch()
    (work / "calendar.py").touch()
    running = begin(work)
    (work / new).parent.mkdir(exist_ok=True)
    (work / new).touch()
    for name in ("mine/data.csv", "sub/json.py", "sub/lib.so", "test.py", "calendar.py"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("x")

    running.finish()

    assert [file.path for file in running.moved] == [new]


def test_every_change_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    (work / "gone/deep").mkdir(parents=True)
    for name in ("same", "changed", "touched", "mode", "gone/deep/x"):
        (work / name).write_text("1")
    running = begin(work)
    (work / "changed").write_text("2")
    os.utime(work / "touched", (1, 1))
    (work / "mode").chmod(0o700)
    (work / "link").symlink_to("/etc")
    (work / "empty/er").mkdir(parents=True)
    (work / "full").mkdir()
    (work / "full/x").touch()
    (work / "gone/deep/x").unlink()
    (work / "gone/deep").rmdir()
    (work / "gone").rmdir()

    running.finish()

    assert " ".join(running.changed) == "changed empty/er/ full/x gone (removed) link mode touched"
    monkeypatch.setattr(workspace_scan, "MAX_LISTED", 2)
    running.finish()
    assert " ".join(running.changed) == "changed gone (removed) ./ (3 more) empty/ (1 more) full/ (1 more)"


def test_more_files_than_are_compared_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for number in range(20):
        (work / str(number)).touch()
        os.utime(work / str(number), (1, 1))
    monkeypatch.setattr(workspace_scan, "MAX_ENTRIES", 10)
    time.sleep(0.05)  # file times come from a clock that ticks every few milliseconds
    running = begin(work)
    (work / ".git").mkdir()
    (work / "a").mkdir()

    running.finish()

    assert "Only the first" in running.notes[0]
    assert [file.path for file in running.moved] == [".git"]
    assert running.changed == ("a/",)


def test_files_with_names_outside_have_a_read_only_folder(tmp_path: Path) -> None:
    work, store = tmp_path / "work", tmp_path / "store"
    (work / "lib/pkg").mkdir(parents=True)
    store.mkdir()
    for name in ("lib/pkg/a.js", "top.js"):
        (store / Path(name).name).write_text("shared")
        os.link(store / Path(name).name, work / name)
    (work / "one").touch()
    os.link(work / "one", work / "two")

    running = begin(work)
    running.finish()

    assert [file.path for file in running.protected] == ["lib/pkg", "top.js"]
    assert "lib/pkg, top.js: read-only" in running.notes[0]


def test_too_many_to_protect_one_by_one_are_protected_with_their_folder(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for number in range(300):
        (work / f"vendor/a/{number}").mkdir(parents=True)
        (work / f"vendor/a/{number}/.travis.yml").touch()
    (work / "vendor/.x").mkdir(parents=True)
    (work / "env").mkdir()
    (work / "env/pyvenv.cfg").touch()

    running = begin(work)
    running.finish()

    assert [file.path for file in running.protected] == ["env", "vendor/.x", "vendor/a"]
    assert running.notes[0].startswith("vendor/a: read-only")


def test_a_change_of_an_unprotected_file_is_reported(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / ".git/hooks").mkdir(parents=True)
    (work / ".git/objects").mkdir()
    running = begin(work, can_protect=False)
    (work / ".git/objects/a").write_text("x")
    (work / ".git/index").write_text("x")
    running.finish()
    assert (running.left, running.changed) == ([], (".git/index", ".git/objects/a"))

    running = begin(work, can_protect=False)
    (work / ".git/hooks/pre-commit").write_text("x")
    running.finish()
    assert [file.path for file in running.left] == [".git"]


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
    free_bytes, free_files, counts = workspace_scan._free(tmp_path)
    monkeypatch.setattr(workspace_scan, "_free", lambda folder: (free_bytes - 10**9, free_files, counts))

    assert monitor.exceeded_limit([]) == ""  # another program filled the disk
    monkeypatch.setattr(workspace_scan, "written_bytes", lambda pids: 2000)
    monitor._next_check = 0.0
    assert monitor.exceeded_limit([1]).startswith("disk: more than")


def test_a_program_that_installs_packages_can_end(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    running = begin(work)
    for name in ("node_modules", "venv", ".cache", "sub/.git"):
        (work / name).mkdir(parents=True)

    running.sweep()
    assert [file.path for file in running.moved] == ["sub/.git"]
    running.finish()
    assert {path.name for path in work.iterdir()} == {"sub"}


def test_a_folder_that_only_looked_like_a_part_of_a_repository_is_compared(tmp_path: Path) -> None:
    """Once the new parts are moved out, the owner's ``hooks`` is a folder like any other."""
    work = tmp_path / "work"
    (work / "src/hooks").mkdir(parents=True)
    (work / "src/hooks/same").touch()
    running = begin(work)
    for name in ("HEAD", "objects", "refs"):
        (work / "src" / name).mkdir()
    (work / "src/hooks/new").touch()
    (work / "src/hooks/.envrc").touch()

    running.finish()

    assert running.changed == ("src/hooks/new",)
    assert {file.path for file in running.moved} >= {"src/HEAD", "src/hooks/.envrc"}


def test_an_auto_run_file_has_no_other_name_that_can_be_written(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    (work / "docs/rules.txt").touch()
    os.link(work / "docs/rules.txt", work / "AGENTS.md")

    running = begin(work)
    running.finish()

    assert [file.path for file in running.protected] == ["AGENTS.md", "docs"]


def test_what_an_auto_run_link_leads_to_is_read_only_and_stays(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    (work / "docs/rules.txt").touch()
    (work / "AGENTS.md").symlink_to("docs/rules.txt")
    (work / "CLAUDE.md").symlink_to("AGENTS.md")
    (work / ".gone").symlink_to("nowhere")
    (work / ".self").symlink_to(".")
    (work / ".away").symlink_to("/etc/hostname")

    running = begin(work)
    assert [file.path for file in running.protected if file.path[0] != "."] == [
        "AGENTS.md",
        "CLAUDE.md",
        "docs/rules.txt",
    ]
    (work / "docs").rename(work / "old")
    (work / "docs").mkdir()
    (work / "docs/rules.txt").touch()
    running.finish()

    assert sorted(file.path for file in running.moved) == ["AGENTS.md", "CLAUDE.md"]


def test_files_beyond_what_is_compared_are_said_also_if_the_program_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, store = tmp_path / "work", tmp_path / "store"
    work.mkdir()
    store.touch()
    for number in range(9):
        (work / str(number)).touch()
    monkeypatch.setattr(workspace_scan, "MAX_ENTRIES", 10)
    running = begin(work)
    for number in range(9):
        (work / f"new{number}").touch()
    running.finish()
    assert "Only the first" in running.notes[0]

    for number in range(40):
        os.link(store, work / f"shared{number}")
    assert len(begin(work).protected) == 40


def test_an_old_extension_module_that_a_renamed_folder_brings_is_moved(tmp_path: Path) -> None:
    """Its own times say that nothing changed it."""
    work = tmp_path / "work"
    for name in ("pkg/mine.py", "other/mine.so", "data/x.pyc"):
        (work / name).parent.mkdir(parents=True)
        (work / name).touch()
    time.sleep(0.05)  # file times come from a clock that ticks every few milliseconds
    running = begin(work)
    (work / "pkg").rename(work / "old")
    (work / "other").rename(work / "pkg")
    (work / "pkg/mine.py").touch()
    (work / "data").rename(work / "pkg/__pycache__")
    running.finish()

    assert [file.path for file in running.moved] == ["pkg/mine.so", "pkg/__pycache__/x.pyc"]
