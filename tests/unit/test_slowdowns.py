"""Which profiles became slower: short versions of ``tests/history_box.py``, and what its words say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.telemetry.history.slowdowns import SpeedUnit, changed_flags, find_slowdowns
from gpubox.telemetry.history.values import Slowdown, StoredLaunch
from gpubox.views.history import slowdown_figures
from tests import history_box as truth

DAY = 86400.0


@pytest.mark.parametrize("cause", ["engine", "heat"])
def test_fifteen_per_cent_less_is_flagged_with_its_cause(cause: str, tmp_path: Path) -> None:
    assert truth.check_planted(3, cause, tmp_path, days=60, count=4000) == ""


def test_months_of_noise_flag_nothing(tmp_path: Path) -> None:
    assert truth.check_noise(1, tmp_path, days=60, count=4000) == ""


def launch(day: int) -> StoredLaunch:
    end = day * DAY + 9000
    return StoredLaunch(day, "coder", day * DAY, end, end, "stop", "/e", "b1", "550", ())


def units(speeds: dict[int, float], stratum: int = 1) -> list[SpeedUnit]:
    return [
        SpeedUnit(day, day, "tg", stratum, 20, speed * (1 + 0.01 * (day * 7 % 5 - 2))) for day, speed in speeds.items()
    ]


def flagged(speeds: dict[int, float], stratum: int = 1) -> list[Slowdown]:
    return find_slowdowns(units(speeds, stratum), [launch(day) for day in speeds], {}, lambda day: day * DAY)


def test_a_slow_day_or_two_are_no_slowdown() -> None:
    assert not flagged({day: 40.0 if day < 28 else 30.0 for day in range(30)})
    assert flagged({day: 40.0 if day < 26 else 30.0 for day in range(30)})


def test_what_is_fast_again_is_not_slower() -> None:
    assert not flagged({day: 30.0 if 10 <= day < 20 else 40.0 for day in range(30)})


def test_slower_in_two_steps_is_told_since_the_first() -> None:
    (slowdown,) = flagged({day: 50.0 if day < 16 else 42.0 if day < 32 else 34.0 for day in range(48)})
    assert slowdown.since == 16 * DAY and slowdown.low < 38 / 50 - 1 < slowdown.high


def test_faster_in_between_does_not_hide_a_slowdown() -> None:
    (slowdown,) = flagged({day: 50.0 if day < 16 else 36.0 if day < 28 else 39.0 for day in range(40)})
    assert (slowdown.since, slowdown.changed) == (16 * DAY, ())


def test_another_kind_of_requests_is_no_slowdown() -> None:
    """Deep contexts came to be usual: each kind is as fast as before."""
    short, deep = dict.fromkeys(range(20), 40.0), dict.fromkeys(range(12, 40), 20.0)
    all_units = [*units(short, 1), *units(deep, 2)]
    assert not find_slowdowns(all_units, [launch(day) for day in range(40)], {}, lambda day: day * DAY)


def test_flags_that_changed_are_named() -> None:
    old = ("/e/llama-server", "-m", "a.gguf", "--ctx-size", "4096", "--no-mmap", "--port", "1", "--temp", "-1")
    new = ("/x/llama-server", "-m", "a.gguf", "--ctx-size", "8192", "--mlock", "--port", "2", "--temp", "-1")
    assert changed_flags(old, new) == ["--ctx-size 4096 -> 8192", "--no-mmap is gone", "--mlock is new"]


def test_one_start_that_is_slow_is_told_as_such() -> None:
    """The last start goes on for days."""
    launches = [launch(day) for day in range(26)]
    slow = [replace(unit, launch=25) for unit in units({day: 30.0 for day in range(25, 30)})]
    (slowdown,) = find_slowdowns([*units(dict.fromkeys(range(25), 40.0)), *slow], launches, {}, lambda day: day * DAY)
    assert (slowdown.since, slowdown.later_starts) == (25 * DAY, 1)
    assert "slower since this start" in slowdown.sentence


def test_starts_that_are_now_fast_now_slow_are_no_slowdown() -> None:
    assert not flagged({day: 30.0 if day % 3 == 0 or day > 25 else 40.0 for day in range(30)})


def test_the_sentence_names_what_changed_and_the_figures_stand_under_it() -> None:
    slowdown = Slowdown("coder", "tg", 20 * DAY, 48.0, 40.8, -0.17, -0.13, ("engine version b1 -> b2",), 4)
    sentence = slowdown.sentence
    assert sentence.startswith("coder generates slower since Wed 21 Jan.") and "%" not in sentence
    assert sentence.endswith("What changed then: engine version b1 -> b2.")
    assert slowdown_figures(slowdown) == "tg 48.0 -> 40.8 tok/s, 15% less (99% interval 13% to 17%), 4 starts since"
