"""Services that play a recording: the same screen, fed with the snapshots of a file at the pace they were taken."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.tui.local_services import LocalServices
from gpubox.tui.messages import ServerOverview

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot


class ReplayServices(LocalServices):
    """Plays ``snapshots`` once and stops at the last one. Changes nothing on this machine."""

    def __init__(self, snapshots: Iterable[Snapshot], paths: Paths, config: Config, *, speed: float = 1.0) -> None:
        super().__init__(paths, config, url=None)
        self.snapshots = list(snapshots)
        if not self.snapshots:
            raise GpuboxError("The recording is empty.", "`gpubox record FILE` writes one.")
        self.speed = speed
        self.at = 0
        """Index of the current snapshot."""
        self.read_only = "This is a recording: nothing in it can be changed."
        self._started: float | None = None

    def clock(self) -> datetime:
        return datetime.fromisoformat(self.snapshots[self.at].time).astimezone()

    async def overview(self) -> ServerOverview:
        return ServerOverview(self.snapshots[self.at].server)

    async def snapshot(self) -> Snapshot:
        if self._started is None:
            self._started = time.monotonic()
        self.at = self.activity_marker()
        return self.snapshots[self.at]

    def activity_marker(self) -> int:
        elapsed = time.monotonic() - self._started if self._started is not None else 0.0
        played = self.snapshots[0].at + elapsed * self.speed
        at = self.at
        while at + 1 < len(self.snapshots) and self.snapshots[at + 1].at <= played:
            at += 1
        return at

    def companions_and_last(self) -> tuple[tuple[str, ...], str | None]:
        return (), None

    def read_log(self) -> list[str]:
        return []  # the log of this machine's server is no part of the recording


def open_recording(path: Path, paths: Paths, config: Config) -> ReplayServices:
    """The services that play the file. Raises GpuboxError if it is not a recording."""
    from gpubox.telemetry.recorder import read_recording

    return ReplayServices(read_recording(path), paths, config)
