"""The Sampler: turns the sources into one frozen Snapshot a tick. Knows no screen; used by both front ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.clock import utc_now
from gpubox.config import Config, api_key
from gpubox.errors import GpuboxError
from gpubox.hardware.gpu import DriverReading
from gpubox.hardware.host import HostReader, HostReading, ProcessReading, read_process
from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.instance import InstanceView, observe
from gpubox.server.log_truncation import truncate_log
from gpubox.server.state import RunningServer
from gpubox.server.status import (
    ServerStatus,
    can_sleep,
    can_sleep_at,
    read_foreign_status,
    status_from_view,
    status_of_other_server,
)
from gpubox.telemetry.bottleneck import ProcessRates, process_rates
from gpubox.telemetry.device_memory import reconcile_devices
from gpubox.telemetry.offload import offload
from gpubox.telemetry.problems import http_problems, response_delay
from gpubox.telemetry.session_speeds import FinishedSession, finished_session
from gpubox.telemetry.slot_rates import SlotRates
from gpubox.telemetry.snapshot import Request, SlotReading, Snapshot
from gpubox.telemetry.sources import HttpReading, HttpSource, LogSource
from gpubox.telemetry.throughput import read_slots, throughput, totals
from gpubox.threads import run_in_thread

if TYPE_CHECKING:
    from gpubox.telemetry.other_server import CounterRate

STUCK_SECONDS = 20.0
HUNG_SECONDS = 300.0
"""A batch of a long prompt can take a minute on a CPU, and nothing moves meanwhile; five are a hang, busy or not."""
AT_WORK = 0.1
"""Threads."""
ORPHAN_SECONDS = 1.0
PACE_SECONDS = 1.0
LEAST_PACE_SECONDS = 0.1
FIRST_SECONDS = 1.0
"""How long the first snapshot of a server waits for its first answer: what is not asked yet is not idle."""
LOG_TELLS = ("idle", "answering", "sleeping")
"""The states that the log alone tells of, before a first answer."""
SHOWN_REQUESTS = 200
ReadDriver = Callable[[], DriverReading]


class LaunchSources:
    """The sources of one launch. Made anew when another server runs."""

    def __init__(self, paths: Paths, slot: str, running: RunningServer) -> None:
        launch = running.launch
        self.running = running
        assert running.process is not None
        age = age_of(running.process)
        self.zero = time.monotonic() - age
        """The zero of its log's clock."""
        # A server that is not proven yet will get gpubox's proof as its first request.
        proof = running.ready_at is None or running.probe_tokens != (0, 0)
        started, pid = datetime.now(UTC) - timedelta(seconds=age), running.process.pid
        self.log = LogSource(paths.instance_log(slot), started, proof=proof, clock=self.clock, pid=pid)
        self.key = _key(paths)
        self.may_ask = not can_sleep(launch.argv)
        self.source = HttpSource(launch.base_url, self.key, may_ask_slots=self.may_ask)
        self.rates = SlotRates()
        self.orphans: dict[tuple[int, int], float] = {}
        """Requests by slot and task that no slot works on, and since when."""
        self.before: tuple[float, ProcessReading] | None = None
        self._past: tuple[int, FinishedSession] | None = None
        self.pace = ProcessRates()
        self.process: ProcessReading | None = None
        self.looked_at = 0.0
        self.log_problem = ""
        self.awaited = False
        """Whether its first answer was waited for."""
        self.proven = running.ready_at is not None

    def look(self) -> bool:
        """Reads its log and its process, and cuts a log that is too long. Blocks. Whether a request ended."""
        finished = self.log.read()
        self.log_problem = self.log.problem
        truncate_log(self.log.path)
        self.looked_at = time.monotonic()
        self.process = read_process(self.running.process) if self.running.process else None
        return bool(finished)

    def clock(self) -> float:
        """The server's own second now: whatever is done to the wall clock, since it started."""
        return time.monotonic() - self.zero

    async def renew_key(self, paths: Paths, wait: bool) -> None:
        """Asks with the owner's key of now where the one that it was begun with is refused."""
        key = _key(paths)
        if key != self.key:
            await self.source.close()
            self.key = key
            self.source = HttpSource(self.running.launch.base_url, key, may_ask_slots=self.may_ask)
            if not wait:
                self.source.start()

    def drop_orphans(self, at: float) -> None:
        """Forgets requests whose end the log lost (cut, skipped): their slots have long been at something else."""
        answer, in_flight = self.source.latest, self.log.requests.in_flight
        if answer is None or not answer.slots:
            return
        busy = {slot.index: slot.task for slot in answer.slots if slot.busy}
        idle = {
            (found.slot, found.task)
            for found in in_flight.values()
            if found.slot not in busy or busy[found.slot] not in (None, found.task)
        }
        self.orphans = {key: self.orphans.get(key, at) for key in idle}
        for key, since in list(self.orphans.items()):
            if answer.at > since + ORPHAN_SECONDS:
                del in_flight[key[0]], self.orphans[key]

    def finished_session(self, finished: list[Request]) -> FinishedSession:
        """What the finished requests come to; made anew only when one ended."""
        if self._past is None or self._past[0] != self.log.requests.count:
            self._past = (self.log.requests.count, finished_session(finished))
        return self._past[1]

    @property
    def at_work(self) -> bool:
        """Whether the process burns CPU: a batch is computed there, or a thread waits for the card."""
        return (self.pace.threads_busy or 0.0) > AT_WORK

    async def time_to_move(self) -> None:
        """Who looks but once waits so long that a server at work moves on by some ticks of the kernel's clock."""
        self.keep_pace()
        left = LEAST_PACE_SECONDS - (time.monotonic() - self.looked_at)
        if left > 0 and self.source.latest and self.source.latest.busy:
            await asyncio.sleep(left)

    def keep_pace(self, seconds: float = PACE_SECONDS) -> None:
        """Renews the pace each ``seconds``: shorter stretches say more about the clock tick than about the work."""
        at, process = self.looked_at, self.process
        if process is None:
            return
        if self.before is None:
            self.before = (at, process)
        elif at - self.before[0] >= seconds:
            self.pace = process_rates(self.before[1], process, at - self.before[0])
            self.before = (at, process)


