"""The Sampler reads all sources and returns one frozen Snapshot for each tick. Both front ends use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Self

from gpubox.clock import utc_now
from gpubox.concurrency import run_in_thread
from gpubox.config import Config, api_key
from gpubox.errors import GpuboxError
from gpubox.hardware.gpu import LOST_HELP, DriverReading
from gpubox.hardware.host import HostReader, HostReading, ProcessReading, process_age, read_process
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.instance import InstanceView, observe
from gpubox.server.log import truncate_log
from gpubox.server.responses import LEFT_NAME
from gpubox.server.state import RunningServer
from gpubox.server.status import ServerStatus, api_key_for, can_sleep, can_sleep_at, status_from_view
from gpubox.telemetry.device_memory import reconcile_devices
from gpubox.telemetry.http_source import HttpReading, HttpSource
from gpubox.telemetry.log_source import LogSource
from gpubox.telemetry.offload import ProcessRates, offload, process_rates
from gpubox.telemetry.snapshot import SlotReading, Snapshot
from gpubox.telemetry.speeds import CounterRate, SlotRates, read_slots, throughput, totals

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
        self.http = self._http_source(paths, _key_of(api_key, paths))
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

    def _http_source(self, paths: Paths, key: str | None) -> HttpSource:
        url, left = self.running.launch.base_url, paths.gateway / LEFT_NAME
        return HttpSource(url, key, may_ask_slots=self.may_ask_slots, left=left)

    async def renew_key(self, paths: Paths, *, start: bool) -> None:
        """Polls with the owner's present API key, if it changed since the server refused the old one."""
        key = _key_of(api_key, paths)
        if key != self.http.key:
            await self.http.close()
            self.http = self._http_source(paths, key)
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


def _key_of(read: Callable[..., str | None], *args: object) -> str | None:
    try:
        return read(*args)
    except GpuboxError:
        return None  # /slots answers 401, and that is reported


STUCK_SECONDS = 20.0
"""How long no answer, or no progress of any busy slot, is normal."""
HUNG_SECONDS = 300.0
"""On a CPU a batch of a long prompt can take a minute without a sign of progress. This long is a hang, busy or not."""
FIRST_SECONDS = 1.0
"""How long the first snapshot of a server waits for its first HTTP reading."""
LOG_STATES = ("idle", "answering", "sleeping")
"""States that the log alone shows, before the first HTTP reading."""
SHOWN_REQUESTS = 200
ReadDriver = Callable[[], DriverReading]


