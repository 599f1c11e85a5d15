"""A change is applied completely or not at all, and only if its diff was shown."""

from __future__ import annotations

import difflib
import os
import threading
from pathlib import Path

import pytest

from gpubox.agent import edits
from gpubox.agent.workspace import Workspace
from gpubox.errors import GpuboxError

ON = threading.Event()


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    return Workspace(tmp_path)


def apply(work: Workspace, change: edits.FileChange) -> None:
    edits.apply_change(work, change, ON)


def names(work: Workspace) -> list[str]:
    return sorted(path.name for path in work.root.rglob("*"))


def test_a_new_file_in_a_new_folder(work: Workspace) -> None:
    change = edits.plan_write(work, "src/new.py", "x = 1\n")
    assert change.diff == "--- (new file)\n+++ src/new.py\n@@ -1,0 +1,1 @@\n+x = 1\n"
    assert names(work) == ["a.txt"]

    apply(work, change)

    assert (work.root / "src/new.py").read_text() == "x = 1\n"
    assert names(work) == ["a.txt", "new.py", "src"]


def test_an_edit_shows_what_changes_and_keeps_the_rest(work: Workspace) -> None:
    (work.root / "a.txt").chmod(0o750)
    change = edits.plan_edit(work, "a.txt", [("two", "2")])
    assert change.diff == "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"

    apply(work, change)

    assert (work.root / "a.txt").read_text() == "one\n2\nthree\n"
    assert (work.root / "a.txt").stat().st_mode & 0o777 == 0o750


def test_a_diff_numbers_the_lines_of_the_whole_file(work: Workspace) -> None:
    old = [f"line {number}" for number in range(300)]
    new = [*old[:200], "changed", *old[201:250], *old[252:]]
    (work.root / "a.txt").write_text("\n".join(old) + "\n")

    diff = edits.plan_write(work, "a.txt", "\n".join(new) + "\n").diff

    expected = difflib.unified_diff(old, new, "a.txt", "a.txt", lineterm="", n=3)
    assert diff.splitlines() == list(expected)


@pytest.mark.parametrize(
    ("old", "problem"), [("four", "is not in the file"), ("e", "is in the file 3 times"), ("", "is empty")]
)
def test_an_ambiguous_edit_is_refused(work: Workspace, old: str, problem: str) -> None:
    with pytest.raises(GpuboxError, match=problem):
        edits.plan_edit(work, "a.txt", [(old, "x")])


def test_line_endings_are_kept_and_other_encodings_refused(work: Workspace) -> None:
    (work.root / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (work.root / "latin.txt").write_bytes(b"caf\xe9\n")

    apply(work, edits.plan_edit(work, "dos.txt", [("one\ntwo", "1\n2")]))

    assert (work.root / "dos.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"
    with pytest.raises(GpuboxError, match="not UTF-8"):
        edits.plan_edit(work, "latin.txt", [("caf", "x")])


def test_a_file_that_changed_after_the_diff_is_not_written(work: Workspace) -> None:
    change = edits.plan_edit(work, "a.txt", [("two", "2")])
    creation = edits.plan_write(work, "new.txt", "mine\n")
    (work.root / "a.txt").write_text("the owner was here\n")
    (work.root / "new.txt").write_text("so were others\n")

    for planned in (change, creation):
        with pytest.raises(GpuboxError, match="has changed since"):
            apply(work, planned)

    assert (work.root / "a.txt").read_text() == "the owner was here\n"
    assert (work.root / "new.txt").read_text() == "so were others\n"
    (work.root / "a.txt").unlink()
    with pytest.raises(GpuboxError, match="no longer exists"):
        apply(work, change)
    assert names(work) == ["new.txt"]


def test_a_hard_link_to_a_file_outside_is_replaced(work: Workspace, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "file"
    outside.write_text("old\n")
    os.link(outside, work.root / "linked")

    apply(work, edits.plan_write(work, "linked", "new\n"))

    assert outside.read_text() == "old\n"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GpuboxError, match="No space left"):
        apply(work, edits.plan_write(work, "a.txt", "new\n"))

    assert (work.root / "a.txt").read_text().startswith("one")
    assert names(work) == ["a.txt"]


def test_a_stopped_write_writes_nothing(work: Workspace) -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(GpuboxError, match="stopped"):
        edits.apply_change(work, edits.plan_write(work, "a.txt", "new\n"), stop)

    assert (work.root / "a.txt").read_text().startswith("one")
    assert names(work) == ["a.txt"]


@pytest.mark.parametrize(
    "path", [".git/hooks/pre-commit", "sub/.GIT/config", "a/.g\u200cit", "git~1/config", ".hg/hgrc", "sub/", "."]
)
def test_repository_files_are_never_written(work: Workspace, path: str) -> None:
    with pytest.raises(GpuboxError):
        edits.plan_write(work, path, "x")


@pytest.mark.parametrize("last", ["HEAD", "objects/a", "refs/a", "config"])
def test_a_folder_is_not_made_a_repository_piece_by_piece(work: Workspace, last: str) -> None:
    folder = work.root / "notes"
    folder.mkdir()
    for name in {"HEAD", "objects", "refs"} - ({last.partition("/")[0]} - {"config"}):
        (folder / name).mkdir()

    with pytest.raises(GpuboxError, match="repository"):
        edits.plan_write(work, f"notes/{last}", "x")
    edits.plan_write(work, "other/HEAD", "x")


def test_a_read_only_file_is_not_replaced(work: Workspace) -> None:
    (work.root / "a.txt").chmod(0o444)

    with pytest.raises(GpuboxError, match="read-only"):
        apply(work, edits.plan_write(work, "a.txt", "new\n"))


def test_line_endings_are_visible_in_a_diff(work: Workspace) -> None:
    assert edits.plan_write(work, "a.txt", "one\ntwo\nthree\n").diff == ""
    assert "\\ No newline at end of file" in edits.plan_write(work, "a.txt", "one\ntwo\nthree").diff
    assert "+one\u240d\n" in edits.plan_write(work, "a.txt", "one\r\ntwo\nthree\n").diff


def test_a_long_diff_is_shown_by_head_and_tail_and_says_so(work: Workspace) -> None:
    content = "".join(f"line {number}\n" for number in range(5000))
    shown = edits.shorten_diff(edits.plan_write(work, "new.txt", content).diff).splitlines()

    assert len(shown) == edits.MAX_DIFF_LINES + 1
    assert shown[3] == "+line 0"
    assert shown[-1] == "+line 4999"
    assert shown[edits.MAX_DIFF_LINES // 2] == "@@ 4603 of 5003 lines of this diff are NOT SHOWN @@"


def test_a_diff_of_long_lines_is_bounded_too() -> None:
    long_line = edits.shorten_diff("+" + "x" * 1_000_000)
    many_lines = edits.shorten_diff("\n".join("+" + "x" * 3000 for _ in range(100)))

    assert len(long_line) < 2200
    assert "998001 characters NOT SHOWN" in long_line
    assert len(many_lines) < edits.MAX_DIFF_CHARACTERS + 200
    assert "of 100 lines of this diff are NOT SHOWN" in many_lines


def test_a_rewrite_of_a_large_file_is_planned_at_once(work: Workspace) -> None:
    (work.root / "big").write_text("".join(f"a {number % 7}\n" for number in range(60_000)))

    change = edits.plan_write(work, "big", "".join(f"b {number % 5}\n" for number in range(60_000)))

    assert change.diff.count("\n") == 120_003
