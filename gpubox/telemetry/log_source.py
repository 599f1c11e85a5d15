"""Follows the log of one launch and passes its events on. Never raises for what the log holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gpubox.hardware.process import moved_stdout
from gpubox.server.log import (
    ENDED,
    HEAD_BYTES,
    LINE_BYTES,
    LogReader,
    count_ended_requests,
    parse_line,
    rotated_path,
    tail_text,
)
from gpubox.server.log_events import ContextCheckpoint, LogCut, LogSection, PromptCacheSize, PromptCleared, SleepState
from gpubox.server.log_parsing import parse_event
from gpubox.server.state import RestoredSlot
from gpubox.telemetry.device_memory import MemoryBreakdown
from gpubox.telemetry.requests import PromptCacheState, RequestLog
from gpubox.telemetry.snapshot import Request

TAIL_BYTES = 1024 * 1024
"""Of a log that is already long, only its load (HEAD_BYTES) and this end are read."""
TICK_BYTES = 512 * 1024
FLOOD_SECONDS = 60.0
"""How long a skipped part of the log is reported."""
LATE_SECONDS = 30.0
"""A server writes its first line within milliseconds of its start."""


class ContextCheckpoints:
    """The context checkpoints in host memory, by slot.

    The log does not list a checkpoint that was restored from the prompt cache, so those are not counted.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, dict[int, int]] = {}
        """Slot -> position in tokens -> bytes."""

    def feed(self, event: ContextCheckpoint) -> None:
        """Adds or removes one checkpoint."""
        sizes = self._sizes.setdefault(event.slot, {})
        sizes.pop(event.tokens, None)
        if event.erased:
            return
        while len(sizes) >= max(1, event.number):  # the event counts them: the oldest were dropped
            del sizes[min(sizes)]
        sizes[event.tokens] = event.size_bytes

    def clear(self, slot: int | None = None) -> None:
        """Removes the checkpoints of a slot whose prompt was cleared; without ``slot``, all of them."""
        if slot is None:
            self._sizes.clear()
        else:
            self._sizes.pop(slot, None)

    @property
    def size_bytes(self) -> int:
        """All of them together."""
        return sum(size for sizes in self._sizes.values() for size in sizes.values())


