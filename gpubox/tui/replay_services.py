"""A recording on the screen."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.tui.messages import ServerOverview
from gpubox.tui.services import LocalServices

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot

REPLAY_STEPS = 1000
"""Snapshots of a recording that are passed over at once: the screen must get its turn, however dense they are."""


class ReplayServices(LocalServices):
    """Plays ``snapshots`` once and stops at the last one. Changes nothing on this machine."""

    def __init__(self, snapshots: Iterable[Snapshot], paths: Paths, config: Config, *, speed: float = 1.0) -> None:
        super().__init__(paths, config, url=None)
        self._coming = iter(snapshots)
        first = next(self._coming, None)
        if first is None:
            raise GpuboxError("The recording is empty.", "`gpubox status --record FILE` writes one.")
        self.current, self.next = first, next(self._coming, None)
        """What is shown now, and what comes then; ``None`` at the end."""
        self._first_at, self.speed = first.at, speed
        self.read_only = "This is a recording: nothing in it can be changed."
        self._started: float | None = None

    def clock(self) -> datetime:
        return datetime.fromisoformat(self.current.time).astimezone()

    async def overview(self) -> ServerOverview:
        return ServerOverview(self.current.server)

    async def snapshot(self) -> Snapshot:
        if self._started is None:
            self._started = time.monotonic()
        for _ in range(REPLAY_STEPS):
            if self.next is None or not self.activity_marker():
                break
            self.current, self.next = self.next, None
            self.next = next(self._coming, None)
        return self.current

    def activity_marker(self) -> bool:
        elapsed = time.monotonic() - self._started if self._started is not None else 0.0
        return self.next is not None and self.next.at <= self._first_at + elapsed * self.speed

    def companions_and_last(self) -> tuple[tuple[str, ...], str | None]:
        return (), None


def open_recording(path: Path, paths: Paths, config: Config) -> ReplayServices:
    """The services that play the file. Raises GpuboxError if it is not a recording."""
    from gpubox.telemetry.recorder import read_recording

    return ReplayServices(read_recording(path), paths, config)
