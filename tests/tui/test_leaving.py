"""Leaving: the server keeps running, no operation is cut off between two servers, a crash is reported."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from textual.widget import MountError

from gpubox.clock import utc_now
from gpubox.errors import GpuboxError
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.server.events import Step, StepDone, StepStarted
from gpubox.server.state import GatewayRecord, InstanceState, Launch, RunningServer, save_gateway, save_state
from gpubox.tui import run
from gpubox.tui.app import GpuboxApp
from gpubox.tui.run import exit_summary, run_app
from tests.conftest import WAIT_SECONDS
from tests.tui.conftest import app_of, choose, on_dashboard, text, until
from tests.tui.fake import READY, FakeServices, Gate, switch_events


async def test_q_leaves_at_once_when_nothing_is_under_way(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await pilot.press("q")
        await until(pilot, lambda: app._exit)
    assert app.return_value is False


async def test_q_waits_for_the_end_of_a_switch(fake: FakeServices) -> None:
    gate = Gate(threading.Event())
    fake.script = switch_events(gate=gate)
    async with on_dashboard(fake, notifications=True) as pilot:
        app = app_of(pilot)
        await choose(pilot, "qwen36-256k")
        await until(pilot, lambda: "12.9 of" in text(pilot))
        await pilot.press("q")
        await until(pilot, lambda: "The switch is under way" in text(pilot))
        assert not app._exit
        gate.open.set()
        await until(pilot, lambda: app._exit)
    assert app.return_value is False


async def test_a_second_q_leaves_a_loading_server_to_itself(fake: FakeServices) -> None:
    gate = Gate(threading.Event())
    fake.script = switch_events(gate=gate)
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await choose(pilot, "qwen36-256k")
        await until(pilot, lambda: "12.9 of" in text(pilot))
        await pilot.press("q", "q")
        await until(pilot, lambda: app._exit)
    assert app.return_value is True, "the caller leaves the operation's thread behind"
    gate.open.set()


async def test_never_leaves_between_two_servers(fake: FakeServices) -> None:
    gate = Gate(threading.Event())
    fake.script = [StepStarted(Step.STOP, "a"), gate, StepDone(Step.STOP, "a", 0.1), StepStarted(Step.LOAD, "b"),
                   Gate(threading.Event())]  # fmt: skip
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        await choose(pilot, "mine")
        await until(pilot, lambda: "stop …" in text(pilot))
        await pilot.press("q", "q", "q")
        assert not app._exit
        gate.open.set()
        await until(pilot, lambda: app._exit)
    assert app.return_value is True
    fake.cancel()


def test_the_exit_summary_says_what_keeps_running(paths: Paths) -> None:
    launch = Launch("demo", ("llama-server",), "127.0.0.1", 37121)
    me = own_identity()
    running = RunningServer(launch, "id", utc_now(), me, ready_at=utc_now())
    save_state(paths.instance_state("main"), InstanceState(running=running))
    summary = exit_summary(paths)
    assert f"demo keeps running at http://127.0.0.1:37121 (pid {me.pid})." in summary
    assert "gpubox stop" in summary
    save_state(paths.instance_state("main"), InstanceState(running=replace(running, ready_at=None)))
    assert "demo continues to load" in exit_summary(paths)
    save_state(paths.instance_state("main"), InstanceState(message="demo was stopped."))
    assert exit_summary(paths) == "Nothing runs: demo was stopped.\n"
    assert exit_summary(replace(paths, state=paths.state / "none")) == ""
    save_gateway(paths, GatewayRecord(me, "127.0.0.1", 8080, "token", utc_now()))
    assert "The gateway keeps running at http://127.0.0.1:8080" in exit_summary(paths)


def test_a_broken_screen_is_one_sentence(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeServices()

    class Broken(GpuboxApp):
        def on_mount(self) -> None:
            raise RuntimeError("boom")

        def run(self, **_: object) -> bool | None:
            return super().run(headless=True)

    monkeypatch.setattr(run, "GpuboxApp", lambda services, start: Broken(fake))
    with pytest.raises(GpuboxError, match="The screen crashed: RuntimeError: boom"):
        run_app(paths, None)  # type: ignore[arg-type]
    assert "boom" in fake.kept and READY.profile


def test_a_terminal_that_goes_without_a_signal_takes_the_screen_with_it() -> None:
    """``docker exec``, a pty that controls nothing: no SIGHUP comes."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "gpubox"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as process:
        os.close(slave)
        seen = b""
        while b"\x1b[?1049h" not in seen:  # the screen is on
            seen += os.read(master, 65536)
        os.close(master)
        assert process.wait(WAIT_SECONDS) == 128 + 1


async def test_what_still_draws_while_the_screen_closes_fails_nothing(fake: FakeServices) -> None:
    async with on_dashboard(fake) as pilot:
        app = app_of(pilot)
        app.exit(False)
        with pytest.raises(MountError) as failed:
            app.dashboard.mount_content()
        app._handle_exception(failed.value)
    assert not app.crash
