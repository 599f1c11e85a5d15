"""The request list: newest on top, a cursor that stays on its request, Enter shows all fields."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.requests import RequestLog
from gpubox.telemetry.snapshot import Request, Throughput, Totals
from gpubox.tui.dashboard.request_history import LaunchLine
from gpubox.tui.dashboard.requests import request_fields
from tests.tui.conftest import SIZES, app_of, on_dashboard, settled, shows, text, until
from tests.tui.fake import READY, FakeServices
from tests.tui.fake_history import FakeHistory
from tests.tui.snapshots import REQUESTS, snapshot
from tests.unit.test_telemetry_requests import Lines, feed, request_lines

ZERO = re.compile(r"(?<![\d.,:])0(?![\d.,:])")


def requests(count: int) -> tuple[Request, ...]:
    """``count`` requests, newest first; the number is in the tokens that came out."""
    return tuple(replace(REQUESTS[0], number=n, generated_tokens=n) for n in range(count, 0, -1))


def number(row: Request | LaunchLine | None) -> int:
    """The number of the request in a row."""
    assert isinstance(row, Request)
    return row.number


async def test_the_cursor_stays_on_its_request(fake: FakeServices) -> None:
    fake.reading = replace(snapshot(READY), requests=requests(100))
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("h")
        rows = app.dashboard.requests.rows
        await until(pilot, lambda: rows.has_focus and len(rows.values) == 100)
        await pilot.press("j", "j", "down")
        await until(pilot, lambda: number(rows.value) == 97)
        fake.reading = replace(snapshot(READY), requests=requests(101))
        await until(pilot, lambda: len(rows.values) == 101)
        assert number(rows.value) == 97
        await pilot.press("end")
        await until(pilot, lambda: number(rows.value) == 1)
        await until(pilot, lambda: rows.scroll_offset.y == 101 - rows.size.height)
        shown = rows.scroll_offset.y
        fake.reading = replace(snapshot(READY), requests=requests(103))
        await until(pilot, lambda: len(rows.values) == 103)
        await until(pilot, lambda: rows.scroll_offset.y == shown + 2, "what is read stays where it is")
        assert number(rows.value) == 1
        await pilot.press("pageup", "home")
        await until(pilot, lambda: number(rows.value) == 103)


async def test_the_cursor_is_seen_where_the_keys_are(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        rows = app.dashboard.requests.rows
        await until(pilot, lambda: len(rows.values) == 3)
        app.dashboard.set_focus(rows)
        await until(pilot, lambda: "$cursor" in rows.drawn[0][0][1])
        app.dashboard.set_focus(app.dashboard.profiles.rows)
        await until(pilot, lambda: "$cursor" not in rows.drawn[0][0][1])


async def test_enter_shows_all_fields(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await pilot.press("h")
        await until(pilot, lambda: "↻" in text(pilot))
        await pilot.press("j", "enter")
        words = ("reread              no checkpoint", "generated           96 tokens", "95.5% (63 of 66)")
        await shows(pilot, "Request 2", *words)
        await pilot.press("escape")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
        await pilot.press("escape")
        await until(pilot, lambda: "Profiles" in text(pilot))


async def test_a_click_moves_the_cursor_and_a_second_opens(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        rows = app.dashboard.requests.rows
        await until(pilot, lambda: len(rows.values) == 3)
        await pilot.click(rows, offset=(3, 2), times=2)
        await until(pilot, lambda: "Request 1" in text(pilot))


async def test_an_empty_list_says_so(fake: FakeServices) -> None:
    fake.reading = replace(snapshot(READY), requests=())
    async with on_dashboard(fake) as pilot:
        await until(pilot, lambda: "No requests yet." in text(pilot))
        await pilot.press("h", "j", "enter", "end", "k")
        await settled(pilot)
        assert pilot.app.screen is app_of(pilot).dashboard


def four_streams() -> Lines:
    """The log of 100 requests in 4 slots, each as long as it happens to be."""
    dice, lines = random.Random(23), []
    for slot in range(4):
        at = slot / 10
        for task in range(slot, 100, 4):
            lines += request_lines(at, slot=slot, task=task, generated=dice.randint(2, 400))
            at = lines[-1][0] + dice.random()
    return sorted(lines, key=lambda line: line[0])


async def test_a_hundred_requests_of_four_streams_are_one_launch(fake: FakeServices) -> None:
    log, lines = RequestLog(datetime(2026, 11, 21, 12, tzinfo=UTC)), four_streams()
    fake.reading = replace(snapshot(READY), requests=())
    async with on_dashboard(fake) as pilot:
        rows = app_of(pilot).dashboard.requests.rows
        for first in range(0, len(lines), 60):
            feed(log, lines[first : first + 60])
            fake.reading = replace(snapshot(READY), requests=tuple(log.finished))
            await until(pilot, lambda: not log.finished or log.finished[0] in rows.values)
            assert {*rows.values} == {*log.finished}, "no line among them"

    assert [r.number for r in log.finished] != [r.number for r in sorted(log.finished, key=lambda r: r.at)][::-1]
    moments = {r: datetime.fromisoformat(r.at).timestamp() for r in log.finished}
    stored = [StoredRequest(at, READY.profile or "", "aider", request, 5) for request, at in moments.items()]
    fake.past = FakeHistory(stored_requests=stored)
    fake.reading = replace(snapshot(READY), requests=tuple(log.finished)[:20])
    async with on_dashboard(fake) as pilot:  # of a launch whose older requests only the history has
        rows = app_of(pilot).dashboard.requests.rows
        await until(pilot, lambda: len(rows.values) >= 100)
        assert {*rows.values} == {*log.finished}


@pytest.mark.parametrize("size", SIZES)
async def test_what_a_server_does_not_report_is_never_zero(fake: FakeServices, size: str) -> None:
    unknown = Request(1, REQUESTS[0].at, 3, 7)
    fake.reading = replace(
        snapshot(READY), requests=(unknown,), throughput=Throughput("idle"), totals=Totals(), slots=(),
        kv_bytes_per_token=None,
    )  # fmt: skip
    async with on_dashboard(fake, size=SIZES[size]) as pilot:
        await pilot.press("h")
        await until(pilot, lambda: "CPU offload" not in text(pilot))
        await shows(pilot, "13:02:11", "—", "Throughput")
        panes = app_of(pilot).dashboard.requests.rows, app_of(pilot).dashboard.throughput
        lines = ["".join(part for part, _ in line) for pane in panes for line in pane.drawn]
        assert len(lines) > 3 and not [line for line in lines if ZERO.search(line) and not re.search("[┤└]", line)]
    fields = dict(request_fields(unknown))
    assert fields["generated"] == "— tokens" and not [value for value in fields.values() if ZERO.search(value)]
