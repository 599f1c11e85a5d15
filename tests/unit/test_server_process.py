"""How a server is ended."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from gpubox import clock
from gpubox.errors import GpuboxError
from gpubox.hardware.process import identity_of, is_alive
from gpubox.server import server_process
from gpubox.server.server_process import terminate_server

SLOW = """
import signal, time
signal.signal(signal.SIGTERM, lambda *a: (time.sleep(0.4), exit()))
print(1, flush=True)
while True: time.sleep(1)
"""


@pytest.mark.parametrize("interrupts", [1, 3])
async def test_a_stop_that_is_interrupted_ends_only_with_the_server(interrupts: int) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SLOW, stdout=subprocess.PIPE)
    assert server.stdout and await server.stdout.read(1) == b"1"
    process = identity_of(server.pid)
    assert process
    stopping = asyncio.ensure_future(terminate_server(process, "no such marker", 30))
    for _ in range(interrupts):
        await asyncio.sleep(0.05)  # it has its SIGTERM and still lives
        assert is_alive(process)
        stopping.cancel()

    with pytest.raises(asyncio.CancelledError):
        await stopping

    assert not is_alive(process)
    await server.wait()


async def test_a_pause_of_the_machine_is_no_patience_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SLOW, stdout=subprocess.PIPE)
    assert server.stdout and await server.stdout.read(1) == b"1"
    process = identity_of(server.pid)
    assert process
    looks = itertools.count()
    alive = [True] * 3  # it takes a moment to disappear after SIGKILL, and just then everything is paused for 20 s
    paused = SimpleNamespace(monotonic=lambda: time.monotonic() + 20 * (next(looks) > 2))
    monkeypatch.setattr(server_process, "is_alive", lambda each: bool(alive and alive.pop()) or is_alive(each))
    monkeypatch.setattr(clock, "time", paused)

    await terminate_server(process, "no such marker", 0)

    assert not is_alive(process)
    await server.wait()


@pytest.mark.parametrize(("states", "says"), [("DS", "hangs in the kernel"), ("S", "states of its threads: S")])
async def test_a_server_that_survives_sigkill_is_said_to_hang_only_if_it_does(
    monkeypatch: pytest.MonkeyPatch, states: str, says: str
) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    process = identity_of(server.pid)
    assert process
    monkeypatch.setattr(server_process, "_signal", lambda *_: None)
    monkeypatch.setattr(server_process, "KILL_SECONDS", 0.05)
    monkeypatch.setattr(server_process, "thread_states", lambda pid: states)

    with pytest.raises(GpuboxError, match=says) as refused:
        await terminate_server(process, "no such marker", 0)

    assert ("reboot" in refused.value.hint) == (states == "DS")
    server.kill()
    await server.wait()
