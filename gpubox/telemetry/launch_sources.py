"""The sources of one launch of gpubox's own server: its log, its process and its HTTP side."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

from gpubox.config import api_key
from gpubox.errors import GpuboxError
from gpubox.hardware.host import ProcessReading, process_age, read_process
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.log_truncation import truncate_log
from gpubox.server.state import RunningServer
from gpubox.server.status import can_sleep
from gpubox.telemetry.bottleneck import ProcessRates, process_rates
from gpubox.telemetry.http_source import HttpSource
from gpubox.telemetry.log_source import LogSource
from gpubox.telemetry.session_speeds import FinishedSession, finished_session
from gpubox.telemetry.slot_rates import SlotRates

BUSY_THREADS = 0.1
ORPHAN_SECONDS = 1.0
RATE_SECONDS = 1.0
"""Over a shorter time the kernel's clock tick dominates."""
MIN_RATE_SECONDS = 0.1


class LaunchSources:
    """Reads one launch. Made anew when another server runs."""

    def __init__(self, paths: Paths, running: RunningServer) -> None:
        self.running = running
        assert running.process is not None
        age = process_age(running.process)
        self.started_at = time.monotonic() - age
        """The zero of the log's clock, in monotonic seconds."""
        started, pid = datetime.now(UTC) - timedelta(seconds=age), running.process.pid
        self.log = LogSource(
            paths.instance_log(MAIN_INSTANCE), started, probe=running.logs_probe, clock=self.clock, pid=pid,
            restored=running.restored,
        )  # fmt: skip
        self.log_problem = ""
        self.may_ask_slots = not can_sleep(running.launch.argv)
        self.http = HttpSource(running.launch.base_url, _api_key(paths), may_ask_slots=self.may_ask_slots)
        self.slot_rates = SlotRates()
        self.process: ProcessReading | None = None
        self.process_rates = ProcessRates()
        self.awaited_reading = False
        """Whether a snapshot has waited for the first HTTP reading."""
        self.was_ready = running.ready_at is not None
        self.rated: tuple[float, ProcessReading] | None = None
        """When the next rates begin (monotonic), and the reading of the process at that time."""
        self._read_at = 0.0
        self._orphans: dict[tuple[int, int], float] = {}
        """Requests by slot and task that no slot works on, and since when."""
        self._session: tuple[int, FinishedSession] | None = None

    def read(self) -> bool:
        """Reads the log and the process, and truncates a log that is too long. Blocks. Whether a request ended."""
        self.log.requests.restored = self.running.restored
        finished = self.log.read()
        self.log_problem = self.log.problem
        truncate_log(self.log.path)
        self._read_at = time.monotonic()
        self.process = read_process(self.running.process) if self.running.process else None
        return bool(finished)

    def clock(self) -> float:
        """The server's own second now. Changes of the wall clock do not affect it."""
        return time.monotonic() - self.started_at

    async def renew_key(self, paths: Paths, *, start: bool) -> None:
        """Polls with the owner's present API key, if it changed since the server refused the old one."""
        key = _api_key(paths)
        if key != self.http.key:
            await self.http.close()
            self.http = HttpSource(self.running.launch.base_url, key, may_ask_slots=self.may_ask_slots)
            if start:
                self.http.start()

    def take_slots(self) -> None:
        """Adds the slots of all new HTTP readings to the rates."""
        for reading in self.http.take():
            if reading.slots is not None:
                self.slot_rates.feed(reading.at, reading.slots)

    def drop_orphans(self, at: float) -> None:
        """Drops requests in flight that no slot works on: their end was in a part of the log that was lost."""
        reading, in_flight = self.http.latest, self.log.requests.in_flight
        if reading is None or not reading.slots:
            return
        tasks = {slot.index: slot.task for slot in reading.slots if slot.busy}
        idle = {
            (request.slot, request.task)
            for request in in_flight.values()
            if request.slot not in tasks or tasks[request.slot] not in (None, request.task)
        }
        self._orphans = {key: self._orphans.get(key, at) for key in idle}
        for key, since in list(self._orphans.items()):
            if reading.at > since + ORPHAN_SECONDS:
                del in_flight[key[0]], self._orphans[key]

    def session(self) -> FinishedSession:
        """The finished requests of the current session, summed up. Recalculated only after a request ended."""
        requests = self.log.requests
        if self._session is None or self._session[0] != requests.count:
            self._session = (requests.count, finished_session(list(requests.finished)))
        return self._session[1]

    @property
    def computes(self) -> bool:
        """Whether the process uses the CPU: it computes a batch, or a thread polls the card."""
        return (self.process_rates.threads_busy or 0.0) > BUSY_THREADS

    async def wait_for_rates(self) -> None:
        """Waits until the process of a busy server can be read again for rates. For a single snapshot."""
        self.update_rates()
        left = MIN_RATE_SECONDS - (time.monotonic() - self._read_at)
        if left > 0 and self.http.latest and self.http.latest.busy:
            await asyncio.sleep(left)

    def update_rates(self, seconds: float = RATE_SECONDS) -> None:
        """Recalculates the rates of the process, at most every ``seconds``."""
        at, process = self._read_at, self.process
        if process is None:
            return
        if self.rated is None:
            self.rated = (at, process)
        elif at - self.rated[0] >= seconds:
            self.process_rates = process_rates(self.rated[1], process, at - self.rated[0])
            self.rated = (at, process)


def _api_key(paths: Paths) -> str | None:
    try:
        return api_key(paths)
    except GpuboxError:
        return None  # /slots answers 401, and that is reported
