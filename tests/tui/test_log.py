"""The log: follows, filters, folds repeats, drops the oldest lines, and draws only changes."""

from __future__ import annotations

import pytest

from gpubox.tui.dashboard.log import MAX_LINES, TICK_LINES, LogView
from tests.tui.conftest import act, app_of, on_dashboard, settled, text, until
from tests.tui.fake import FakeServices, recorded


async def test_follows_until_one_scrolls_up(fake: FakeServices) -> None:
    fake.lines = recorded()
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("l")
        await until(pilot, lambda: "all slots are idle" in text(pilot))
        await pilot.press("k", "k")
        await until(pilot, lambda: "paused, end follows again" in text(pilot))
        before = app.dashboard.log_pane.view.line_count
        fake.lines = ["0.09.000.000 W something new"]
        await until(pilot, lambda: app.dashboard.log_pane.view.line_count > before)
        await settled(pilot)
        assert "something new" not in text(pilot)
        await pilot.press("end")
        await until(pilot, lambda: "something new" in text(pilot) and "paused" not in text(pilot))


async def test_zoom_and_back(fake: FakeServices) -> None:
    fake.lines = recorded()
    async with on_dashboard(fake, size=(80, 24)) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: "╭─ Log" in text(pilot).splitlines()[1])
        await pilot.press("escape")
        await until(pilot, lambda: "Throughput" in text(pilot))


async def test_filter(fake: FakeServices) -> None:
    fake.lines = recorded()
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("l", "slash", *"KV buffer")
        view = app.dashboard.log_pane.view
        await until(pilot, lambda: 0 < view.match_count < 5)
        assert "kv  1" not in text(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: view.match_count > 100)


async def test_levels_have_their_colours(fake: FakeServices) -> None:
    fake.lines = ["0.00.001.000 E bad", "0.00.002.000 W odd", "0.00.003.000 I fine", "no prefix at all"]
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        view = app.dashboard.log_pane.view
        await pilot.press("l")
        await until(pilot, lambda: view.line_count == 4)
        await settled(pilot)
        colours = [list(view.render_line(y))[1].style.color for y in range(4)]  # type: ignore[union-attr]
        assert len(set(colours)) == 3 and colours[2] == colours[3]


def test_folds_repeats_and_keeps_a_limit() -> None:
    view = LogView.__new__(LogView)
    kept: list[str] = []
    LogView.__init__(view)
    view._append = lambda lines: (kept.extend(line.text for line in lines), view._lines.extend(lines))  # type: ignore
    view.write(["0.00.001.000 I idle", "0.00.002.000 I idle", "0.00.003.000 I idle"])
    view.write(["0.00.004.000 I idle"])
    view.write(["0.00.005.000 I work"])
    assert kept == ["idle", "… 3 more lines like this", "work"]


async def test_drops_the_oldest_lines(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        view = app.dashboard.log_pane.view
        await pilot.press("l")
        fake.lines = [f"0.00.001.000 I line {n} {'word ' * 20}" for n in range(MAX_LINES + 500)]
        await until(pilot, lambda: f"line {MAX_LINES + 499} word" in text(pilot))
        assert view.line_count == MAX_LINES
        assert view.match_count == MAX_LINES  # lines, not the rows that they are wrapped into
        assert "line 500 word" in "".join(text for text, _ in view.row(0))
        assert view.row(view.row_count() - 1) and not view.row(view.row_count())


async def test_nothing_new_draws_nothing(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await settled(pilot)
        drawn: list[object] = []
        for widget in app.dashboard.walk_children():
            widget.refresh = lambda *a, w=widget, **k: drawn.append(w) or w  # type: ignore
        fake.eager = True
        asked = len(fake.asked_now)
        await until(pilot, lambda: len(fake.asked_now) > asked + 10)
        assert not drawn


async def test_the_log_of_the_last_failure_has_a_key_of_its_own(fake: FakeServices) -> None:
    async with on_dashboard(fake, notifications=True) as pilot:
        await act(pilot, "failed_log")
        await until(pilot, lambda: "No start has failed," in text(pilot))

        fake.failure = (
            "big, 13:02: out of VRAM [/x].",
            ["0.00.001.000 E alloc: cudaMalloc [bold]failed", "0.00.002.000 I bye"],
        )
        await act(pilot, "failed_log")
        await until(pilot, lambda: "cudaMalloc [bold]failed" in text(pilot) and "out of VRAM [/x]." in text(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "cudaMalloc" not in text(pilot))


async def test_lines_that_came_before_the_view_had_a_size_are_wrapped_for_it(fake: FakeServices) -> None:
    line = f"0.00.001.000 I {'word ' * 30}"
    async with on_dashboard(fake, size=(200, 50)) as pilot:
        app = app_of(pilot)
        view = app.dashboard.log_pane.view
        fake.lines = [line]
        await until(pilot, lambda: view.line_count and "word word word" in text(pilot))
        once = view.row_count()
        await pilot.press("v")  # the memory alone: the log is not laid out
        await until(pilot, lambda: not app.dashboard.log_pane.region)
        fake.lines = [line.replace("word", "next")]
        await until(pilot, lambda: app.dashboard.log_pane.line_count == 2)
        assert view.line_count == 1  # nothing is done for what nobody sees
        await pilot.press("v")
        await until(pilot, lambda: "next next next" in text(pilot))
        await settled(pilot)

        assert view.row_count() == 2 * once


async def test_a_flood_is_skipped_and_only_rows_on_the_screen_are_made(
    fake: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = LogView.row
    monkeypatch.setattr(LogView, "row", lambda view, y: made.append(y) or make(view, y))  # type: ignore[func-returns-value]
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        view = app.dashboard.log_pane.view
        fake.lines = ["0.00.001.000 I first"]
        await pilot.press("l")
        await until(pilot, lambda: view.line_count == 1)
        await settled(pilot)
        made.clear()
        height = view.size.height
        fake.lines = [f"0.00.001.000 I line {n} {'word ' * 60}" for n in range(3200 + TICK_LINES)]
        await until(pilot, lambda: view.line_count > 2)
        assert len(made) <= 2 * height  # 3,700 lines have 12,000 rows
        await until(pilot, lambda: f"line {3200 + TICK_LINES - 1} word" in text(pilot))
        await pilot.press("home")
        await until(pilot, lambda: "… 3,200 lines skipped, the file has them" in text(pilot))
        assert view.line_count == 2 + TICK_LINES


async def test_reading_stays_in_place_when_rows_go_away_at_the_top(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        view = app_of(pilot).dashboard.log_pane.view
        await pilot.press("l")
        fake.lines = [f"0.00.001.000 I line {n}" for n in range(MAX_LINES)]
        await until(pilot, lambda: view.line_count == MAX_LINES)
        await pilot.press("home", *"jjjjj", "end", *"kkkkk")
        await until(pilot, lambda: not view.follow)
        await settled(pilot)
        top = view.row(view.scroll_offset.y)
        fake.lines = [f"0.00.002.000 I new {n}" for n in range(100)]
        await until(pilot, lambda: "new 99" in str(view.row(view.row_count() - 1)))
        assert view.row(view.scroll_offset.y) == top
