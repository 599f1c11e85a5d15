"""The Sampler: turns the sources into one frozen Snapshot a tick. Knows no screen; used by both front ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpubox.config import Config, api_key, foreign_key
from gpubox.errors import GpuboxError
from gpubox.hardware.host import HostReader, ProcessReading, read_process
from gpubox.hardware.nvml import DriverReading
from gpubox.hardware.process import Identity
from gpubox.paths import MAIN_SLOT, Paths
from gpubox.server.log import is_long, trim
from gpubox.server.record import Running
from gpubox.server.slot import SlotView, observe
from gpubox.server.status import ServerStatus, from_view, read_foreign
from gpubox.telemetry.memory import reconcile
from gpubox.telemetry.model import SlotReading, Snapshot
from gpubox.telemetry.offload import Pace, offload, pace
from gpubox.telemetry.rates import SlotRates
from gpubox.telemetry.sources import STALE_SECONDS, LogSource, ServerAnswer, ServerSource
from gpubox.telemetry.throughput import read_slots, throughput, totals

STUCK_SECONDS = 20.0
HUNG_SECONDS = 300.0
"""A batch of a long prompt can take a minute on a CPU, and nothing moves meanwhile; five are a hang, busy or not."""
AT_WORK = 0.1
"""Threads."""
ORPHAN_SECONDS = 1.0
PACE_SECONDS = 1.0
SHOWN_REQUESTS = 200
Driver = Callable[[], DriverReading]


class Launched:
    """The sources of one launch. Made anew when another server runs."""

    def __init__(self, paths: Paths, slot: str, running: Running) -> None:
        launch = running.launch
        self.running = running
        assert running.process is not None
        age = age_of(running.process)
        self.zero = time.monotonic() - age
        """The zero of its log's clock."""
        # A server that is not proven yet will get gpubox's proof as its first request.
        proof = running.proven_at is None or running.proof_tokens != (0, 0)
        self.log = LogSource(
            paths.slot_log(slot), datetime.now(UTC) - timedelta(seconds=age), proof=proof, clock=self.clock
        )
        self.key = _key(paths)
        self.may_ask = not any("sleep-idle-seconds" in word for word in launch.argv)
        self.source = ServerSource(launch.base_url, self.key, may_ask_slots=self.may_ask)
        self.rates = SlotRates()
        self.orphans: dict[tuple[int, int], float] = {}
        """Requests by slot and task that no slot works on, and since when."""
        self.before: tuple[float, ProcessReading] | None = None
        self.pace = Pace()

    def clock(self) -> float:
        """The server's own second now: whatever is done to the wall clock, since it started."""
        return time.monotonic() - self.zero

    async def renew_key(self, paths: Paths, wait: bool) -> None:
        """Asks with the owner's key of now where the one that it was begun with is refused."""
        key = _key(paths)
        if key != self.key:
            await self.source.close()
            self.key = key
            self.source = ServerSource(self.running.launch.base_url, key, may_ask_slots=self.may_ask)
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

    @property
    def at_work(self) -> bool:
        """Whether the process burns CPU: a batch is computed there, or a thread waits for the card."""
        return (self.pace.threads_busy or 0.0) > AT_WORK

    def keep_pace(self, at: float, process: ProcessReading) -> None:
        """Renews the pace once a second: shorter stretches say more about the clock tick than about the work."""
        if self.before is None:
            self.before = (at, process)
        elif at - self.before[0] >= PACE_SECONDS:
            self.pace = pace(self.before[1], process, at - self.before[0])
            self.before = (at, process)


