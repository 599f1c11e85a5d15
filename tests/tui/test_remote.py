"""Another box on the screen, through its gateway: all of it, old when it is old, and nothing can be done to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpubox.config import Config
from gpubox.paths import Paths
from gpubox.telemetry.recorder import read_recording
from gpubox.tui import app as app_module
from gpubox.tui import bridge
from gpubox.tui.app import GpuboxApp
from gpubox.tui.remote_services import BOX_READ_ONLY, RemoteServices
from tests.fake_gateway import fake_gateway, watched
from tests.tui.conftest import app_of, shows, text, until
from tests.tui.test_replay import RECORDING

WIDE = (200, 50)
SNAPSHOT = next(read_recording(RECORDING))
LOG = ("0.01.000.000 I srv  \x1b[31m[bold]listening", "0.02.000.000 W odd line")
REFUSED = (401, b'{"error": {"message": "The key of laptop has expired."}, "gpubox": "0.1"}')


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "RETRY_SECONDS", 0.01)


async def test_the_whole_box_is_shown_and_left_alone(paths: Paths) -> None:
    with fake_gateway(paths) as gateway:
        gateway.answer = (200, watched(SNAPSHOT, gateway.status, LOG))
        services = RemoteServices(paths, Config(), gateway.url)
        async with GpuboxApp(services).run_test(size=WIDE, notifications=True) as pilot:
            await shows(pilot, "● random-moe-17b", "listening", "coder", f"gateway {gateway.url[7:]}")
            await shows(pilot, "Its file stays on the box.")
            assert not [made_up for made_up in ("\x1b", "file  ", "address  ", "checking") if made_up in text(pilot)]
            app = app_of(pilot)
            assert "chat" not in text(pilot).splitlines()[-1]
            drawn = app.dashboard.snapshot_panes[0].snapshot
            assert drawn is not None and drawn.memory == SNAPSHOT.memory, "to the byte"
            for key in ("c", "b", "3", "m", "s", "u", "e"):
                await pilot.press(key)
                await shows(pilot, BOX_READ_ONLY[:36])
                assert app.current_mode == "dashboard"
                app.clear_notifications()
            await pilot.press("5")
            await shows(pilot, "laptop", "generating")


async def test_a_lost_box_is_old_and_says_why_until_it_is_back(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "STALE_SECONDS", 0.0)
    with fake_gateway(paths) as gateway:
        gateway.answer = REFUSED
        async with GpuboxApp(RemoteServices(paths, Config(), gateway.url)).run_test(size=WIDE) as pilot:
            await shows(pilot, "The key of laptop has expired.", "Put its key into GPUBOX_URL_KEY")
            gateway.answer = (200, watched(SNAPSHOT, gateway.status))
            await shows(pilot, "● random-moe-17b")
            assert "expired" not in text(pilot)
            gateway.answer = (404, b"another program has the port now")
            await shows(pilot, "is no gateway of gpubox", "random-moe-17b", "no answer")
            await until(pilot, lambda: app_of(pilot).dashboard.header.stale)
            newer = replace(SNAPSHOT, time="2030-01-01T00:00:00.000Z")
            gateway.answer = (200, watched(newer, gateway.status))
            await until(pilot, lambda: "is no gateway" not in text(pilot) and "no answer" not in text(pilot))


async def test_who_may_only_watch_sees_nothing_of_this_machine(paths: Paths) -> None:
    """Even while nothing answers, or something else does."""
    paths.profiles.mkdir(parents=True)
    (paths.profiles / "private.toml").write_text('model = "x.gguf"\n')
    with fake_gateway(paths) as gateway:
        gateway.answer = (404, b"")
        services = RemoteServices(paths, Config(), gateway.url, box_only=True)
        async with GpuboxApp(services).run_test(size=WIDE, notifications=True) as pilot:
            await shows(pilot, "is no gateway of gpubox")
            await pilot.press("c")
            await shows(pilot, BOX_READ_ONLY[:36])
            assert app_of(pilot).current_mode == "dashboard" and "private" not in text(pilot)
