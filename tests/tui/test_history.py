"""The history on the dashboard: the zooms of the graph, the requests of all launches, slowdowns; and its cost."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gpubox.errors import GpuboxError
from gpubox.telemetry.history.queries import HistoryQueries
from gpubox.tui.dashboard import history
from gpubox.tui.dashboard.request_history import LaunchLine
from gpubox.tui.dashboard.throughput import slower_fields, slower_line
from tests.tui.conftest import act, app_of, on_dashboard, settled, shows, text, until
from tests.tui.fake import BUSY, READY, STOPPED, FakeServices
from tests.tui.fake_history import DAY, NOON, FakeHistory, launch, month
from tests.tui.snapshots import REQUESTS


@pytest.fixture
def past(fake: FakeServices) -> FakeHistory:
    fake.status, fake.past = BUSY, (history := month())
    return history


def listed(pilot: Pilot[bool]) -> list[str]:
    """The rows of the requests: the text of a line, the time of a request."""
    rows = app_of(pilot).dashboard.requests.rows.values
    return [row.text if isinstance(row, LaunchLine) else row.at for row in rows]


async def test_the_keys_zoom_and_the_title_says_the_span(fake: FakeServices, past: FakeHistory) -> None:
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "Throughput, 5 min", "5 min ago")
        assert "buckets" not in past.asked, "the last minutes are never read from the history"
        await act(pilot, "graph_longer")
        await shows(pilot, "Throughput, 1 h", "12:30", "▲", "tg │")
        await act(pilot, "graph_longer")
        await shows(pilot, "Throughput, 1 day", "18:00", "qwen36-256k", "····", "· not observed")
        await act(pilot, *["graph_longer"] * 3)
        await shows(pilot, "Throughput, 30 days", "01 Nov", "✗")
        await act(pilot, *["graph_shorter"] * 5)
        await shows(pilot, "Throughput, 5 min", "5 min ago")


async def test_everything_is_read_in_threads_and_only_what_is_on_the_screen(
    fake: FakeServices, past: FakeHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await act(pilot, "graph_longer")
        await shows(pilot, "Throughput, 1 h", "12:30")
        assert threading.get_ident() not in past.threads
        await pilot.press("l")  # the log alone
        await settled(pilot)
        past.asked.clear()
        reader = app.dashboard.history
        for _ in range(5):
            reader.wake()
            await pilot.pause(0)
        assert not past.asked
        await pilot.press("escape")
        await until(pilot, lambda: not app.dashboard._zoomed)
        await act(pilot, "graph_longer")
        await until(pilot, lambda: "buckets" in past.asked)


async def test_at_rest_the_history_is_read_at_the_pace_of_the_zoom(fake: FakeServices, past: FakeHistory) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await act(pilot, *["graph_longer"] * 2)
        await shows(pilot, "18:00")
        reader = app.dashboard.history
        past.asked.clear()
        for _ in range(20):
            reader.wake()  # readings come, the layout is made anew: nothing else is wanted
            await pilot.pause(0)
        assert not past.asked


async def test_the_requests_of_earlier_launches_stay_below_a_line(fake: FakeServices, past: FakeHistory) -> None:
    async with on_dashboard(fake) as pilot:
        await pilot.press("h")
        await until(pilot, lambda: len(listed(pilot)) == 3 + 1 + 12 + 1 + 9 + 1 + 40)
        await shows(pilot, "── qwen36-256k · today ─", "09:13:00 aider", "61 earlier")
        await pilot.press("j", "j", "j", "enter")  # on the line: nothing to open
        await pilot.press("j", "enter")
        await shows(pilot, "Request 12", "qwen36-256k", "Sat 21 Nov 2026, 09:14:00", "aider")


async def test_a_switch_takes_no_request_from_the_list(fake: FakeServices, past: FakeHistory) -> None:
    past.stored_requests.clear()
    async with on_dashboard(fake) as pilot:
        await until(pilot, lambda: len(listed(pilot)) == 3)
        fake.status = replace(READY, profile="qwen36-256k", pid=4712, started_at="2026-11-21T13:02:30.000Z")
        fake.extra_readings = {"requests": (replace(REQUESTS[0], number=1, task=9, at="2026-11-21T13:02:40.000Z"),)}
        await until(pilot, lambda: len(listed(pilot)) == 5)
        assert listed(pilot)[1] == "qwen36-mtp-16gb · today"
        fake.status = STOPPED
        await pilot.press("h")
        await until(pilot, lambda: len(listed(pilot)) == 6)
        assert listed(pilot)[0] == "qwen36-256k · today"


async def test_the_filter_finds_profile_client_day_and_text(fake: FakeServices, past: FakeHistory) -> None:
    async with on_dashboard(fake) as pilot:
        for typed, count in (
            ("profile:256", 12), ("client:open", 9), ("day:today", 15), ("day:2026-11-18", 40), ("length", 1),
            ("profile:mtp client:opencode day:yesterday", 9), ("client:nobody", 0),
        ):  # fmt: skip
            await act(pilot, "filter_requests")
            app_of(pilot).dashboard.requests.filter.value = typed
            rows = app_of(pilot).dashboard.requests.rows
            await shows(pilot, "1 matches" if count == 1 else f"{count} match")
            assert sum(not isinstance(row, LaunchLine) for row in rows.values) == count
        await shows(pilot, "No request matches.")
        await pilot.press("escape")
        await shows(pilot, "61 earlier")


async def test_a_day_that_is_none_is_said_while_the_rest_is_filtered(fake: FakeServices, past: FakeHistory) -> None:
    async with on_dashboard(fake, size=(80, 24)) as pilot:
        await pilot.press("h", "slash", *"client:aider day:[b]")
        await shows(pilot, "Requests: [b] is no day: day:today")
        await until(pilot, lambda: len(listed(pilot)) == 13)


async def test_a_slowdown_is_one_line_and_opens(fake: FakeServices, past: FakeHistory) -> None:
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "↓ tg 15% slower", "since Wed 18 Nov 13:02")
        await act(pilot, "slower_since")
        await shows(pilot, "80.0 -> 68.0 tok/s", "99% interval 12% to 18%", "engine b11434 -> b11500")


async def test_no_slowdown_is_a_sentence(fake: FakeServices) -> None:
    async with on_dashboard(fake, notifications=True) as pilot:
        await act(pilot, "slower_since")
        await shows(pilot, "No profile is slower than before")


async def test_a_history_that_cannot_be_read_is_one_sentence_and_the_rest_works(
    fake: FakeServices, past: FakeHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "RETRY_SECONDS", 0.02)
    past.problem = GpuboxError("The history ~/history.sqlite cannot be read: database is locked.")
    async with on_dashboard(fake) as pilot:
        await act(pilot, "graph_longer")
        await shows(pilot, "! The history ~/history.sqlite cannot be read", "70.2 tok/s", "13:02:11", "last ")
        past.problem = None
        await shows(pilot, "12:30", "61 earlier")
        assert "cannot be read" not in text(pilot)


async def test_a_bug_in_a_query_does_not_end_the_screen(fake: FakeServices, past: FakeHistory) -> None:
    past.problem = ValueError("odd")  # type: ignore[assignment]
    async with on_dashboard(fake) as pilot:
        await act(pilot, "graph_longer")
        await shows(pilot, "! The history could not be read: ValueError.")
    assert "odd" in fake.kept


@pytest.mark.parametrize("content", [None, b"", b"no database at all" * 100], ids=["missing", "empty", "damaged"])
async def test_a_missing_an_empty_and_a_damaged_file(fake: FakeServices, own_home: Path, content: bytes | None) -> None:
    path = own_home / "history.sqlite"  # in a short path, whose sentence is not wrapped
    if content is not None:
        path.write_bytes(content)
    fake.status, fake.past = BUSY, HistoryQueries(path)
    async with on_dashboard(fake) as pilot:
        await act(pilot, "graph_longer")
        expected = "database" if content else "Nothing is recorded of the last 1 h."
        await shows(pilot, expected, "70.2 tok/s")
        assert ("the earlier requests cannot be read" in text(pilot)) == bool(content)


async def test_a_recording_has_no_history(fake: FakeServices, past: FakeHistory) -> None:
    fake.read_only = "This is a recording: nothing in it can be changed."
    async with on_dashboard(fake, notifications=True) as pilot:
        await act(pilot, "graph_longer")
        await shows(pilot, "There is no history of a recording", "5 min ago")
        assert not past.asked


async def test_names_from_the_history_are_no_markup(fake: FakeServices, past: FakeHistory) -> None:
    past.stored_requests = launch("[bold]x\x1b[2J", NOON - DAY, 3, client="[/]evil\n")
    past.stored_marks = [replace(past.stored_marks[0], at=NOON - 600, text="[red]\x07")]
    past.found_slowdowns = [
        replace(past.found_slowdowns[0], profile="qwen36-mtp-16gb", changed=("[bold]a\x1b]0;b\x07",))
    ]
    async with on_dashboard(fake) as pilot:
        await pilot.press("h")
        await act(pilot, "graph_longer")
        await shows(pilot, "[bold]x", "[/]evil", "[red]")
        assert "\x1b" not in text(pilot) and "\x07" not in text(pilot)
        await act(pilot, "slower_since")
        await shows(pilot, "[bold]a")


async def test_keys_that_are_letters_reach_the_filter(fake: FakeServices, past: FakeHistory) -> None:
    async with on_dashboard(fake) as pilot:
        await act(pilot, "filter_requests")
        await pilot.press(*"hsS[]")
        filter_line = app_of(pilot).dashboard.requests.filter
        await until(pilot, lambda: filter_line.value == "hsS[]")
        assert app_of(pilot).dashboard.throughput.zoom is None


async def test_midnight_moves_the_requests_to_yesterday(fake: FakeServices, past: FakeHistory) -> None:
    past.stored_requests.clear()
    async with on_dashboard(fake) as pilot:
        await until(pilot, lambda: len(listed(pilot)) == 3)
        fake.clock = lambda: datetime(2026, 11, 22, 0, 0, 1)  # type: ignore[method-assign]
        app_of(pilot).dashboard.requests.clock = fake.clock
        fake.eager = True
        await until(pilot, lambda: listed(pilot)[0] == "qwen36-mtp-16gb · yesterday")


def test_tg_and_pp_that_fell_together_are_one_line() -> None:
    tg = month().found_slowdowns[0]
    pp = replace(tg, rate="pp", since=tg.since + 3600, before=800.0, after=700.0)
    line = "".join(part for part, _ in slower_line([pp, tg], tg.profile, 200))
    assert line.startswith("↓ tg 15%, pp 12% slower   since Wed 18 Nov 13:02   80.0 → 68.0 tok/s")
    later = replace(pp, since=tg.since + 5 * DAY)
    assert "".join(part for part, _ in slower_line([tg, later], tg.profile, 200)).startswith("↓ pp 12% slower")
    assert slower_line([tg], "another", 200) == ()
    assert len(slower_fields([tg, pp])) == 5
