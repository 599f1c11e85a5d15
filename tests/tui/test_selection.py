"""Text on the dashboard is selected with the mouse and copied with ctrl+c."""

from __future__ import annotations

import pytest

from gpubox.tui.widgets.lines import StyledLines
from tests.tui.conftest import app_of, drag, on_dashboard, settled, shows, until
from tests.tui.fake import FakeServices

LOG = ["0.00.001.000 I first line", "0.00.002.000 W second line", "0.00.003.000 E third line"]


def rows_of(view: StyledLines) -> list[str]:
    return ["".join(text for text, _ in view.row(y)).rstrip() for y in range(view.row_count())]


async def test_lines_of_the_log(fake: FakeServices) -> None:
    fake.lines = list(LOG)
    async with on_dashboard(fake, size=(120, 36)) as pilot:
        app = app_of(pilot)
        await pilot.press("l")
        await shows(pilot, "third line")
        await drag(pilot, "first line", "third")
        await pilot.press("ctrl+c")
        rows = rows_of(app.dashboard.log_pane.view)
        assert app.clipboard == "\n".join(["first line", rows[1], rows[2].removesuffix(" line")])

        await pilot.press("slash", *"second")  # other rows are at these places now
        await until(pilot, lambda: app.dashboard.log_pane.view.match_count == 1)
        assert not app.screen.get_selected_text()


async def test_a_selection_in_the_log_stays_on_its_text_while_new_lines_come(fake: FakeServices) -> None:
    fake.lines = [f"0.00.001.000 I line {number}" for number in range(100)]
    async with on_dashboard(fake, size=(120, 36)) as pilot:
        app = app_of(pilot)
        await pilot.press("l")
        await shows(pilot, "line 99")
        await drag(pilot, "line 90", "line 90")
        fake.lines = [f"0.00.002.000 I new {number}" for number in range(5)]
        await shows(pilot, "new 4")
        assert app.screen.get_selected_text() == "line 90"


async def test_requests(fake: FakeServices) -> None:
    async with on_dashboard(fake, size=(120, 36)) as pilot:
        app = app_of(pilot)
        await until(pilot, lambda: len(app.dashboard.requests.rows.values) == 3)
        await settled(pilot)
        rows = rows_of(app.dashboard.requests.rows)
        await drag(pilot, rows[0][:8], rows[1].strip())
        await pilot.press("ctrl+c")
        assert app.clipboard == "\n".join(rows[:2])


@pytest.mark.parametrize("text", ["threads", "weights", "context", "41°C", "not with your"])
async def test_words_of_every_pane(fake: FakeServices, text: str) -> None:
    async with on_dashboard(fake, size=(200, 50)) as pilot:
        app = app_of(pilot)
        await shows(pilot, text)
        await drag(pilot, text, text)
        assert app.screen.get_selected_text() == text
