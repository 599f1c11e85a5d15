"""The screen as pictures, at the three sizes it is made for. `--snapshot-update` accepts a change on purpose."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from gpubox.tui.app import GpuboxApp
from tests.tui.conftest import opened, pictured, text, until
from tests.tui.scenes import SCENES

SIZES = {"80x24": (80, 24), "120x36": (120, 36), "200x50": (200, 50)}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("size", SIZES)
async def test_picture(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, size: str, scene: str) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    state = SCENES[scene]
    fake = state.services()
    app = GpuboxApp(fake)
    app.bridge.watch.history = state.history()
    try:
        async with app.run_test(size=SIZES[size]) as pilot:
            await opened(pilot)
            if state.play:
                await state.play(pilot, fake)
            view = app.dashboard.log_pane.view
            await until(pilot, lambda: bool(view.line_count) == state.log)
            await until(pilot, lambda: all(words in text(pilot) for words in state.words), f"{state.words}")
            await pictured(pilot, snapshot)
    finally:
        fake.cancel()
