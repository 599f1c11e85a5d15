"""Watches for interference during each item: throttling, other programs, swapping, other clients' requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psutil

from gpubox import units
from gpubox.bench.model import Doubt, Sample
from gpubox.bench.target_server import TargetServer
from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.hardware.nvml import read_driver
from gpubox.hardware.nvml_reader import DriverReader
from gpubox.hardware.process import descendants
from gpubox.paths import MAIN_INSTANCE
from gpubox.profiles.profile import is_loopback
from gpubox.server.instance import observe

PERIOD_SECONDS = 0.5
MAX_SAMPLES = 4000
SLOT_WAIT_SECONDS = 10.0
THROTTLE_REASONS = frozenset({"power cap", "thermal", "hw thermal", "power brake", "hw slowdown", "board limit"})
MIN_SWAP_BYTES = 4 << 20
MAX_CLOCK_DRIFT = 0.05
MAX_BUSY_CORES = 0.5
MIN_PROCESS_BYTES = 512 << 20
"""Programs that hold less GPU memory are not reported."""
MIN_CPU_SECONDS, MIN_CLOCK_READINGS = 1.0, 3
"""Shorter items, or items with fewer readings, are judged together with the next ones."""


@dataclass(slots=True)
class ItemReadings:
    """The readings and doubts of one item; complete when the ``watch`` block ends."""

    samples: list[Sample] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)


class InterferenceMonitor:
    """Reads the driver and the host for as long as a run lasts. Without a GPU it watches the host only."""

    def __init__(self, target_server: TargetServer) -> None:
        self._target_server = target_server
        self.driver: DriverReading = read_driver()
        self._reader = DriverReader(PERIOD_SECONDS) if self.driver.gpus else None
        self._known_pids = {process.pid for gpu in self.driver.gpus for process in gpu.processes}
        self._new_processes: set[str] = set()
        self._target_pids: set[int] = set()
        self._first_clock: float | None = None
        self._clocks: list[int] = []
        self._pending_cpu = (0.0, 0.0)
        """(CPU seconds of other processes, wall seconds) since the last check."""
        self._baseline: tuple[float, float] | None = None
        self._reported_tokens = (0.0, 0.0)

    @property
    def other_gpu_processes(self) -> tuple[str, ...]:
        """The names of the programs on the GPUs, without gpubox and the server of the main instance."""
        return tuple(sorted({process.name or "unnamed program" for _, process in self._other_processes()}))

    def initial_doubts(self) -> list[Doubt]:
        """A doubt for each program that holds much GPU memory before the run begins."""
        return [
            Doubt(
                "other GPU process",
                f"{process.name or process.pid} used {units.memory(process.vram_bytes)} of GPU {index} before the run",
            )
            for index, process in self._other_processes()
            if (process.vram_bytes or 0) >= MIN_PROCESS_BYTES
        ]

    def _other_processes(self) -> list[tuple[int, GpuProcess]]:
        server = observe(self._target_server.paths, MAIN_INSTANCE).process
        own = {os.getpid(), *descendants(os.getpid())}
        if server:
            own |= {server.pid, *descendants(server.pid)}
        return [(gpu.index, process) for gpu in self.driver.gpus for process in gpu.processes if process.pid not in own]

    def close(self) -> None:
        """Stops reading."""
        if self._reader:
            self._reader.close()

    async def reset_baseline(self) -> None:
        """Takes the server's token counters as the baseline.

        Waits up to 10 s for slots that a killed run left busy, because their tokens are counted only at release.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SLOT_WAIT_SECONDS):
                while await self._has_busy_slot():
                    await asyncio.sleep(0.1)
        self._target_server.reset_counts()
        self._baseline = await self._token_counters()
        self._reported_tokens = (0.0, 0.0)

    async def foreign_request(self) -> Doubt | None:
        """A doubt if another client has used the target since the last call. To be called between items."""
        server = self._target_server
        if server.active_or_none is None:
            return None
        if server.token_count_unknown:
            await self.reset_baseline()
            return None
        counters, baseline = await self._token_counters(), self._baseline
        if counters and baseline:
            if any(now < before for now, before in zip(counters, baseline, strict=True)):
                await self.reset_baseline()
                return Doubt("setup", "the server's token counters were reset: it was restarted meanwhile")
            prompt, generated = (counters[i] - baseline[i] - server.tokens[i] for i in (0, 1))
            generated -= server.unattributed_tokens
            new_prompt, new_generated = prompt - self._reported_tokens[0], generated - self._reported_tokens[1]
            if max(new_prompt, new_generated) >= 1:
                self._reported_tokens = (prompt, generated)
                text = f"another client used {new_prompt:,.0f} prompt and {new_generated:,.0f} generated tokens"
                return Doubt("foreign request", text)
        for _ in range(3):  # the run's own slot may need a moment to become idle
            if not await self._has_busy_slot():
                return None
            await asyncio.sleep(0.1)
        return Doubt("foreign request", "the server is answering another client's request")

    async def _has_busy_slot(self) -> bool:
        """False if the server does not list its slots."""
        server = self._target_server
        slots = await server.client.slots() if server.active.base_url else None
        return any(slot.busy for slot in slots or ())

    async def _token_counters(self) -> tuple[float, float] | None:
        """The server's counts of prompt tokens and generated tokens; ``None`` without ``/metrics``."""
        server = self._target_server
        counters = await server.client.counters() if server.active.base_url else None
        if not counters or "tokens_predicted_total" not in counters:
            return None
        return counters.get("prompt_tokens_total", 0.0), counters["tokens_predicted_total"]

    @asynccontextmanager
    async def watch(self, item: str) -> AsyncIterator[ItemReadings]:
        """Watches the box while the block runs."""
        readings = ItemReadings()
        running = self._target_server.running
        process = running.process if running else None
        self._target_pids = {process.pid, *descendants(process.pid)} if process else set()
        began, swapped, cpu = time.monotonic(), _swapped_bytes(), self._cpu_seconds_of_others()
        throttling: list[tuple[str, ...]] = []
        task = asyncio.create_task(self._sample(readings, began, throttling))
        try:
            yield readings
        finally:
            task.cancel()
            await asyncio.wait([task])  # `await task` would raise its cancellation, which looks like one of this task
            if not task.cancelled():
                task.result()
            self._check_gpu(readings, item, throttling)
            seconds = time.monotonic() - began
            if (swap := _swapped_bytes() - swapped) > MIN_SWAP_BYTES:
                readings.doubts.append(Doubt("swap", f"{units.memory(swap)} of memory were swapped", item))
            self._check_cpu(readings, item, cpu, self._cpu_seconds_of_others(), seconds)

    async def _sample(self, readings: ItemReadings, began: float, throttling: list[tuple[str, ...]]) -> None:
        while True:
            gpus = self._target_gpus()
            if len(readings.samples) < MAX_SAMPLES:
                readings.samples.append(_sample(time.monotonic() - began, gpus))
            throttling += [gpu.throttle_reasons for gpu in gpus if gpu.throttle_reasons is not None]
            await asyncio.sleep(PERIOD_SECONDS)

    def _target_gpus(self) -> list[Gpu]:
        """The GPUs that the target uses. Not those of another box."""
        if not self._reader or self._measures_another_box():
            return []
        used = self._used([gpu for gpu in self._reader.latest().gpus if not gpu.lost])
        for gpu in used:
            for process in gpu.processes:
                known = process.pid in self._known_pids or process.pid in self._target_pids
                large = process.vram_bytes is None or process.vram_bytes >= MIN_PROCESS_BYTES
                if not known and large and process.pid not in descendants(os.getpid()):  # llama-perplexity is a child
                    self._known_pids.add(process.pid)
                    self._new_processes.add(f"{process.name or process.pid} started to use GPU {gpu.index}")
        return used

    def _used(self, present: list[Gpu]) -> list[Gpu]:
        """All if it is not known: no process of the target, a driver that lists none, pids of another namespace."""
        pids = {process.pid for gpu in present for process in gpu.processes}
        if not self._target_pids or not all(map(psutil.pid_exists, pids)):
            return [gpu for gpu in present if _has(gpu, self._target_pids)] or present
        return [gpu for gpu in present if not gpu.processes_known or _has(gpu, self._target_pids)]

    def _measures_another_box(self) -> bool:
        active = self._target_server.active_or_none
        return bool(active and active.target.url and not is_loopback(urlsplit(active.base_url).hostname or ""))

    def _check_gpu(self, readings: ItemReadings, item: str, throttling: list[tuple[str, ...]]) -> None:
        for reason in sorted({reason for reasons in throttling for reason in reasons} & THROTTLE_REASONS):
            share = sum(reason in reasons for reasons in throttling) / len(throttling)
            text = f"the clocks were limited by {reason} in {share:.0%} of the readings"
            readings.doubts.append(Doubt("throttling", text, item))
        readings.doubts += [Doubt("other GPU process", text, item) for text in sorted(self._new_processes)]
        self._new_processes.clear()
        samples = readings.samples[1:] or readings.samples  # the first one shows the clock before the item
        self._clocks += [sample.clock_sm_mhz for sample in samples if sample.clock_sm_mhz]
        if len(self._clocks) >= MIN_CLOCK_READINGS:
            median = statistics.median(self._clocks)
            self._clocks.clear()
            self._first_clock = self._first_clock or median
            if abs(median / self._first_clock - 1) > MAX_CLOCK_DRIFT:
                text = f"the SM clock was {median:.0f} MHz; it was {self._first_clock:.0f} MHz at the beginning"
                readings.doubts.append(Doubt("clocks", text, item))

    def _check_cpu(
        self, readings: ItemReadings, item: str, before: float | None, after: float | None, seconds: float
    ) -> None:
        if before is None or after is None:
            return
        cpu, wall = self._pending_cpu[0] + after - before, self._pending_cpu[1] + seconds
        self._pending_cpu = (cpu, wall) if wall < MIN_CPU_SECONDS else (0.0, 0.0)
        if wall >= MIN_CPU_SECONDS and cpu / wall > MAX_BUSY_CORES:
            readings.doubts.append(Doubt("busy CPU", f"other programs kept {cpu / wall:.1f} cores busy", item))

    def _cpu_seconds_of_others(self) -> float | None:
        """CPU seconds of all processes but the target and gpubox. ``None`` for a URL target."""
        if self._target_server.running is None:
            return None
        try:
            times = psutil.cpu_times()
            idle = times.idle + getattr(times, "iowait", 0.0)
            total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            own = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self._target_pids)
            own += sum(psutil.Process().cpu_times()[:4])  # includes finished children: programs in the sandbox
        except (psutil.Error, OSError):
            return None
        return total - idle - own


def _has(gpu: Gpu, pids: set[int]) -> bool:
    return any(process.pid in pids for process in gpu.processes)


def _sample(at: float, gpus: list[Gpu]) -> Sample:
    def known(name: str) -> list[Any]:
        return [value for gpu in gpus if (value := getattr(gpu, name)) is not None]

    power, vram = known("power_watts"), known("vram_used_bytes")
    return Sample(
        at=round(at, 3),
        power_watts=round(sum(power), 1) if power else None,
        temperature_celsius=max(known("temperature_celsius"), default=None),
        clock_sm_mhz=min(known("clock_sm_mhz"), default=None),
        vram_used_bytes=sum(vram) if vram else None,
        ram_available_bytes=psutil.virtual_memory().available,
    )


def _swapped_bytes() -> int:
    swap = psutil.swap_memory()
    return int(swap.sin + swap.sout)
