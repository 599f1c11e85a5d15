"""A recording instead of this machine: the same screen, driven by the snapshots of a file at the pace they came."""

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
    """Plays ``snapshots`` once and then stands still at the last. Nothing on this machine is changed."""

    def __init__(self, snapshots: Iterable[Snapshot], paths: Paths, config: Config, *, speed: float = 1.0) -> None:
        super().__init__(paths, config, url=None)
        self.snapshots = list(snapshots)
        if not self.snapshots:
            raise GpuboxError("The recording is empty.", "`gpubox record FILE` writes one.")
        self.speed = speed
        self.at = 0
        self.read_only = "This is a recording: nothing in it can be changed."
        self._began: float | None = None

    def clock(self) -> datetime:
        return datetime.fromisoformat(self.snapshots[self.at].time).astimezone()

    async def now(self) -> ServerOverview:
        return ServerOverview(self.snapshots[self.at].server)

    async def snapshot(self) -> Snapshot:
        if self._began is None:
            self._began = time.monotonic()
        self.at = self.activity_marker()
        return self.snapshots[self.at]

    def activity_marker(self) -> int:
        played = self.snapshots[0].at + (time.monotonic() - (self._began or time.monotonic())) * self.speed
        at = self.at
        while at + 1 < len(self.snapshots) and self.snapshots[at + 1].at <= played:
            at += 1
        return at

    def beside(self) -> tuple[tuple[str, ...], str | None]:
        return (), None

    async def close(self) -> None:
        return None

    def read_log(self) -> list[str]:
        return []


def open_recording(path: Path, paths: Paths, config: Config) -> ReplayServices:
    """The services that play the file. Raises GpuboxError where it is none."""
    from gpubox.telemetry.recorder import read_recording

    return ReplayServices(read_recording(path), paths, config)
