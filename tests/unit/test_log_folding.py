"""Folding a log: repeated lines are counted, and no other line is left out."""

from __future__ import annotations

import random

from gpubox.server.log import FOLD_WINDOW, RepeatFold, fold_repeats, parse_line, repeats_line

IDLE = "{n}.00.000.000 I srv  update_slots: all slots are idle"


def idle(count: int) -> list[str]:
    return [IDLE.format(n=n) for n in range(count)]


def test_an_idle_server_is_one_line_and_a_count() -> None:
    assert list(fold_repeats([*idle(48), "9.00.000.000 I slot launch_slot_: id 0", *idle(2)])) == [
        idle(1)[0], "… 47 more lines like this", "9.00.000.000 I slot launch_slot_: id 0", "… 2 more lines like this",
    ]  # fmt: skip


def test_lines_that_repeat_in_turn_are_folded_too() -> None:
    lines = [f"1.00.000.00{n} I request: GET /{what}" for n in range(5) for what in ("health", "slots", "metrics")]

    assert list(fold_repeats(lines)) == [*lines[:3], "… 12 more lines like this"]


def test_every_line_is_shown_or_counted() -> None:
    rng = random.Random(7)
    lines = [f"1.00.000.000 {rng.choice('IE')} {rng.choice('abcdef')}" for _ in range(5000)]
    fold, shown, counted = RepeatFold(), 0, 0
    for line in lines:
        count, show = fold.add(parse_line(line))
        counted += count
        shown += show

    assert shown + counted + fold.flush() == len(lines)
    assert fold.flush() == 0
    assert FOLD_WINDOW < shown < len(lines)


def test_an_error_is_not_folded_into_the_same_words_of_another_level_and_blank_lines_stay() -> None:
    lines = ["1.00.000.000 I it failed", "1.00.000.000 E it failed", "", "", ""]

    assert list(fold_repeats(lines)) == lines


def test_after_something_else_was_shown_the_line_is_shown_again() -> None:
    fold = RepeatFold()
    assert fold.add(parse_line(idle(1)[0])) == (0, True)
    assert fold.add(parse_line(idle(1)[0])) == (0, False)
    fold.reset()

    assert fold.add(parse_line(idle(1)[0])) == (1, True)


def test_the_words_for_one_and_for_many() -> None:
    assert (repeats_line(1), repeats_line(76000)) == ("… 1 more line like this", "… 76,000 more lines like this")
