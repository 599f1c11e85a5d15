"""How a server is ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from gpubox.hardware.process import identity_of, is_alive
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
