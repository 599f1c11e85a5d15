"""Pictures of the Clients screen, of connecting a client, and of the dashboard beside a gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot

from gpubox.gateway.gateway_status import GatewayStatus
from gpubox.tui.app import GpuboxApp
from tests.tui.conftest import SIZES, app_of, opened, pictured, shows, until
from tests.tui.fake import BUSY
from tests.tui.fake_gateway import HELD, STATUS, SWITCHING, TWO_SLOTS, services_with_gateway
from tests.tui.snapshots import REQUESTS, filled


async def clients(pilot: Pilot[bool]) -> None:
    await pilot.press("5")
    await shows(pilot, "generating", "waiting 3 s", "opencode")


async def paused(pilot: Pilot[bool]) -> None:
    await pilot.press("5")
    await shows(pilot, "PAUSED", "held 3 s")


async def connect(pilot: Pilot[bool]) -> None:
    await pilot.press("o")
    await shows(pilot, "opencode.json", "YOUR-KEY")


async def switching(pilot: Pilot[bool]) -> None:
    await shows(pilot, "asked by aider")


SCENES: dict[str, tuple[GatewayStatus, Callable[[Pilot[bool]], Awaitable[None]]]] = {
    "clients": (STATUS, clients),
    "clients_paused": (replace(HELD, exposed="LAN, key"), paused),
    "connect": (STATUS, connect),
    "gateway_switch": (SWITCHING, switching),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("size", SIZES)
async def test_picture(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, size: str, scene: str) -> None:
    monkeypatch.setenv("COLUMNS", size.split("x")[0])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.home() / ".config"))  # the path of a client's file is shown
    status, play = SCENES[scene]
    services = services_with_gateway(status, BUSY)
    services.step, services.extra_readings = 0.0, TWO_SLOTS
    app = GpuboxApp(services)
    app.bridge.poller.history = filled(BUSY, 1000.0, REQUESTS, TWO_SLOTS["slots"])
    async with app.run_test(size=SIZES[size]) as pilot:
        await opened(pilot)
        await until(pilot, lambda: app_of(pilot).bridge.gateway.view)
        await play(pilot)
        await pictured(pilot, snapshot)
