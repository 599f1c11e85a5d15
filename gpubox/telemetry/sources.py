"""The readers of one server: its log file and its HTTP side. Each keeps its own pace and never raises."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpubox.server.client import LlamaClient, Slot
from gpubox.server.log import LogReader
from gpubox.server.logevents import CacheState, Checkpoint, Released, Section, Sleeping, event_of
from gpubox.telemetry.model import Request
from gpubox.telemetry.requests import RequestLog
from gpubox.telemetry.split import SplitLog

HEAD_BYTES, TAIL_BYTES = 512 * 1024, 1024 * 1024
"""What is read of a log that is already long: its load, and its last requests."""
TICK_BYTES = 512 * 1024
POLL_SECONDS = 0.25
IDLE_POLL_SECONDS = 1.0
"""At rest each poll of /slots costs the server a line of log."""
STALE_SECONDS = 2.0


class LogSource:
    """Follows the log of one launch and folds its events."""

    def __init__(self, path: Path, started: datetime, *, proof: bool = False) -> None:
        """``proof``: the first request is gpubox's own."""
        self.split = SplitLog()
        self.requests = RequestLog(started, skip_proof=proof)
        self.cache_bytes: int | None = None
        self.cache_limit_bytes: int | None = None
        self.checkpoints: dict[int, dict[int, int]] = {}
        self.asleep = False
        self.complete = True
        """Whether every line of the launch was read: else counts of requests are not known."""
        self.skipped_bytes = 0
        self._path = path
        self._reader = LogReader(path)
        self._begin()

    def _begin(self) -> None:
        with contextlib.suppress(OSError):
            size = self._path.stat().st_size
            if size > HEAD_BYTES + TAIL_BYTES:
                for line in self._reader.read(HEAD_BYTES):
                    self._feed(line)
                self.skipped_bytes += self._reader.skip(keep=TAIL_BYTES)
                self.complete = False

    def read(self) -> list[Request]:
        """Takes in what was written since the last call, at most a tick's worth; returns the requests that ended.

        A log that floods faster than it can be read is skipped ahead: the screen must not fall behind for ever.
        """
        behind = self._reader.behind()
        if behind > 4 * TICK_BYTES:
            self.skipped_bytes += self._reader.skip(keep=TICK_BYTES)
            self.complete = False
        return [request for line in self._reader.read(TICK_BYTES) if (request := self._feed(line))]

    def _feed(self, line: str) -> Request | None:
        at, event = event_of(line)
        match event:
            case None:
                return None
            case Sleeping():
                self.asleep = event.asleep
            case CacheState():
                self.cache_bytes, self.cache_limit_bytes = event.size_bytes, event.limit_bytes
            case Checkpoint():
                held = self.checkpoints.setdefault(event.slot, {})
                if event.erased:
                    if held:
                        held.pop(min(held))
                else:
                    for number in [n for n in held if n >= event.number]:
                        del held[number]
                    held[event.number] = event.size_bytes
            case Section(name="listening"):
                self.asleep = False
            case Released():
                return self.requests.feed(at, event)
            case _:
                self.split.feed(event)
                return self.requests.feed(at, event)
        self.split.feed(event)
        return None

    @property
    def checkpoints_bytes(self) -> int:
        """Host memory in context checkpoints, as far as the log told of them."""
        return sum(size for held in self.checkpoints.values() for size in held.values())


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What the HTTP side said last. ``at`` is when it answered, monotonic."""

    at: float
    status: str
    """ok | loading | unreachable | error, as of /health and /slots"""
    slots: tuple[Slot, ...] | None = None
    counters: dict[str, float] | None = None
    denied: bool = False


class ServerSource:
    """Asks one server at its own pace in a task of its own, so that a server that hangs delays nothing."""

    def __init__(self, base_url: str, key: str | None, *, may_ask_slots: bool) -> None:
        self.client = LlamaClient(base_url, key, timeout=STALE_SECONDS)
        self.may_ask_slots = may_ask_slots
        self.answers: list[ServerAnswer] = []
        """Every answer since they were last taken, oldest first."""
        self.latest: ServerAnswer | None = None
        self.asking_since: float | None = None
        self._counters: dict[str, float] | None = None
        self._want_counters = True
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def hurry(self) -> None:
        """Has an idle server asked at once: its log says that it took a request."""
        self._hurry.set()

    def start(self) -> None:
        """Begins to ask, every POLL_SECONDS."""
        self._task = asyncio.create_task(self._run(), name="server-source")

    def want_counters(self) -> None:
        """Has the next poll read ``/metrics``: they change when a request ends, and a scrape disturbs others."""
        self._want_counters = True

    def take(self) -> list[ServerAnswer]:
        """The answers since the last call."""
        taken, self.answers = self.answers, []
        return taken

    async def close(self) -> None:
        """Ends the asking."""
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.client.close()

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            await self.ask()
            busy = self.latest is None or self.latest.slots is None or any(s.busy for s in self.latest.slots)
            pause = POLL_SECONDS if busy else IDLE_POLL_SECONDS
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.02, pause - (time.monotonic() - began))):
                    await self._hurry.wait()

    async def ask(self) -> ServerAnswer:
        """Asks once."""
        self.asking_since = time.monotonic()
        slots = await self.client.slots() if self.may_ask_slots else None
        at = time.monotonic()
        if slots is None:
            health = await self.client.health()
            status = health.status
        else:
            status = "ok"
        if status == "ok" and self._want_counters:
            self._want_counters = False
            self._counters = await self.client.counters()
        answer = ServerAnswer(
            at, status, tuple(slots) if slots is not None else None, self._counters, self.client.denied
        )
        self.asking_since = None
        self.latest = answer
        self.answers = [*self.answers[-63:], answer]
        return answer
