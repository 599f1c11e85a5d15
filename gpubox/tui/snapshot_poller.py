"""The loop that samples: the newest snapshot waits to be drawn, older ones are only kept as history."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING

from gpubox.errors import GpuboxError
from gpubox.threads import run_in_thread
from gpubox.tui.messages import ServerOverview, SnapshotTaken

if TYPE_CHECKING:
    from gpubox.telemetry.history import History
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.bridge import ServiceBridge

SNAPSHOT_SECONDS = 0.5
"""Between two samples while the server works: numbers that change faster cannot be read."""
REST_SECONDS = 1.0
"""Between two samples while nothing happens."""
LOOK_SECONDS = 0.25
"""How soon it is seen that something happens."""
RESTING = ("idle", "ready", "sleeping", "down")
BESIDE_SECONDS = 1.0
FAILED_SECONDS = 2.0
"""After a sample that failed the next is tried this much later."""


class SnapshotPoller:
    """Samples for one app. At most one message of it is ever under way: a slow terminal queues nothing."""

    def __init__(self, bridge: ServiceBridge) -> None:
        self.bridge = bridge
        self.history: History | None = None
        self.pending: Snapshot | None = None
        self.taken_at: float | None = None
        """By the loop's clock, when the last sample came."""
        self._beside: tuple[tuple[str, ...], str | None] = ((), None)
        self._beside_at = float("-inf")
        self._complained = False
        self._buried = False
        """Whether the death that is shown was seen to."""

    def take(self) -> Snapshot | None:
        """The newest snapshot that nobody has taken yet."""
        snapshot, self.pending = self.pending, None
        return snapshot

    async def run(self) -> None:
        """Samples until cancelled. What goes wrong in one sample is said once and does not end the loop."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                resting = await self.sample() and not self.bridge.busy
                self._complained = False
                rest = REST_SECONDS if resting else SNAPSHOT_SECONDS
            except (GpuboxError, OSError) as error:
                self._complain(str(error))
                rest, resting = FAILED_SECONDS, False
            except Exception as error:  # the screen outlives a mistake in a reader
                self.bridge.services.save_traceback(traceback.format_exc())
                self._complain(f"reading failed: {type(error).__name__}: {error}")
                rest, resting = FAILED_SECONDS, False
            await self._pause(began + rest, wake=resting)

    async def _pause(self, until: float, *, wake: bool) -> None:
        """Returns at ``until``, or with ``wake`` soon after something happened."""
        loop = asyncio.get_running_loop()
        activity_marker = await run_in_thread(self.bridge.services.activity_marker) if wake else None
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, LOOK_SECONDS) if wake else left)
            if wake and (
                self.bridge.busy or await run_in_thread(self.bridge.services.activity_marker) != activity_marker
            ):
                return
        await asyncio.sleep(0)  # a sample that took all the time must not keep the screen from the loop

    async def sample(self) -> bool:
        """Takes one snapshot and hands it on. Returns whether the server rests."""
        snapshot = await self.bridge.services.snapshot()
        loop = asyncio.get_running_loop()
        if self.history is None:
            from gpubox.telemetry.history import History

            self.history = History()
        self.taken_at = loop.time()
        self.history.push(snapshot)
        if loop.time() - self._beside_at >= BESIDE_SECONDS:
            self._beside, self._beside_at = await run_in_thread(self.bridge.services.beside), loop.time()
        companions, last = self._beside
        self.bridge.heard(ServerOverview(snapshot.server, companions, None if snapshot.server.pid else last))
        died = snapshot.server.state == "crashed" and not self.bridge.busy
        if died and not self._buried:
            await self.bridge.handle_crash()
        self._buried = died
        waiting, self.pending = self.pending is not None, snapshot
        if not waiting:
            self.bridge.app.post_message(SnapshotTaken())
        return snapshot.throughput.state in RESTING

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            self.bridge.complain(text)