class Sampler:
    """One owner of the sources. ``sample`` never raises for what the world does; ``problems`` says what is missing."""

    def __init__(
        self, paths: Paths, config: Config, driver: Driver, *, slot: str = MAIN_SLOT, url: str | None = None
    ) -> None:
        self.paths, self.config, self.slot, self.url = paths, config, slot, url
        self._driver = driver
        self._host = HostReader()
        self._launched: Launched | None = None
        self._foreign: ServerSource | None = None
        self._foreign_status: ServerStatus | None = None
        self._foreign_rates = SlotRates()

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
        if is_long(log := self.paths.slot_log(self.slot)):
            await asyncio.to_thread(trim, log)
        view = observe(self.paths, self.slot)
        await self._follow(view, wait)
        launched = self._launched
        if launched is None:
            return self._assemble(from_view(view, "stopped"), "down", None, None)
        finished = launched.log.read()
        launched.drop_orphans(time.monotonic())
        if launched.source.latest and launched.source.latest.denied:
            await launched.renew_key(self.paths, wait)
        if finished:
            launched.source.want_counters()
        if finished or launched.log.requests.in_flight:
            launched.source.hurry()
        if wait:
            await launched.source.ask()
        at = time.monotonic()
        for answer in launched.source.take():
            if answer.slots is not None:
                launched.rates.feed(answer.at, answer.slots)
        process = read_process(view.process) if view.process else None
        state, problems = self._state(launched, launched.source.latest, process, at)
        http = {"loading": "loading", "down": "unreachable"}.get(state, "ready")
        latest = launched.source.latest
        if latest is None or latest.status == "unreachable":
            http = "unreachable"
        if state in ("prefill", "answering", "stuck") and http == "ready":
            http = "answering"
        status = from_view(view, http, latest.slots if latest else None, denied=bool(latest and latest.denied))
        return self._assemble(status, state, launched, process, tuple(problems), at)

    async def _sample_foreign(self, wait: bool) -> Snapshot:
        assert self.url is not None
        if self._foreign is None:
            key = _foreign_key(self.paths, self.url)
            self._foreign = ServerSource(self.url, key, may_ask_slots=True)
            self._foreign_status = await read_foreign(self.url, key)
            if not wait:
                self._foreign.start()
        if wait or self._foreign.latest is None:
            await self._foreign.ask()
        at = time.monotonic()
        for answer in self._foreign.take():
            if answer.slots is not None:
                self._foreign_rates.feed(answer.at, answer.slots)
        latest = self._foreign.latest
        assert latest is not None and self._foreign_status is not None
        if latest.status == "ok" and not self._foreign_status.up:
            self._foreign_status = await read_foreign(self.url, _foreign_key(self.paths, self.url))
        slots = read_slots(latest.slots or (), None, self._foreign_rates, at, None)
        state = _slot_state([s.state for s in slots]) if latest.status == "ok" else "loading"
        state = "down" if latest.status in ("unreachable", "error") else state
        http = {"down": "unreachable", "loading": "loading", "idle": "ready"}.get(state, "answering")
        status = replace(self._foreign_status, state=http, slots=latest.slots)
        return self._build(status, state, at, slots, latest, problems=tuple(_http_problems(self._foreign, latest)))

    async def _follow(self, view: SlotView, wait: bool) -> None:
        running = view.running
        known = self._launched.running if self._launched else None
        if running is None or running.process is None:
            await self._forget()
        elif known is None or known.launch_id != running.launch_id or known.process != running.process:
            await self._forget()
            self._launched = Launched(self.paths, self.slot, running)
            if not wait:
                self._launched.source.start()
        elif self._launched:
            self._launched.running = running

    async def _forget(self) -> None:
        if self._launched:
            await self._launched.source.close()
            self._launched = None

    def _state(
        self, launched: Launched, answer: ServerAnswer | None, process: ProcessReading | None, at: float
    ) -> tuple[str, list[str]]:
        problems = [launched.log.problem] if launched.log.problem else []
        if process and process.stopped:
            return "stuck", ["the server process is suspended (SIGSTOP)", *problems]
        if launched.log.asleep:
            return "sleeping", problems
        if answer is None:
            return ("loading" if launched.running.proven_at is None else "idle"), problems
        silent = at - (launched.source.asking_since or at)
        if silent > STALE_SECONDS:
            problems.insert(0, f"the server has not answered for {silent:.0f} s")
        if silent > STUCK_SECONDS:
            return "stuck", problems
        if answer.status != "ok" and launched.running.proven_at is None:
            return "loading", problems
        problems += _http_problems(launched.source, answer)
        if launched.running.proven_at and not launched.log.split.keys:
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
        launched: Launched | None,
        process: ProcessReading | None,
        problems: tuple[str, ...] = (),
        at: float | None = None,
    ) -> Snapshot:
        at = time.monotonic() if at is None else at
        if launched is None:
            state = {"loading": "loading", "stopping": "stopping"}.get(status.state, "down")
            return self._build(status, state, at)
        if process:
            launched.keep_pace(at, process)
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
        answer: ServerAnswer | None = None,
        launched: Launched | None = None,
        process: ProcessReading | None = None,
        clock: float | None = None,
        problems: tuple[str, ...] = (),
    ) -> Snapshot:
        driver, host = self._driver(), self._host.read()
        log = launched.log if launched else None
        requests = log.requests if log else None
        finished = list(requests.finished) if requests else []
        ended = requests.last_ended if requests else None
        return Snapshot(
            at=at,
            time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            server=status,
            driver=driver,
            host=host,
            process=process,
            memory=reconcile(
                log.split if log else None,
                driver.gpus,
                host,
                process,
                status.pid,
                dict(launched.running.loaded_vram) if launched else {},
            ),
            offload=offload(
                log,
                launched.running.launch if launched else None,
                launched.pace if launched else Pace(),
                driver.gpus if driver.stale_seconds is None else (),
                state,
                clock - ended if clock is not None and ended is not None else None,
            ),
            throughput=throughput(state, slots, finished),
            slots=slots,
            requests=tuple(finished[:SHOWN_REQUESTS]),
            totals=totals(
                answer.counters if answer else None,
                requests,
                launched.running.proof_tokens if launched else (0, 0),
                complete=bool(log and log.complete),
            ),
            kv_bytes_per_token=log.split.kv_bytes_per_token if log else None,
            problems=problems,
        )


def age_of(process: Identity) -> float:
    """Seconds since ``process`` started, to the clock tick; its log's clock began then."""
    ticks = os.sysconf("SC_CLK_TCK")
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return uptime - process.start_ticks / ticks


def _http_problems(source: ServerSource, answer: ServerAnswer) -> list[str]:
    if answer.status == "loading":
        return []
    if answer.status != "ok":
        if answer.status == "error":
            return [f"{source.client.base_url} answers with {answer.detail}"]
        return [f"nothing answers at {source.client.base_url} ({answer.detail})"]
    if answer.denied:
        return ["/slots and /metrics want an API key that gpubox does not have"]
    problems = []
    if not source.may_ask_slots:
        problems.append("/slots is not asked, it would keep the server awake: no live speed, no context fill")
    elif not answer.slots:
        problems.append("/slots is off or unreadable: no live speed, no context fill")
    if answer.counters is None:
        problems.append("/metrics is off: no totals")
    return problems


def _slot_state(states: list[str]) -> str:
    if "answering" in states:
        return "answering"
    return "prefill" if "prefill" in states else "idle"


def _foreign_key(paths: Paths, url: str) -> str | None:
    try:
        return foreign_key(paths, url)
    except GpuboxError:
        return None  # said by /slots answering 401


def _key(paths: Paths) -> str | None:
    try:
        return api_key(paths)
    except GpuboxError:
        return None  # said by /slots answering 401
