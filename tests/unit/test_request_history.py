"""The request list over launches: merged, divided by launch and day, filtered."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from gpubox.errors import GpuboxError
from gpubox.telemetry.snapshot import Request
from gpubox.tui.dashboard.request_history import (
    LaunchLine,
    ListedRequest,
    RequestFilter,
    merge,
    parse_filter,
    with_launch_lines,
)

TODAY = date(2026, 11, 21)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def listed(at: float, number: int, profile: str = "a", client: str = "", launch: int = 0, **more: str) -> ListedRequest:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return ListedRequest(at, profile, client, Request(number, moment, 0, number, **more), launch)  # type: ignore[arg-type]


def lines(entries: list[ListedRequest], running: str = "a") -> list[str | int]:
    rows = with_launch_lines(entries, running, TODAY)
    return [row.text if isinstance(row, LaunchLine) else row.number for row in rows]


def test_a_filter_has_fields_and_words() -> None:
    wanted = parse_filter("Profile:Qwen client:aider day:today cancelled", TODAY)
    assert wanted == RequestFilter("qwen", "aider", TODAY, ("cancelled",))
    assert parse_filter("day:yesterday", TODAY).day == date(2026, 11, 20)
    assert parse_filter("day:2026-11-03 profile:", TODAY) == RequestFilter(day=date(2026, 11, 3))
    assert parse_filter("http://x", TODAY).words == ("http://x",)
    assert not parse_filter("  ", TODAY)


@pytest.mark.parametrize("text", ["day:3", "day:tomorrow", "day:2026-02-30", "day:２０２６-１１-２０x"])
def test_a_day_that_is_none_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(GpuboxError, match="day:today"):
        parse_filter(text, TODAY)


def test_a_filter_matches_parts_of_names_and_the_local_day() -> None:
    late = listed(NOON - 12 * 3600 - 1, 1, "qwen36-256k", "aider", stop_reason="cancelled")
    assert RequestFilter("256", "aid", date(2026, 11, 20), ("cancel",)).matches(late)
    assert not RequestFilter(day=TODAY).matches(late)
    assert not RequestFilter(words=("length",)).matches(late)


def test_a_live_request_and_its_stored_copy_are_one_with_the_client_and_the_end_of_the_history() -> None:
    live, copy = listed(NOON, 7), listed(NOON + 0.4, 7, client="opencode", stop_reason="length")
    other = listed(NOON - 600, 7)
    known = replace(live, client="opencode", request=replace(live.request, stop_reason="length"))
    assert merge([live], [copy, other]) == [known, other]
    stopped = replace(live, request=replace(live.request, stop_reason="stop"))
    assert merge([stopped], [copy])[0].request.stop_reason == "stop", "what was seen live counts"


def test_merging_loses_nothing_and_doubles_nothing() -> None:
    dice = random.Random(13)
    every = [listed(NOON + 60 * n, n, dice.choice("ab")) for n in range(200)]
    for _ in range(50):
        live = [entry for entry in every if dice.random() < 0.4]
        stored = [entry for entry in every if entry not in live or dice.random() < 0.5]
        dice.shuffle(stored)
        assert merge(live, stored) == every[::-1]


def test_a_line_stands_where_another_launch_or_day_begins() -> None:
    entries = [
        listed(NOON, 2), listed(NOON - 10, 1),
        listed(NOON - 60, 9, launch=7), listed(NOON - 70, 8, launch=7),  # the same profile, launched anew
        listed(NOON - 3600, 3, "b", launch=6),
        listed(NOON - 20 * 3600, 2, "b", launch=6),
        listed(NOON - 400 * 86_400, 1, "", launch=1),
    ]  # fmt: skip
    assert lines(entries) == [2, 1, "a · today", 9, 8, "b · today", 3, "b · yesterday", 2, "a server · 17 Oct 2025", 1]
    assert lines(entries[:2], running="") == ["a · today", 2, 1]
    assert lines([]) == []


def test_parallel_streams_of_a_launch_need_no_line() -> None:
    """Their numbers stand in the order in which they ended, the list in the order in which they began."""
    dice = random.Random(4)
    numbers = dice.sample(range(1, 41), 40)
    stored = [listed(NOON - n, number, launch=5) for n, number in enumerate(numbers)]
    assert lines(stored) == numbers
    live = [replace(entry, launch=0) for entry in stored[:10]]
    assert lines(merge(live, stored)) == numbers, "the live ones and the stored ones are one launch"
    assert lines(merge(live, [])) == numbers[:10]


def test_launches_that_ran_at_once_have_one_line_each() -> None:
    both = [listed(NOON - n, 50 - n, "ab"[n % 2], launch=5 + n % 2) for n in range(6)]
    assert lines(merge([], both)) == [50, 48, 46, "b · today", 49, 47, 45]


def test_a_launch_that_the_history_has_not_shown_is_another_one() -> None:
    live, ended = [listed(NOON, 1)], [listed(NOON - 60, 9, launch=-1), listed(NOON - 70, 3, launch=-1)]
    assert lines(merge([*live, *ended], [])) == [1, "a · today", 9, 3]