class Sampler:
    """One owner of the sources. ``sample`` never raises for what the world does; ``problems`` says what is missing."""

    def __init__(
        self, paths: Paths, config: Config, driver: ReadDriver, *, slot: str = MAIN_INSTANCE, url: str | None = None
    ) -> None:
        self.paths, self.config, self.slot, self.url = paths, config, slot, url
        self._driver = driver
        self._host = HostReader()
        self._host_reading: HostReading | None = None
        self._launched: LaunchSources | None = None
        self._foreign: HttpSource | None = None
        self._foreign_status: ServerStatus | None = None
        self._foreign_rates = SlotRates()
        self._peer_rate: CounterRate | None = None

    async def close(self) -> None:
        """Ends every task of the sources."""
        await self._forget()
        if self._foreign:
            await self._foreign.close()
            self._foreign = None

    async def sample(self, *, wait: bool = False) -> Snapshot:
        """The snapshot of this instant. ``wait`` asks the server first instead of taking its last answer."""
        if self.url:
            return await self._sample_foreign(wait)
        view, launched, finished = await run_in_thread(self._look)
        await self._follow(launched, wait)
        if launched is None:
            return self._assemble(status_from_view(view, "stopped"), "down", None)
        launched.drop_orphans(time.monotonic())
        if launched.source.latest and launched.source.latest.denied:
            await launched.renew_key(self.paths, wait)
        if finished:
            launched.source.want_counters()
        if finished or launched.log.requests.in_flight:
            launched.source.poll_now()
        if launched.running.ready_at and not launched.proven:
            launched.proven, launched.awaited = True, False
            launched.source.forget()  # "nothing answers" was of the load; what it does now, it has not said yet
        if wait:
            await launched.source.ask()
            await launched.time_to_move()
            await run_in_thread(launched.look)  # what it was taking while it was asked
            launched.keep_pace(LEAST_PACE_SECONDS)
            self._host_reading = await run_in_thread(self._host.read)
        elif not launched.awaited:
            launched.awaited = True
            await launched.source.first(FIRST_SECONDS)
        at = time.monotonic()
        for answer in launched.source.take():
            if answer.slots is not None:
                launched.rates.feed(answer.at, answer.slots)
        process = launched.process
        state, problems = self._state(launched, launched.source.latest, process, at)
        latest = launched.source.latest
        down = "error" if latest and latest.status == "error" else "unreachable"
        http = {"loading": "loading", "down": down}.get(state, "ready")
        if latest.status == "unreachable" if latest else state not in LOG_TELLS:
            http = "unreachable"
        if state in ("prefill", "answering", "stuck") and http == "ready":
            http = "answering"
        status = status_from_view(view, http, latest.slots if latest else None, denied=bool(latest and latest.denied))
        return self._assemble(status, state, launched, tuple(problems), at)

    async def _sample_foreign(self, wait: bool) -> Snapshot:
        assert self.url is not None
        self._host_reading = await run_in_thread(self._host.read)
        from gpubox.telemetry.other_server import CounterRate, with_other_server

        if self._foreign is None:
            self._peer_rate = CounterRate()
            key = await run_in_thread(_foreign_key, self.paths, self.config, self.url)
            may_ask = not await run_in_thread(can_sleep_at, self.url)
            self._foreign = HttpSource(self.url, key, may_ask_slots=may_ask, foreign=True)
            self._foreign_status = await read_foreign_status(self.url, key)
            await self._foreign.ask()
            if not wait:
                self._foreign.start()  # after that: two that ask at once would not know since when one waits
        elif wait:
            await self._foreign.ask()
        at = time.monotonic()
        for answer in self._foreign.take():
            if answer.slots is not None:
                self._foreign_rates.feed(answer.at, answer.slots)
            if answer.other_server and self._peer_rate:
                self._peer_rate.feed(answer.at, (answer.counters or {}).get("tokens_predicted_total"))
        latest = self._foreign.latest
        assert latest is not None and self._foreign_status is not None
        if latest.other_server:
            self._foreign_status = status_of_other_server(self.url, latest.other_server, denied=latest.denied)
        elif latest.status == "ok" and not self._foreign_status.up:
            self._foreign_status = await read_foreign_status(self.url, self._foreign.key)
        slots = read_slots(latest.slots or (), None, self._foreign_rates, at, None)
        state = {"ok": "idle", "unreachable": "down", "error": "down"}.get(latest.status, "loading")
        if latest.status == "ok":
            state = "sleeping" if latest.asleep else _slot_state([s.state for s in slots])
            if latest.slots is None and not latest.asleep and latest.busy is not False:
                state = "answering" if latest.busy else "ready"
        down = "error" if latest.status == "error" else "unreachable"
        http = {"down": down, "loading": "loading", "idle": "ready", "ready": "ready", "sleeping": "ready"}
        status = replace(self._foreign_status, state=http.get(state, "answering"), slots=latest.slots)
        silent, said = response_delay(self._foreign, at)
        problems = said if latest.asleep else said + http_problems(self._foreign, latest)
        snapshot = self._build(
            status, "stuck" if silent > STUCK_SECONDS else state, at, slots, latest, problems=tuple(problems)
        )
        if latest.other_server is None or self._peer_rate is None:
            return snapshot
        return with_other_server(snapshot, latest.other_server, self._peer_rate.tokens_per_second)

    def _look(self) -> tuple[InstanceView, LaunchSources | None, bool]:
        """What runs, its log and process as read now, and whether a request ended. Blocks; changes no source."""
        view = observe(self.paths, self.slot)
        self._host_reading = self._host.read()
        running, launched = view.running, self._launched
        if running is None or running.process is None:
            return view, None, False
        known = launched.running if launched else None
        if known is None or known.launch_id != running.launch_id or known.process != running.process:
            launched = LaunchSources(self.paths, self.slot, running)
        assert launched is not None
        launched.running = running
        return view, launched, launched.look()

    async def _follow(self, launched: LaunchSources | None, wait: bool) -> None:
        if launched is not self._launched:
            await self._forget()
            self._launched = launched
            if launched and not wait:
                launched.source.start()

    async def _forget(self) -> None:
        if self._launched:
            await self._launched.source.close()
            self._launched = None

    def _state(
        self, launched: LaunchSources, answer: HttpReading | None, process: ProcessReading | None, at: float
    ) -> tuple[str, list[str]]:
        problems = [launched.log_problem] if launched.log_problem else []
        if process and process.stopped:
            return "stuck", ["the server process is suspended (SIGSTOP)", *problems]
        if launched.log.asleep:
            return "sleeping", problems
        silent, said = response_delay(launched.source, at)
        if answer is None and not said:  # the log alone tells
            if launched.running.ready_at is None:
                return "loading", problems
            reading = launched.log.requests.in_flight
            return ("answering" if reading else "idle"), ["the server was not asked yet", *problems]
        problems = said + problems
        if silent > STUCK_SECONDS:
            return "stuck", problems
        if (answer is None or answer.status != "ok") and launched.running.ready_at is None:
            return "loading", problems
        if answer is None:
            return "down", problems
        problems += http_problems(launched.source, answer)
        if launched.running.ready_at and not launched.log.split.keys:
            problems.append("the log does not tell where the memory went: no split")
        if answer.status != "ok":
            return "down", problems
        if launched.rates.stuck(at) and (not launched.at_work or launched.rates.unmoved(at) > HUNG_SECONDS):
            return "stuck", [f"no busy slot has moved for {launched.rates.unmoved(at):.0f} s", *problems]
        slots = answer.slots or ()
        states = ["idle" if not s.busy else "answering" if s.generated_tokens else "prefill" for s in slots]
        if not states and launched.log.requests.in_flight:
            return "answering", problems
        return _slot_state(states), problems

    def _assemble(
        self,
        status: ServerStatus,
        state: str,
        launched: LaunchSources | None,
        problems: tuple[str, ...] = (),
        at: float | None = None,
    ) -> Snapshot:
        at = time.monotonic() if at is None else at
        if launched is None:
            state = {"loading": "loading", "stopping": "stopping"}.get(status.state, "down")
            return self._build(status, state, at)
        process = launched.process
        launched.keep_pace()
        clock = at - launched.zero
        answer = launched.source.latest
        asked = answer.slots or () if answer else ()
        slots = read_slots(asked, launched.log.requests, launched.rates, at, clock)
        if status.state == "stopping":
            state = "stopping"
        return self._build(status, state, at, slots, answer, launched, process, clock, problems)

    def _build(
        self,
        status: ServerStatus,
        state: str,
        at: float,
        slots: tuple[SlotReading, ...] = (),
        answer: HttpReading | None = None,
        launched: LaunchSources | None = None,
        process: ProcessReading | None = None,
        clock: float | None = None,
        problems: tuple[str, ...] = (),
    ) -> Snapshot:
        driver, host = self._driver(), self._host_reading
        log = launched.log if launched else None
        requests = log.requests if log else None
        finished = list(requests.finished) if requests else []
        ended = requests.last_ended if requests else None
        return Snapshot(
            at=at,
            time=utc_now(),
            server=status,
            driver=driver,
            host=host,
            process=process,
            memory=reconcile_devices(
                log.split if log else None,
                driver.gpus,
                host,
                process,
                status.pid,
                dict(launched.running.loaded_vram) if launched else {},
                launched.running.whole_card_gpus if launched else (),
            ),
            offload=offload(
                log,
                launched.running.launch if launched else None,
                launched.pace if launched else ProcessRates(),
                driver,
                state,
                clock - ended if clock is not None and ended is not None else None,
                host.cpu_percent if host else (),
            ),
            throughput=throughput(
                state,
                slots,
                finished,
                answer.queued if answer else None,
                requests,
                clock,
                launched.finished_session(finished) if launched else None,
            ),
            slots=slots,
            requests=tuple(finished[:SHOWN_REQUESTS]),
            totals=totals(
                answer.counters if answer else None,
                requests,
                launched.running.probe_tokens if launched else (0, 0),
                log.uncounted if log else "",
            ),
            kv_bytes_per_token=log.split.kv_bytes_per_token if log else None,
            kv_cells=(log.split.kv_cells or None) if log else None,
            problems=problems,
        )


def age_of(process: ProcessIdentity) -> float:
    """Seconds since ``process`` started, to the clock tick; its log's clock began then."""
    ticks = os.sysconf("SC_CLK_TCK")
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return uptime - process.start_ticks / ticks


def _slot_state(states: list[str]) -> str:
    if "answering" in states:
        return "answering"
    return "prefill" if "prefill" in states else "idle"


def _foreign_key(paths: Paths, config: Config, url: str) -> str | None:
    from gpubox.server.api_keys import api_key_for

    try:
        return api_key_for(paths, config, url)
    except GpuboxError:
        return None  # said by /slots answering 401


def _key(paths: Paths) -> str | None:
    try:
        return api_key(paths)
    except GpuboxError:
        return None  # said by /slots answering 401
