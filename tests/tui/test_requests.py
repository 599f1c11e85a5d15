"""The request list: newest on top, a cursor that stays on its request, Enter shows all fields."""

from __future__ import annotations

from dataclasses import replace

from gpubox.telemetry.snapshot import Request
from gpubox.tui.dashboard.request_history import LaunchLine
from tests.tui.conftest import app_of, on_dashboard, settled, shows, text, until
from tests.tui.fake import READY, FakeServices
from tests.tui.snapshots import REQUESTS, snapshot


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
        words = ("cache miss          no checkpoint", "generated           96 tokens", "97.5% (78 of 80)")
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
