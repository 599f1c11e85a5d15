"""The shipped profiles of the list: hidden, shown again, and found by a search."""

from __future__ import annotations

from gpubox.config import Config
from tests.tui.conftest import act, on_dashboard, settled, shows, text, until
from tests.tui.fake import READY, FakeServices


async def test_they_are_hidden_where_the_settings_say_so_but_for_what_runs(
    fake: FakeServices,
) -> None:
    fake.config, fake.status = Config(shipped_profiles="hide"), READY  # qwen36-mtp-16gb, a shipped one
    async with on_dashboard(fake, size=(200, 50)) as pilot:
        await shows(pilot, "mine", "qwen36-mtp-16gb", "3 examples hidden (in the menu)")
        assert "qwen36-256k" not in text(pilot)
        await act(pilot, "toggle_shipped")
        await shows(pilot, "qwen36-256k", "demo")
        await act(pilot, "toggle_shipped")
        await until(pilot, lambda: "qwen36-256k" not in text(pilot))
        await pilot.press("slash", *"256k")
        await shows(pilot, "qwen36-256k")
        await pilot.press("escape")
        await until(pilot, lambda: "qwen36-256k" not in text(pilot))


async def test_they_can_be_hidden_where_they_are_shown(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        await shows(pilot, "qwen36-256k")
        await act(pilot, "toggle_shipped")
        await until(pilot, lambda: "qwen36-256k" not in text(pilot))
        await settled(pilot)
        assert "mine" in text(pilot)
