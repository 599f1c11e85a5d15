"""Asks the advisor every few seconds, in a thread, about what runs. Shows the answer if it changed."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING

from gpubox.errors import GpuboxError
from gpubox.threads import run_in_thread
from gpubox.tui.messages import AdviceChanged

if TYPE_CHECKING:
    from gpubox.advisor.advisor import AdviceList
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bridge import ServiceBridge

ADVICE_SECONDS = 4.0
FIRST_ADVICE_SECONDS = 3.0
"""The screen opens, and the first readings come, before the advisor's modules are imported."""


class AdvicePoller:
    """Keeps the newest advice."""

    def __init__(self, bridge: ServiceBridge) -> None:
        self.bridge = bridge
        self.advice: AdviceList | None = None
        self._read: object = None
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Polls until cancelled."""
        await asyncio.sleep(FIRST_ADVICE_SECONDS)
        while True:
            snapshot = self.bridge.poller.newest
            # At rest the same readings come again and again: nothing new can be said of them.
            read = _marker(snapshot)
            if read != self._read:
                self._read = read
                await self.poll()
            await asyncio.sleep(ADVICE_SECONDS)

    async def poll(self) -> None:
        """Asks once."""
        services, snapshot = self.bridge.services, self.bridge.poller.newest
        async with self._lock:
            try:
                advice = await run_in_thread(services.advice, snapshot) if snapshot else None
            except GpuboxError:
                advice = None
            except Exception:  # a bug in a rule must not end the screen
                services.save_traceback(traceback.format_exc())
                advice = None
            if advice != self.advice:
                self.advice = advice
                self.bridge.app.post_message(AdviceChanged())


def _marker(snapshot: Snapshot | None) -> object:
    """What of the readings an advice can change with, while the server does nothing."""
    if snapshot is None:
        return None
    server, speeds = snapshot.server, snapshot.throughput
    busy = snapshot.at if speeds.working else None
    host = next((device.on_disk_bytes for device in snapshot.memory if device.kind == "host"), None)
    others = [device.other_processes_bytes for device in snapshot.memory if device.kind == "gpu"]
    return server.pid, server.started_at, server.profile, speeds.state, busy, len(snapshot.requests), host, others
