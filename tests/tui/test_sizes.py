"""Terminals of any size: nothing breaks in a small one, and everything comes back in a larger one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpubox.server.events import OperationFinished, Step, StepDone
from gpubox.tui.messages import OperationUpdated
from tests.tui.conftest import act, app_of, on_dashboard, settled, shows, text, until
from tests.tui.fake import BUSY, FakeServices
from tests.tui.scenes import SCENES


async def test_a_tiny_terminal_and_back(fake: FakeServices) -> None:
    fake.status = BUSY
    async with on_dashboard(fake, size=(120, 36)) as pilot:
        await settled(pilot)
        before = text(pilot)
        await pilot.resize_terminal(20, 5)
        await until(pilot, lambda: len(text(pilot).splitlines()) == 5)
        await shows(pilot, "answering", "70.2 tok/s")
        await settled(pilot)
        assert all(len(line) <= 20 for line in text(pilot).splitlines())
        for key in ("p", "escape", "l", "escape", "h", "j", "escape", "v", "escape"):
            await pilot.press(key)
        await act(pilot, "zoom_detail")
        await pilot.press("escape")
        await pilot.resize_terminal(120, 36)
        await until(pilot, lambda: "Requests" in text(pilot))
        await settled(pilot)
        assert text(pilot).splitlines()[:-1] == before.splitlines()[:-1], "all but the keys, which stay where they went"


async def test_the_progress_leaves_room_for_the_speed_in_a_tiny_terminal(fake: FakeServices) -> None:
    fake.status = BUSY
    async with on_dashboard(fake, size=(20, 5)) as pilot:
        app = app_of(pilot)
        for step in (Step.CHECK, Step.STOP, Step.LOAD):
            app.post_message(OperationUpdated(StepDone(step, "b", 3.0)))
        app.post_message(OperationUpdated(OperationFinished("switch", "b", True, "b", 3.14, "b answers.")))
        await shows(pilot, "✓ b answers", "70.2 tok/s")
        await settled(pilot)
        assert not app.dashboard.show_vertical_scrollbar


@pytest.mark.parametrize("scene", SCENES)
async def test_opens_in_a_tiny_terminal(monkeypatch: pytest.MonkeyPatch, scene: str) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    state = SCENES[scene]
    fake = state.services()
    async with on_dashboard(fake, size=(20, 5)) as pilot:
        await settled(pilot)
        word = TINY.get(scene, state.status.state)
        await until(pilot, lambda: word in text(pilot), word)
        assert all(len(line) <= 20 for line in text(pilot).splitlines())
    fake.cancel()


TINY = {"prefill": "62%", "sleeping": "sleeping", "stuck": "stuck", "gpu_lost": "GPU LOST", "exposed": "LAN, no key"}
"""What must be seen even there."""


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_what_comes_while_its_pane_is_hidden_is_laid_out_as_if_it_had_been_seen(size: tuple[int, int]) -> None:
    pictures: list[str] = []
    for hidden in (False, True):
        fake = FakeServices()
        async with on_dashboard(fake, size=size) as pilot:
            app = app_of(pilot)
            if hidden:
                await pilot.press("v")
                await until(pilot, lambda app=app: not app.dashboard.profiles.region)  # type: ignore[misc]
            fake.lines = [f"0.00.001.000 I {'word ' * 60}", "0.00.002.000 W short"]
            fake.profiles[0] = replace(fake.profiles[0], title="a title " * 30)
            fake.version += 1
            fake.status = BUSY
            await until(
                pilot,
                lambda app=app: (
                    app.dashboard.log_pane.line_count == 2  # type: ignore[misc]
                    and any("a title" in entry.summary for entry in app.dashboard.profiles.rows.values if entry.profile)
                    and app.dashboard.requests.rows.values
                ),
            )
            if hidden:
                await pilot.press("v")
            await shows(pilot, "70.2 tok/s")
            await settled(pilot)
            pictures.append(text(pilot))

    assert pictures[0] == pictures[1]
