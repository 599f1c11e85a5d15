"""The readers of one server: its log file and its HTTP side. Each keeps its own pace and never raises."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gpubox.hardware.process import moved_stdout
from gpubox.server.log import HEAD_BYTES, LINE_BYTES, LogReader, parse_line, rotated_path, tail_text
from gpubox.server.log_events import (
    ContextCheckpoint,
    LogCut,
    LogSection,
    PromptCacheSize,
    PromptCleared,
    SleepState,
    SlotReleased,
)
from gpubox.server.log_parsing import parse_event
from gpubox.server.log_truncation import ENDED, count_ended_requests
from gpubox.server.other_server import LLAMA, OtherServerReading
from gpubox.server.responses import DEFERRED, PROCESSING, Health, Slot
from gpubox.telemetry.cache_miss import PromptCacheState
from gpubox.telemetry.checkpoints import ContextCheckpoints
from gpubox.telemetry.memory_breakdown import MemoryBreakdown
from gpubox.telemetry.requests import RequestLog
from gpubox.telemetry.snapshot import Request

TAIL_BYTES = 1024 * 1024
"""What is read of a log that is already long: its load (HEAD_BYTES), and its last requests."""
TICK_BYTES = 512 * 1024
FLOOD_SECONDS = 60.0
"""How long it is said that a part of the log was left out."""
LATE_SECONDS = 30.0
"""A server writes its first line within milliseconds of its start."""
POLL_SECONDS = 0.25
IDLE_POLL_SECONDS = 1.0
"""At rest each poll of /slots costs the server a line of log."""
QUEUE_SECONDS = 2.0
"""How often a server whose slots are all busy is asked how many requests wait."""
STALE_SECONDS = 2.0
RETRY_SECONDS = 10.0
"""How often /metrics is tried again where it did not answer."""
MOST_TOKENS = 2**53


class LogSource:
    """Follows the log of one launch and folds its events."""

    def __init__(
        self,
        path: Path,
        started: datetime,
        *,
        proof: bool = False,
        clock: Callable[[], float] | None = None,
        pid: int | None = None,
    ) -> None:
        """``proof``: the first request is gpubox's own. ``clock``: seconds since the server's start.

        ``pid``: who writes the log. A server whose log is renamed writes on into the old file, and is followed there.
        """
        self.split = MemoryBreakdown()
        kept = PromptCacheState(restarted=rotated_path(path, 1).exists())
        self.requests = RequestLog(started, skip_proof=proof, kept=kept)
        self.cache_bytes: int | None = None
        self.cache_limit_bytes: int | None = None
        self.checkpoints = ContextCheckpoints()
        self.asleep = False
        self.complete = True
        """Whether every line of the launch was read: else the list of requests is not whole."""
        self.uncounted = ""
        """Why the number of requests is not known; empty where it is: what was not read was counted."""
        self.skipped_bytes = 0
        self._flooded = float("-inf")
        self._clock = clock or (lambda: (datetime.now(UTC) - started).total_seconds())
        self.path = path
        self._own = int(proof)
        self._pid = pid
        self._moved_to = ""
        self._reader = LogReader(path)
        self._beginning = True
        self._begin()
        self._beginning = False

    def _begin(self) -> None:
        # All at once: who looks but once must not be told the state of a while ago.
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
            self.complete, self.uncounted = False, "another program cut the log: what it held is not counted"

    def read(self) -> list[Request]:
        """Takes in what was written since the last call, at most a tick's worth; returns the requests that ended.

        A log that floods faster than it can be read is skipped ahead: the screen must not fall behind for ever.
        """
        self._locate()
        behind = self._reader.behind()
        if behind > 4 * TICK_BYTES:
            self._skip(TICK_BYTES)
            self._flooded = self._clock()
        return [request for line in self._reader.read(TICK_BYTES) if (request := self._feed(line))]

    @property
    def problem(self) -> str:
        """What the log cannot tell, and why; empty while all is well."""
        try:
            self._reader.path.stat()
        except OSError as error:
            return f"the log cannot be read ({error.strerror}): no new requests"
        if self._clock() - self._flooded < FLOOD_SECONDS:
            return f"the log grows too fast: {self.skipped_bytes >> 20} MiB of it were not read"
        if self._moved_to:
            return f"the server writes its log to {self._moved_to}: it is read there, `gpubox logs` does not show it"
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
            self.uncounted = "a part of the log is too long to be counted"
        else:
            self.requests.left_out(ended)
        self.requests.forget()

    def _feed(self, line: str) -> Request | None:
        at, event = parse_event(line)
        match event:
            case None:
                return None
            case SleepState():
                self.asleep = event.asleep
                if event.asleep:
                    self.split.unload()
                    self.checkpoints.clear()
                    self.requests.kept.forget(slept=True)
            case PromptCacheSize():
                self.cache_bytes, self.cache_limit_bytes = event.size_bytes, event.limit_bytes
            case ContextCheckpoint():
                self.checkpoints.feed(event)
                return self.requests.feed(at, event, seen=self._clock())
            case PromptCleared():
                self.checkpoints.clear(event.slot)
                return self.requests.feed(at, event, seen=self._clock())
            case LogSection(name="listening"):
                self.asleep = False
            case LogCut():
                self._pass_cut(event.ended)
                return None
            case SlotReleased():
                return self.requests.feed(at, event, seen=self._clock())
            case _:
                self.split.feed(event)
                return self.requests.feed(at, event, seen=self._clock())
        self.split.feed(event)
        return None

    def _pass_cut(self, ended: int | None) -> None:
        """Goes on behind a cut. Who begins to read takes in the last requests of what was cut out; of the load, what
        stays tells."""
        ended = max(0, ended - self._own) if ended is not None else None
        if self._beginning:
            self.complete = self.requests.skip_proof = False
            self.requests.forget()
            if ended is None:
                self.uncounted = "the log was cut, and what was cut out was not counted"
            self._read_aside(ended or 0)
        if ended is not None:  # also where the cut came before the last lines were read
            self.requests.count = ended

    def _read_aside(self, ended: int) -> None:
        lines = tail_text(rotated_path(self.path, 1), TAIL_BYTES).splitlines()[1:]
        self.requests.count = max(0, ended - sum(ENDED.decode() in line for line in lines))
        for line in lines:
            at, event = parse_event(line)
            if isinstance(event, SleepState):
                self.asleep = event.asleep
            elif event:
                self.requests.feed(at, event, seen=self._clock())

    @property
    def checkpoints_bytes(self) -> int:
        """Host memory in context checkpoints, as far as the log told of them."""
        return self.checkpoints.size_bytes


def _begins_late(path: Path) -> bool:
    """Whether the first line of a log with times is of a server that runs for a while already."""
    try:
        with path.open("rb") as file:
            lines = file.read(LINE_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return False
    first = next((at for line in lines if (at := parse_line(line).seconds) is not None), None)
    return first is not None and first > LATE_SECONDS


@dataclass(frozen=True, slots=True)
class HttpReading:
    """What the HTTP side said last. ``at`` is when it answered, monotonic."""

    at: float
    status: str
    """ok | loading | unreachable | error, as of /health and /slots"""
    slots: tuple[Slot, ...] | None = None
    counters: dict[str, float] | None = None
    denied: bool = False
    detail: str = ""
    """Why it does not answer, in a word."""
    too_long: str = ""
    """What it sent too much of, in a sentence."""
    asleep: bool = False
    """It says that it sleeps; it was asked nothing that would wake it."""
    other_server: OtherServerReading | None = None
    """What a server says that is no llama-server."""

    @property
    def busy(self) -> bool | None:
        """Whether it works on any request; ``None`` where nothing tells."""
        if self.slots is not None:
            return any(slot.busy for slot in self.slots)
        working = (self.counters or {}).get(PROCESSING)
        return None if working is None else working > 0

    @property
    def queued(self) -> int | None:
        """Requests that wait for a slot: none where one is free; else what ``/metrics`` says."""
        if self.slots and not all(slot.busy for slot in self.slots):
            return 0
        waiting = (self.counters or {}).get(DEFERRED)
        return int(waiting) if waiting is not None and 0 <= waiting < MOST_TOKENS else None


class HttpSource:
    """Asks one server at its own pace in a task of its own, so that a server that hangs delays nothing."""

    def __init__(self, base_url: str, key: str | None, *, may_ask_slots: bool, foreign: bool = False) -> None:
        """``foreign``: its command line and its log are not known, it is asked whether it sleeps."""
        from gpubox.server.client import LlamaClient  # httpx only where there is a server to ask

        self.client = LlamaClient(base_url, key, timeout=STALE_SECONDS)
        self.key = key
        self.may_ask_slots = may_ask_slots
        self._foreign = foreign
        self._dialect = "" if foreign else LLAMA
        """Of what answers there; empty while that is not known."""
        self._recognised_at = float("-inf")
        self.answers: list[HttpReading] = []
        """Every answer since they were last taken, oldest first."""
        self.latest: HttpReading | None = None
        self.asking_since: float | None = None
        self._counters: dict[str, float] | None = None
        self._counters_denied = False
        self._want_counters = True
        self._retry_at = float("inf")
        self._counted_at = float("-inf")
        self._hurry = asyncio.Event()
        self._answered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def poll_now(self) -> None:
        """Has an idle server asked at once: its log says that it took a request."""
        self._hurry.set()

    def start(self) -> None:
        """Begins to ask, every POLL_SECONDS."""
        self._task = asyncio.create_task(self._run(), name="server-source")

    def forget(self) -> None:
        """What it answered until now tells nothing any more: the next answer is the first."""
        self.latest = None
        self._answered.clear()

    async def first(self, seconds: float) -> None:
        """Returns when it has answered once, or after ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()

    def want_counters(self) -> None:
        """Has the next poll read ``/metrics``: they change when a request ends, and a scrape disturbs others."""
        self._want_counters = True

    def take(self) -> list[HttpReading]:
        """The answers since the last call."""
        taken, self.answers = self.answers, []
        return taken

    async def close(self) -> None:
        """Ends the asking."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self.client.close()

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            await self.ask()
            busy = self.latest is None or self.latest.busy or (self.latest.slots is None and not self.latest.asleep)
            pause = POLL_SECONDS if busy and self._dialect in ("", LLAMA) else IDLE_POLL_SECONDS
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.02, pause - (time.monotonic() - began))):
                    await self._hurry.wait()

    async def ask(self) -> HttpReading:
        """Asks once. Never raises: what cannot be asked is in the answer."""
        self.asking_since = time.monotonic()
        try:
            answer = await self._ask()
        except Exception as error:  # a server can answer anything; the asking must go on
            answer = HttpReading(time.monotonic(), "error", detail=type(error).__name__)
        self.asking_since = None
        self.latest = answer
        self._answered.set()
        self.answers = [*self.answers[-63:], answer]
        return answer

    async def _ask(self) -> HttpReading:
        self.client.denied, self.client.problem = False, ""  # asked again: a key may have been given, a proxy mended
        if self._dialect not in ("", LLAMA):
            return await self._ask_peer()
        if self._foreign and not (self.latest and self.latest.busy) and await self._sleeps():
            return HttpReading(time.monotonic(), "ok", counters=self._counters, asleep=True)
        slots = _sound(await self.client.slots()) if self.may_ask_slots else None
        at = time.monotonic()
        health = Health("ok") if slots else await self.client.health()
        denied = self.client.denied
        if slots:
            self._dialect = LLAMA
        if not self._dialect and not denied and health.status in ("ok", "error") and await self._recognise(at):
            return await self._ask_peer()
        if health.status == "ok" and (self._wants_counters(slots, at) or at >= self._retry_at):
            self._want_counters, self._counters, self._counted_at = False, await self._read_counters(), at
            self._counters_denied = self.client.denied
            # asked again without a cause only where it failed
            self._retry_at = float("inf") if self._counters else at + RETRY_SECONDS
        denied = denied or self._counters_denied
        return HttpReading(at, health.status, slots, self._counters, denied, health.detail, self.client.problem)

    async def _recognise(self, at: float) -> bool:
        """Whether it is a server of another kind. What is of none is asked again now and then: it may be starting."""
        if at - self._recognised_at < RETRY_SECONDS:
            return False
        from gpubox.server.dialect import detect_dialect

        self._recognised_at = at
        self._dialect = await detect_dialect(self.client)
        return self._dialect not in ("", LLAMA)

    async def _ask_peer(self) -> HttpReading:
        from gpubox.server.dialect import read_other_server

        other_server, at = await read_other_server(self.client, self._dialect), time.monotonic()
        denied = self.client.denied
        if other_server is None:
            self._dialect = ""  # another program may have its port now
            health = await self.client.health()
            return HttpReading(at, "unreachable" if health.status == "ok" else health.status, detail=health.detail)
        counters = dict(other_server.counters) if other_server.counters is not None else None
        return HttpReading(at, "ok", counters=counters, denied=denied, other_server=other_server)

    def _wants_counters(self, slots: tuple[Slot, ...] | None, at: float) -> bool:
        if slots and self.latest and _worked(self.latest.slots, slots):
            self._want_counters = True
        # Only a full house has a queue, and only the counters tell of one without slots and log. Each look disturbs the
        # gauges of another watcher: not more of them than that.
        full = all(slot.busy for slot in slots) if slots else self._foreign
        due = full and self._counters is not None and at - self._counted_at >= QUEUE_SECONDS
        return self._want_counters or due

    async def _sleeps(self) -> bool:
        """Whether a foreign server says that it sleeps. One that ever did is not kept awake with /slots again."""
        asleep = ((await self.client.props()) or {}).get("is_sleeping") is True
        self.may_ask_slots = self.may_ask_slots and not asleep
        return asleep

    async def _read_counters(self) -> dict[str, float] | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STALE_SECONDS):  # an answer that never ends
                return await self.client.counters()
        return None


def _sound(slots: list[Slot] | None) -> tuple[Slot, ...] | None:
    """The slots with numbers that can be counted with; ``None`` where there are none."""
    if not slots:
        return None

    def sound(value: int | None) -> int | None:
        return value if value is not None and 0 <= value < MOST_TOKENS else None

    return tuple(
        replace(
            slot,
            context_size_tokens=sound(slot.context_size_tokens),
            context_used_tokens=sound(slot.context_used_tokens),
            generated_tokens=sound(slot.generated_tokens),
            processed_tokens=sound(slot.processed_tokens),
        )
        for slot in slots
    )


def _worked(before: tuple[Slot, ...] | None, after: tuple[Slot, ...]) -> bool:
    """Whether a request ended between two answers, as far as the slots tell."""
    was = {slot.index: slot for slot in before or ()}
    return any(
        slot.index in was and ((was[slot.index].busy and not slot.busy) or was[slot.index].task != slot.task)
        for slot in after
    )
