"""The requests of launches that ended while no gpubox looked, read from the logs that are still on disk.

Unlike ``log_source``, which keeps up with what happens now, this reads every line, in small steps.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from gpubox.hardware.host import process_age
from gpubox.hardware.process import is_alive
from gpubox.server.log import HEAD_BYTES, LINE_BYTES, last_cut_at, rotated_path
from gpubox.server.log_events import LogCut
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RunningServer, read_launch_record
from gpubox.storage import open_regular
from gpubox.telemetry.requests import PromptCacheState, RequestLog
from gpubox.telemetry.snapshot import Request

STEP_BYTES = 128 * 1024
"""Read at once, in a few milliseconds."""


class LaunchLog:
    """The log of one launch, read from its first line to its last, and on while the launch writes."""

    def __init__(self, path: Path, running: RunningServer, read_part: tuple[int, int] = (0, 0)) -> None:
        """``read_part``: bytes that were read before, and the requests that ended in them; see ``read_part`` below.

        Raises OSError if the log cannot be opened.
        """
        self.path, self.running = path, running
        self._file: BinaryIO = open_regular(path)
        self._aside: BinaryIO | None = None
        self._in_head = False
        """Whether the lines up to the cut are passed over: they were read before."""
        self._partial = b""
        self._probes = int(running.logs_probe)
        restarted = rotated_path(path, 1).exists()
        self.requests = RequestLog(
            self._started(), skip_probe=running.logs_probe, prompt_cache=PromptCacheState(restarted=restarted),
            restored=running.restored,
        )  # fmt: skip
        offset, count = read_part
        if not self._open_aside() and 0 < offset <= self.size:
            self._file.seek(offset)
            self.requests.count, self.requests.skip_probe = count, False

    @property
    def changed_at(self) -> float:
        """When the launch last wrote, in unix seconds."""
        return os.fstat(self._file.fileno()).st_mtime

    @property
    def size(self) -> int:
        """The length of the log in bytes."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def read_part(self) -> tuple[int, int] | None:
        """Where another reader can go on; None in the middle of a request, whose begin it would miss."""
        if self.requests.in_flight or self.requests.skip_probe or self._aside is not None:
            return None
        return self._file.tell() - len(self._partial), self.requests.count

    def read(self) -> list[Request] | None:
        """The requests that ended in the next STEP_BYTES; None at the end of the log."""
        file = self._aside or self._file
        if file is self._file and file.tell() > self.size:  # it was cut: the lines of the load are known
            file.seek(0)
            self._partial, self._in_head = b"", True
        data = file.read(STEP_BYTES)
        if not data:
            if self._aside is None:
                return None
            self._aside.close()
            self._aside, self._partial, self._in_head = None, b"", True
            return []
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[:LINE_BYTES]
        return [request for line in lines if (request := self._feed(line)) is not None]

    def close(self) -> None:
        for file in (self._file, self._aside):
            if file is not None:
                file.close()

    def _feed(self, line: bytes) -> Request | None:
        at, event = parse_event(line[:LINE_BYTES].decode("utf-8", errors="replace").rstrip("\r"))
        if event is None or (self._in_head and not isinstance(event, LogCut)):
            return None
        if isinstance(event, LogCut):
            self._in_head = False
            ended = None if event.ended is None else max(0, event.ended - self._probes)
            if ended != self.requests.count:  # lines are missing between what was read and what follows
                self.requests.forget()
                self.requests.skip_probe = False
                self.requests.count = self.requests.count if ended is None else ended
            return None
        return self.requests.feed(at, event)

    def _open_aside(self) -> bool:
        """Opens the text that was cut out of this log, which comes first. It has no record of its own.

        Returns whether the log was cut.
        """
        aside = rotated_path(self.path, 1)
        is_cut = last_cut_at(self._file.read(HEAD_BYTES + LINE_BYTES)) is not None
        self._file.seek(0)
        if is_cut and read_launch_record(aside) is None:
            with contextlib.suppress(OSError):
                self._aside = open_regular(aside)
        return is_cut

    def _started(self) -> datetime:
        """The wall time of the second 0 of its log."""
        process = self.running.process
        if is_alive(process) and process is not None:
            return datetime.now(UTC) - timedelta(seconds=process_age(process))
        try:
            return datetime.fromisoformat(self.running.started_at)
        except ValueError:
            return datetime.fromtimestamp(time.time(), UTC)
