"""Reads the HTTP side of one server at its own pace. Never raises for what the server does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.address import KEY_HINT
from gpubox.server.other_server import LLAMA, OtherServerReading
from gpubox.server.responses import DEFERRED, MAX_COUNT, PROCESSING, QUIET_SECONDS, Health, Slot
from gpubox.server.status import DENIED, ServerStatus

POLL_SECONDS = 0.5
IDLE_POLL_SECONDS, FOREIGN_POLL_SECONDS = 2.0, 1.0
"""At rest, because each poll of /slots writes a line into the server's log; only our own server's log ends the wait."""
QUEUE_SECONDS = 2.0
"""How often /metrics is read for the number of waiting requests while all slots are busy."""
REQUEST_TIMEOUT_SECONDS = 2.0
SILENT_SECONDS = 2.0
"""A poll that takes longer is reported as a problem."""
RETRY_SECONDS = 10.0
"""How often /metrics is tried again after it failed."""


@dataclass(frozen=True, slots=True)
class HttpReading:
    """The result of one poll."""

    at: float
    """When the server answered, in monotonic seconds."""
    status: str
    """ok | loading | unreachable | error, by /health and /slots"""
    slots: tuple[Slot, ...] | None = None
    counters: dict[str, float] | None = None
    denied: bool = False
    detail: str = ""
    """Why the server does not answer, in a few words."""
    too_long: str = ""
    """Which answer was too long, in a sentence."""
    asleep: bool = False
    """It reports that it sleeps. Nothing was requested that would wake it."""
    described: tuple[str | None, str | None] = (None, None)
    """Path of the model and build, as a server reports them that gpubox did not start."""
    other_server: OtherServerReading | None = None
    """The readings of a server that is not llama-server."""

    @property
    def busy(self) -> bool | None:
        """Whether it works on a request; None if unknown."""
        if self.slots is not None:
            return any(slot.busy for slot in self.slots)
        processing = (self.counters or {}).get(PROCESSING)
        return None if processing is None else processing > 0

    @property
    def queued(self) -> int | None:
        """Requests that wait for a slot: 0 if one is free, else the number from ``/metrics``."""
        if self.slots and not all(slot.busy for slot in self.slots):
            return 0
        deferred = (self.counters or {}).get(DEFERRED)
        return int(deferred) if deferred is not None and 0 <= deferred < MAX_COUNT else None

    def status_at(self, base_url: str, state: str) -> ServerStatus:
        """The status of the server at ``base_url``, which gpubox did not start and which is in ``state``."""
        message = f"{DENIED} {KEY_HINT}" if self.denied else ""
        model, build = self.described
        if other := self.other_server:
            state, message = "answering" if other.running_requests else "ready", message or other.summary
            model, build = ", ".join([each.name for each in other.models if each.loaded][:4]) or None, other.engine
        elif state == "unreachable":
            message = f"Nothing answers at {base_url}."
        elif state == "error":
            message = f"It answers /health with {self.detail}: it is not a llama-server."
        return ServerStatus(
            None, state, base_url=base_url, model_path=model, engine_version=build, slots=self.slots, message=message
        )


class HttpSource:
    """Polls one server in a task of its own, so that a server that hangs delays nothing else."""

    def __init__(
        self, base_url: str, key: str | None, *, may_ask_slots: bool, foreign: bool = False, left: Path | None = None
    ) -> None:
        """``may_ask_slots``: reading /slots does not keep the server awake. ``left``: see LEFT_NAME.

        ``foreign``: gpubox did not start it, so its command line and its log are unknown. It may be of another kind.
        """
        from gpubox.server.client import LlamaClient  # imports httpx

        self.client = LlamaClient(base_url, key, timeout=REQUEST_TIMEOUT_SECONDS)
        self.key = key
        self.may_ask_slots = may_ask_slots
        self._readings: deque[HttpReading] = deque(maxlen=64)
        """The readings since ``take``, oldest first."""
        self.latest: HttpReading | None = None
        self.polling_since: float | None = None
        """When the poll in progress began."""
        self._foreign, self._left = foreign, left
        self._dialect = "" if foreign else LLAMA
        """The API of the server; empty while unknown."""
        self._detected_at = float("-inf")
        self._described: tuple[str | None, str | None] = (None, None)
        """Model and build of a foreign server."""
        self._counters: dict[str, float] | None = None
        self._counters_denied = False
        self._counters_wanted = True
        self._counters_read_at = float("-inf")
        self._retry_counters_at = float("inf")
        self._poll_requested = asyncio.Event()
        self._has_reading = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to poll every POLL_SECONDS."""
        self._task = asyncio.create_task(self._run(), name="http-source")

    def poll_now(self) -> None:
        """Ends the pause between two polls: the log reports a request."""
        self._poll_requested.set()

    def request_counters(self) -> None:
        """Makes the next poll read ``/metrics``.

        The counters change only when a request ends, and each scrape resets gauges that another watcher may read.
        """
        self._counters_wanted = True

    def forget_latest(self) -> None:
        """Drops the latest reading, because the server changed since."""
        self.latest = None
        self._has_reading.clear()

    async def wait_for_reading(self, seconds: float) -> None:
        """Returns when there is a reading, or after ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_reading.wait()

    def take(self) -> list[HttpReading]:
        """The readings since the last call."""
        readings = list(self._readings)
        self._readings.clear()
        return readings

    async def close(self) -> None:
        """Ends the polling."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self.client.close()

    def response_delay(self, at: float) -> tuple[float, list[str]]:
        """Seconds that the poll in progress has waited, and the problem if that is too long."""
        seconds = at - (self.polling_since or at)
        return seconds, [f"the server has not answered for {seconds:.0f} s"] if seconds > SILENT_SECONDS else []

    def problems(self, reading: HttpReading) -> list[str]:
        """The endpoints that are off, refuse, or answer with nonsense; a sentence each."""
        if reading.status == "loading":
            return []
        if reading.status == "error":
            return [f"{self.client.base_url} answers with {reading.detail}"]
        if reading.status != "ok":
            return [f"nothing answers at {self.client.base_url} ({reading.detail})"]
        if reading.too_long:
            return [reading.too_long]
        if reading.other_server:
            denied = ["the server needs an API key that gpubox does not have"] if reading.denied else []
            return [*denied, reading.other_server.not_reported]
        if reading.denied:
            return ["/slots and /metrics need an API key that gpubox does not have"]
        problems = []
        if not self.may_ask_slots:
            problems.append("/slots is not read, so that the server can sleep: no live speed, no context fill")
        elif not reading.slots:
            problems.append("/slots is off or unreadable: no live speed, no context fill")
        if reading.counters is None:
            problems.append("/metrics is off: no totals")
        return problems

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            reading = await self.poll()
            active = reading.busy or (reading.slots is None and not reading.asleep)
            rest = FOREIGN_POLL_SECONDS if self._foreign else IDLE_POLL_SECONDS
            pause = POLL_SECONDS if active and self._dialect in ("", LLAMA) else rest
            self._poll_requested.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.02, pause - (time.monotonic() - began))):
                    await self._poll_requested.wait()
            while self._is_left() and time.monotonic() - began < 2 * QUIET_SECONDS:  # clients may leave all the time
                await asyncio.sleep(0.02)

    def _is_left(self) -> bool:
        """Whether a client has just left a request that its server works on."""
        with contextlib.suppress(OSError):
            return self._left is not None and 0.0 <= time.time() - self._left.stat().st_mtime < QUIET_SECONDS
        return False

    async def poll(self) -> HttpReading:
        """Polls once. Never raises: a failure is part of the reading."""
        self.polling_since = time.monotonic()
        try:
            reading = await self._poll()
        except Exception as error:  # a server can answer anything, and the polling must go on
            reading = HttpReading(time.monotonic(), "error", detail=type(error).__name__)
        self.polling_since = None
        self.latest = reading
        self._has_reading.set()
        self._readings.append(reading)
        return reading

    async def _poll(self) -> HttpReading:
        self.client.denied, self.client.problem = False, ""  # the owner may have set a key meanwhile
        if self._dialect not in ("", LLAMA):
            return await self._poll_other_server()
        if self._foreign and not (self.latest and self.latest.busy) and await self._is_asleep():
            return HttpReading(time.monotonic(), "ok", counters=self._counters, asleep=True, described=self._described)
        slots = tuple(await self.client.slots() or ()) or None if self.may_ask_slots else None
        at = time.monotonic()
        health = Health("ok") if slots else await self.client.health()
        denied = self.client.denied
        if slots:
            self._dialect = LLAMA
        if not self._dialect and not denied and health.status in ("ok", "error") and await self._is_other_server(at):
            return await self._poll_other_server()
        if health.status == "ok" and (self._needs_counters(slots, at) or at >= self._retry_counters_at):
            self._counters_wanted, self._counters, self._counters_read_at = False, await self._read_counters(), at
            self._counters_denied = self.client.denied
            self._retry_counters_at = float("inf") if self._counters else at + RETRY_SECONDS
        denied = denied or self._counters_denied
        reading = HttpReading(at, health.status, slots, self._counters, denied, health.detail, self.client.problem)
        return replace(reading, described=self._described)

    async def _is_other_server(self, at: float) -> bool:
        """Whether the server is of another kind. An unknown one is asked again later: it may still be starting."""
        if at - self._detected_at < RETRY_SECONDS:
            return False
        from gpubox.server.other_server import detect_dialect

        self._detected_at = at
        self._dialect = await detect_dialect(self.client)
        return self._dialect not in ("", LLAMA)

    async def _poll_other_server(self) -> HttpReading:
        from gpubox.server.other_server import read_other_server

        other_server, at = await read_other_server(self.client, self._dialect), time.monotonic()
        denied = self.client.denied
        if other_server is None:
            self._dialect = ""  # another program may use the port now
            health = await self.client.health()
            return HttpReading(at, "unreachable" if health.status == "ok" else health.status, detail=health.detail)
        counters = dict(other_server.counters) if other_server.counters is not None else None
        return HttpReading(at, "ok", counters=counters, denied=denied, other_server=other_server)

    def _needs_counters(self, slots: tuple[Slot, ...] | None, at: float) -> bool:
        if slots and self.latest and _request_ended(self.latest.slots, slots):
            self._counters_wanted = True
        # Only with all slots busy there is a queue, and only the counters show it if slots and log do not.
        full = all(slot.busy for slot in slots) if slots else self._foreign
        due = full and self._counters is not None and at - self._counters_read_at >= QUEUE_SECONDS
        return self._counters_wanted or due

    async def _is_asleep(self) -> bool:
        """Whether a foreign server reports that it sleeps. From then on /slots is not read: that keeps it awake."""
        props = await self.client.props()
        model, build = props.get("model_path"), props.get("build_info")
        self._described = model if isinstance(model, str) else None, build if isinstance(build, str) else None
        asleep = props.get("is_sleeping") is True
        self.may_ask_slots = self.may_ask_slots and not asleep
        return asleep

    async def _read_counters(self) -> dict[str, float] | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):  # for a response that never ends
                return await self.client.counters()
        return None


def _request_ended(before: tuple[Slot, ...] | None, after: tuple[Slot, ...]) -> bool:
    """Whether a request ended between two readings, as far as the slots show."""
    earlier = {slot.index: slot for slot in before or ()}
    return any(
        (old := earlier.get(slot.index)) is not None and ((old.busy and not slot.busy) or old.task != slot.task)
        for slot in after
    )