class Sampler:
    """Owns the sources of one server. ``sample`` never raises; ``Snapshot.problems`` lists what could not be read."""

    def __init__(self, paths: Paths, config: Config, driver: ReadDriver, *, url: str | None = None) -> None:
        """``url`` is a server that gpubox did not start; without it, the box's active server is read."""
        self.paths, self.config, self.url = paths, config, url
        self._read_driver = driver
        self._host = HostReader()
        self._host_reading: HostReading | None = None
        self._launch: LaunchSources | None = None
        self._foreign: HttpSource | None = None
        self._foreign_rates = SlotRates()
        self._counter_rate = CounterRate()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all tasks of the sources."""
        await self._follow(None, wait=True)
        if self._foreign:
            await self._foreign.close()
            self._foreign = None

    async def sample(self, *, wait: bool = False) -> Snapshot:
        """The snapshot of this instant. ``wait`` polls the server first, instead of taking the latest reading."""
        async with self._turn:
            return await (self._sample_foreign(self.url, wait) if self.url else self._sample_own(wait))

    async def _sample_own(self, wait: bool) -> Snapshot:
        view, launch, finished = await run_in_thread(self._read)
        await self._follow(launch, wait)
        if launch is None:
            status = status_from_view(view, "stopped")
            state = status.state if status.state in ("loading", "stopping") else "down"
            return self._build(status, state, time.monotonic())
        launch.drop_orphans(time.monotonic())
        if launch.http.latest and launch.http.latest.denied:
            await launch.renew_key(self.paths, start=not wait)
        if finished:
            launch.http.request_counters()
        if finished or launch.log.requests.in_flight:
            launch.http.poll_now()
        if launch.running.ready_at and not launch.was_ready:
            launch.was_ready, launch.awaited_reading = True, False
            launch.http.forget_latest()  # it is from the load
        if wait:
            await launch.http.poll()
            await launch.wait_for_rates()
            await run_in_thread(launch.read)  # what the server logged during the poll
            launch.update_rates(MIN_RATE_SECONDS)
            self._host_reading = await run_in_thread(self._host.read)
        elif not launch.awaited_reading:
            launch.awaited_reading = True
            await launch.http.wait_for_reading(FIRST_SECONDS)
        at = time.monotonic()
        launch.take_slots()
        launch.update_rates()
        latest = launch.http.latest
        state, problems = _state(launch, at)
        status = status_from_view(
            view, _http_state(state, latest), latest.slots if latest else None, denied=bool(latest and latest.denied)
        )
        polled = latest.slots or () if latest else ()
        slots = read_slots(polled, launch.log.requests, launch.slot_rates, at, at - launch.started_at)
        state = "stopping" if status.state == "stopping" else state
        return self._build(status, state, at, slots, latest, launch, tuple(problems))

    async def _sample_foreign(self, url: str, wait: bool) -> Snapshot:
        self._host_reading = await run_in_thread(self._host.read)
        if self._foreign is None:
            key = await run_in_thread(_key_of, api_key_for, self.paths, self.config, url)
            may_ask_slots = not await run_in_thread(can_sleep_at, url)
            self._foreign = HttpSource(url, key, may_ask_slots=may_ask_slots, foreign=True)
            await self._foreign.poll()
            if not wait:
                self._foreign.start()  # not earlier: two polls at once would confuse ``polling_since``
        elif wait:
            await self._foreign.poll()
        at = time.monotonic()
        for reading in self._foreign.take():
            if reading.slots is not None:
                self._foreign_rates.feed(reading.at, reading.slots)
            if reading.other_server:
                self._counter_rate.feed(reading.at, (reading.counters or {}).get("tokens_predicted_total"))
        latest = self._foreign.latest
        assert latest is not None
        slots = read_slots(latest.slots or (), None, self._foreign_rates, at, None)
        state = {"ok": "idle", "unreachable": "down", "error": "down"}.get(latest.status, "loading")
        if latest.status == "ok":
            state = "sleeping" if latest.asleep else _busiest([slot.state for slot in slots])
            if latest.slots is None and not latest.asleep and latest.busy is not False:
                state = "answering" if latest.busy else "ready"
        status = latest.status_at(url, _http_state(state, latest))
        delay, problems = self._foreign.response_delay(at)
        problems = problems if latest.asleep else problems + self._foreign.problems(latest)
        state = "stuck" if delay > STUCK_SECONDS else state
        snapshot = self._build(status, state, at, slots, latest, problems=tuple(problems))
        if latest.other_server is None:
            return snapshot
        speeds = replace(
            snapshot.throughput,
            tg_tokens_per_second=self._counter_rate.tokens_per_second,
            busy_slots=latest.other_server.running_requests,
            queued_requests=latest.other_server.waiting_requests,
        )
        return replace(snapshot, throughput=speeds, other_server=latest.other_server)

    def _read(self) -> tuple[InstanceView, LaunchSources | None, bool]:
        """What runs, with its log and process just read, and whether a request ended. Blocks."""
        view = observe(self.paths, MAIN_INSTANCE)
        self._host_reading = self._host.read()
        running, launch = view.running, self._launch
        if running is None or running.process is None:
            return view, None, False
        known = launch.running if launch else None
        if known is None or known.launch_id != running.launch_id or known.process != running.process:
            launch = LaunchSources(self.paths, running)
        assert launch is not None
        launch.running = running
        return view, launch, launch.read()

    async def _follow(self, launch: LaunchSources | None, wait: bool) -> None:
        """Follows ``launch`` instead of the launch before it; polls it by itself unless ``wait``."""
        if launch is self._launch:
            return
        if self._launch:
            await self._launch.http.close()
        self._launch = launch
        if launch and not wait:
            launch.http.start()

    def _build(
        self,
        status: ServerStatus,
        state: str,
        at: float,
        slots: tuple[SlotReading, ...] = (),
        reading: HttpReading | None = None,
        launch: LaunchSources | None = None,
        problems: tuple[str, ...] = (),
    ) -> Snapshot:
        driver, host = self._read_driver(), self._host_reading
        process = launch.process if launch else None
        clock = at - launch.started_at if launch else None
        log = launch.log if launch else None
        requests = log.requests if log else None
        finished = list(requests.finished) if requests else []
        ended = requests.last_ended if requests else None
        memory = reconcile_devices(
            log.breakdown if log else None,
            driver.gpus,
            host,
            process,
            status.pid,
            dict(launch.running.loaded_vram) if launch else {},
            launch.running.whole_card_gpus if launch else (),
        )
        lost = {gpu.index for gpu in driver.gpus if gpu.lost}
        if status.up and (used := [d.gpu_index for d in memory if d.gpu_index in lost and d.parts]):
            state, problems = "lost", (f"GPU {used[0]} is lost: {LOST_HELP}", *problems)
        return Snapshot(
            at=at,
            time=utc_now(),
            server=status,
            driver=driver,
            host=host,
            process=process,
            memory=memory,
            offload=offload(
                log,
                launch.running.launch if launch else None,
                launch.process_rates if launch else ProcessRates(),
                driver,
                state,
                clock - ended if clock is not None and ended is not None else None,
                host.cpu_percent if host else (),
            ),
            throughput=throughput(state, slots, finished, reading.queued if reading else None, requests, clock),
            slots=slots,
            requests=tuple(finished[:SHOWN_REQUESTS]),
            totals=totals(
                reading.counters if reading else None,
                requests,
                launch.running.probe_tokens if launch else (0, 0),
                log.uncounted if log else "",
            ),
            kv_bytes_per_token=log.breakdown.kv_bytes_per_token if log else None,
            kv_cells=(log.breakdown.kv_cells or None) if log else None,
            problems=problems,
        )


def _state(launch: LaunchSources, at: float) -> tuple[str, list[str]]:
    """What the server does (``Throughput.state``), and the problems with reading it."""
    reading, ready = launch.http.latest, launch.running.ready_at is not None
    problems = [launch.log_problem] if launch.log_problem else []
    if launch.process and launch.process.stopped:
        return "stuck", ["the server process is suspended (SIGSTOP)", *problems]
    if launch.log.asleep:
        return "sleeping", problems
    delay, delay_problem = launch.http.response_delay(at)
    in_flight = launch.log.requests.in_flight
    if reading is None and not delay_problem:  # only the log is known yet
        if not ready:
            return "loading", problems
        return ("answering" if in_flight else "idle"), ["the server has not been polled yet", *problems]
    problems = delay_problem + problems
    if delay > STUCK_SECONDS:
        return "stuck", problems
    if (reading is None or reading.status != "ok") and not ready:
        return "loading", problems
    if reading is None:
        return "down", problems
    problems += launch.http.problems(reading)
    if ready and not launch.log.breakdown.keys:
        problems.append("the log does not show where the memory went: no memory breakdown")
    if reading.status != "ok":
        return "down", problems
    unmoved = launch.slot_rates.seconds_unmoved(at)
    if unmoved > STUCK_SECONDS and (not launch.computes or unmoved > HUNG_SECONDS):
        return "stuck", [f"no token processed or generated for {unmoved:.0f} s", *problems]
    slots = reading.slots or ()
    states = ["idle" if not s.busy else "answering" if s.generated_tokens else "prefill" for s in slots]
    if not states and in_flight:
        return "answering", problems
    return _busiest(states), problems


def _busiest(states: list[str]) -> str:
    return next((state for state in ("answering", "prefill") if state in states), "idle")


def _http_state(state: str, reading: HttpReading | None) -> str:
    """The state of the HTTP side (``ServerStatus.state``) that goes with the state of the server."""
    if (reading is None and state not in LOG_STATES) or (reading and reading.status == "unreachable"):
        return "unreachable"
    if state == "down":
        return "error" if reading and reading.status == "error" else "unreachable"
    if state in ("prefill", "answering", "stuck"):
        return "answering"
    return "loading" if state == "loading" else "ready"
