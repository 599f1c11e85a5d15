"""The first minutes: what an owner without a profile is asked, and what Enter does then."""

from __future__ import annotations

from textual.pilot import Pilot

from tests.tui.conftest import act, app_of, on_dashboard, shows, text, until
from tests.tui.fake import QWEN, READY, Stranger
from tests.tui.scenes import PLANS


def rows(pilot: Pilot[bool]) -> list[str]:
    return [entry.name for entry in app_of(pilot).dashboard.profiles.rows.values]


async def test_three_choices_and_no_profile_that_cannot_start() -> None:
    services, (large, small) = Stranger(*PLANS), PLANS
    services.planned = dict(PLANS)
    async with on_dashboard(services, size=(80, 24)) as pilot:
        await shows(pilot, "No profile yet. What do you have?", "1 example hidden", "fits with n-cpu-moe 15", "98 MB")
        assert rows(pilot) == [large, small, "find a model", "demo"]
        await pilot.press("enter")
        await until(pilot, lambda: services.asked == [("start", large, False, False)])
        await until(pilot, lambda: rows(pilot) == [large])
        await act(pilot, "toggle_shipped")
        await shows(pilot, QWEN.name)


async def test_what_enter_downloads_stands_on_its_row() -> None:
    services = Stranger()
    async with on_dashboard(services, size=(80, 24)) as pilot:
        await shows(pilot, "none here; Enter: its path", "98 MB, on the CPU")
        await pilot.press("j", "j", "enter")
        await until(pilot, lambda: services.asked == [("fetch", "demo"), ("start", "demo", False, False)])


async def test_the_hint_to_connect_an_agent_goes_for_good() -> None:
    services = Stranger(status=READY)
    async with on_dashboard(services, size=(80, 24)) as pilot:
        await shows(pilot, "connect your coding agent: o", "esc hides this")
        await pilot.press("escape")
        await until(pilot, lambda: services.hint_ended and "coding agent" not in text(pilot))