class LogSource:
    """Everything that gpubox knows from the log of one launch."""

    def __init__(
        self,
        path: Path,
        started: datetime,
        *,
        probe: bool = False,
        clock: Callable[[], float] | None = None,
        pid: int | None = None,
        restored: tuple[RestoredSlot, ...] = (),
    ) -> None:
        """``started`` is the wall time of the server's start, ``clock`` the seconds since.

        ``probe``: one of the first requests is gpubox's readiness probe. ``pid`` is the process that writes the log: if
        the file was renamed, the process goes on writing into it, and it is followed there. ``restored``: see
        ``RequestLog``.
        """
        self.path = path
        self.breakdown = MemoryBreakdown()
        prompt_cache = PromptCacheState(restarted=rotated_path(path, 1).exists())
        self.requests = RequestLog(started, skip_probe=probe, prompt_cache=prompt_cache, restored=restored)
        self.checkpoints = ContextCheckpoints()
        self.cache_bytes: int | None = None
        self.cache_limit_bytes: int | None = None
        self.asleep = False
        self.complete = True
        """Every line of the launch was read, so the list of requests is complete."""
        self.uncounted = ""
        """Why the number of requests is unknown; empty if it is known."""
        self.skipped_bytes = 0
        self._skipped_at = float("-inf")
        self._clock = clock or (lambda: (datetime.now(UTC) - started).total_seconds())
        self._probes = int(probe)
        self._pid = pid
        self._moved_to = ""
        self._reader = LogReader(path)
        self._starting = True
        self._read_beginning()
        self._starting = False

    def _read_beginning(self) -> None:
        # At once and not in ticks, because a verb that takes one snapshot needs the present state.
        self._locate()
        with contextlib.suppress(OSError):
            size = self._reader.path.stat().st_size
            if size > HEAD_BYTES + TAIL_BYTES:
                for line in self._reader.read(HEAD_BYTES):
                    self._feed(line)
                self._skip(TAIL_BYTES)
            for line in self._reader.read(HEAD_BYTES + TAIL_BYTES):
                self._feed(line)
        if _begins_late(self._reader.path):
            self.complete, self.uncounted = False, "another program truncated the log: its old requests are not counted"

    def read(self) -> list[Request]:
        """Reads what was written since the last call, up to TICK_BYTES. Returns the requests that ended.

        Skips ahead in a log that grows faster than this, so that the screen does not fall behind.
        """
        self._locate()
        if self._reader.behind() > 4 * TICK_BYTES:
            self._skip(TICK_BYTES)
            self._skipped_at = self._clock()
        return [request for line in self._reader.read(TICK_BYTES) if (request := self._feed(line))]

    @property
    def problem(self) -> str:
        """What cannot be read from the log, and why; empty if nothing is missing."""
        try:
            self._reader.path.stat()
        except OSError as error:
            return f"the log cannot be read ({error.strerror}): no new requests"
        if self._clock() - self._skipped_at < FLOOD_SECONDS:
            return f"the log grows too fast: {self.skipped_bytes >> 20} MiB of it were skipped"
        if self._moved_to:
            return f"the server writes its log to {self._moved_to}: gpubox reads it there, but `gpubox logs` does not"
        return "" if self.complete else "the log is long: requests before its last part are not listed"

    def _locate(self) -> None:
        moved = moved_stdout(self._pid, self.path) if self._pid is not None else None
        self._reader.path, self._moved_to = moved or (self.path, "")

    def _skip(self, keep: int) -> None:
        begin = self._reader.offset
        skipped = self._reader.skip(keep)
        self.skipped_bytes += skipped
        self.complete = False
        ended = count_ended_requests(self._reader.path, begin, begin + skipped)
        if ended is None:
            self.uncounted = "a part of the log is too long: its requests are not counted"
        else:
            self.requests.count_unread(ended)
        self.requests.forget()

    def _feed(self, line: str) -> Request | None:
        at, event = parse_event(line)
        match event:
            case None:
                return None
            case LogCut():
                self._pass_cut(event.ended)
                return None
            case SleepState():
                self.asleep = event.asleep
                if event.asleep:
                    self.breakdown.unload()
                    self.checkpoints.clear()
                    self.cache_bytes = None
                    self.requests.prompt_cache.forget(slept=True)
            case PromptCacheSize():
                self.cache_bytes, self.cache_limit_bytes = event.size_bytes, event.limit_bytes
            case ContextCheckpoint():
                self.checkpoints.feed(event)
            case PromptCleared():
                self.checkpoints.clear(event.slot)
            case LogSection(name="listening"):
                self.asleep = False
            case _:
                pass
        self.breakdown.feed(event)
        return self.requests.feed(at, event, seen=self._clock())

    def _pass_cut(self, ended: int | None) -> None:
        """Continues after a cut, before which ``ended`` requests had ended.

        A log that is opened after the cut takes its last requests from the part that was moved aside.
        """
        ended = max(0, ended - self._probes) if ended is not None else None
        if self._starting:
            self.complete = self.requests.skip_probe = False
            self.requests.forget()
            if ended is None:
                self.uncounted = "the log was truncated: the requests in the removed part are not counted"
            self._read_moved_part(ended or 0)
        if ended is not None:  # the cut may have come before the last lines were read
            self.requests.count = ended

    def _read_moved_part(self, ended: int) -> None:
        lines = tail_text(rotated_path(self.path, 1), TAIL_BYTES).splitlines()[1:]
        self.requests.count = max(0, ended - sum(bool(ENDED.search(line.encode())) for line in lines))
        for line in lines:
            at, event = parse_event(line)
            if isinstance(event, SleepState):
                self.asleep = event.asleep
            elif event:
                self.requests.feed(at, event, seen=self._clock())


def _begins_late(path: Path) -> bool:
    """Whether the first time in the log is long after the server's start."""
    try:
        with path.open("rb") as file:
            lines = file.read(LINE_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return False
    first = next((at for line in lines if (at := parse_line(line).seconds) is not None), None)
    return first is not None and first > LATE_SECONDS
