"""The screen as pictures, at the three sizes it is made for. `--snapshot-update` accepts a change on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from gpubox.errors import GpuboxError
from gpubox.tui.app import GpuboxApp
from tests.tui.conftest import opened, text, until
from tests.tui.fake import STOPPED, FakeServices, Gate, recorded, rollback_story, switch_story
from tests.tui.test_dashboard import choose

SIZES = {"80x24": (80, 24), "120x36": (120, 36), "200x50": (200, 50)}


async def running(pilot: Pilot[bool], fake: FakeServices) -> None:
    await opened(pilot)


async def loading(pilot: Pilot[bool], fake: FakeServices) -> None:
    fake.script = switch_story(gate=Gate(threading.Event()))
    await opened(pilot)
    await choose(pilot, "qwen36-256k")
    await until(pilot, lambda: "12.9 of" in text(pilot) and "qwen36-256k loading" in text(pilot))


async def rolled_back(pilot: Pilot[bool], fake: FakeServices) -> None:
    fake.script, fake.error = rollback_story(), GpuboxError("x", "Try n-cpu-moe 26.")
    await opened(pilot)
    await choose(pilot, "qwen36-256k")
    await until(pilot, lambda: "Try n-cpu-moe" in text(pilot))


async def crashed(pilot: Pilot[bool], fake: FakeServices) -> None:
    fake.status = replace(STOPPED, state="crashed", message="qwen36-mtp-16gb died: CUDA error: out of memory.")
    fake.last = "qwen36-mtp-16gb"
    await opened(pilot)


async def no_engine(pilot: Pilot[bool], fake: FakeServices) -> None:
    fake.status, fake.engine, fake.lines = STOPPED, False, []
    await opened(pilot)


@pytest.mark.parametrize("state", [running, loading, rolled_back, crashed, no_engine])
@pytest.mark.parametrize("size", SIZES)
def test_picture(
    snap_compare: Callable[..., bool],
    monkeypatch: pytest.MonkeyPatch,
    size: str,
    state: Callable[[Pilot[bool], FakeServices], object],
) -> None:
    fake = FakeServices()
    fake.lines = recorded()
    monkeypatch.setenv("COLUMNS", size.split("x")[0])

    async def before(pilot: Pilot[bool]) -> None:
        await state(pilot, fake)  # type: ignore[misc]
        view = pilot.app.dashboard.log_pane.view  # type: ignore[attr-defined]
        await until(pilot, lambda: not fake.lines and (view.line_count > 0) == (state is not no_engine))
        await pilot.pause(0.1)

    try:
        assert snap_compare(GpuboxApp(fake), terminal_size=SIZES[size], run_before=before)
    finally:
        fake.cancel()
