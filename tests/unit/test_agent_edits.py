"""What an edit or a write would make of a file, and the diff that shows it."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from gpubox.agent import edits
from gpubox.agent.workspace import Workspace
from gpubox.errors import GpuboxError
from tests.unit.hand_layers import layered


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    return layered(folder, tmp_path / "layers")


def test_a_new_file_and_an_edit_are_shown(work: Workspace) -> None:
    change = edits.plan_write(work, "src/new.py", "x = 1\n")
    assert change.diff == "--- /dev/null\n+++ src/new.py\n@@ -0,0 +1,1 @@\n+x = 1\n"
    change = edits.plan_edit(work, "a.txt", [("two", "2")])
    assert change.diff == "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"


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
