"""Differences of lines: hunks that can be made one by one, byte for byte, in bounded time."""

from __future__ import annotations

import random
import time

import pytest

from gpubox.line_diff import line_diff


def some_content(chance: random.Random, lines: int) -> list[bytes]:
    return [bytes([97 + chance.randrange(4)]) + chance.choice([b"\n", b"\r\n", b"\xff\n"]) for _ in range(lines)]


@pytest.mark.parametrize("seed", range(200))
def test_all_hunks_give_the_new_content_none_the_old_and_some_leave_the_others(seed: int) -> None:
    chance = random.Random(seed)
    old = some_content(chance, chance.randrange(60))
    new = list(old)
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(new) + 1)
        new[at : at + chance.randrange(3)] = some_content(chance, chance.randrange(3))
    before, after = (b"".join(lines)[: -1 if chance.random() < 0.3 else None] for lines in (old, new))
    diff = line_diff(before, after)
    numbers = range(len(diff.hunks))
    assert diff.compose(()) == before and diff.compose(numbers) == after
    for number in numbers:
        rest = line_diff(diff.compose({number}), after)
        assert rest.compose(range(len(rest.hunks))) == after


def test_hunks_are_as_git_shows_them() -> None:
    lines = [b"%d\n" % number for number in range(30)]
    diff = line_diff(b"".join(lines), b"".join([*lines[:4], b"new\r\n", *lines[4:27], b"28"]))
    assert [diff.header(hunk) for hunk in (0, 1)] == ["@@ -2,6 +2,7 @@", "@@ -25,6 +26,4 @@"]
    assert diff.lines(0) == [" 1", " 2", " 3", "+new\u240d", " 4", " 5", " 6"]
    assert diff.lines(1)[-1] == "+28\n\\ No newline at end of file"
    assert (diff.counts(), line_diff(b"", b"x\n").header(0)) == ((2, 3), "@@ -0,0 +1,1 @@")


@pytest.mark.parametrize("kinds", [1, 40, 700, 100_000])
def test_large_and_hostile_contents_take_no_seconds(kinds: int) -> None:
    chance = random.Random(kinds)
    before, after = (b"".join(b"%d\n" % chance.randrange(kinds) for _ in range(60_000)) for _ in range(2))
    began = time.process_time()
    diff = line_diff(before, after)
    assert diff.compose(range(len(diff.hunks))) == after
    assert time.process_time() - began < 5
