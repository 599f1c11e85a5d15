"""The screen as pictures, at the three sizes it is made for. `--snapshot-update` accepts a change on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from gpubox.tui.app import GpuboxApp
from tests.tui.conftest import SIZES, on_screen, opened, pictured, until
from tests.tui.scenes import SCENES

HERE = Path(__file__).parent


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("size", SIZES)
async def test_picture(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, size: str, scene: str) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    state = SCENES[scene]
    fake = state.services()
    app = GpuboxApp(fake)
    app.bridge.poller.history = state.history()
    try:
        async with app.run_test(size=SIZES[size]) as pilot:
            await opened(pilot)
            if state.play:
                await state.play(pilot, fake)
            view = app.dashboard.log_pane.view
            await until(pilot, lambda: bool(view.line_count) == state.log or not view.region)
            await until(pilot, lambda: on_screen(pilot, *state.expected), f"{state.expected}")
            await pictured(pilot, snapshot)
    finally:
        fake.cancel()


def test_every_stored_picture_is_one_of_a_test(request: pytest.FixtureRequest) -> None:
    """The snapshot plugin finds those that no test draws, but not where several processes run the tests."""
    if request.config.option.keyword or any("::" in arg for arg in request.config.args):
        pytest.skip("only some tests were asked for")
    tests = {(item.path.stem, item.name) for item in request.session.items}
    modules = {module for module, _ in tests}
    stored = {(path.parent.name, path.stem) for path in (HERE / "__snapshots__").glob("*/*.svg")}

    assert {picture for picture in stored if picture[0] in modules} <= tests
