"""What can spoil a measurement without a word: watched during each item, told as Flags."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psutil

from gpubox import units
from gpubox.bench.model import Flag, Sample
from gpubox.bench.target_server import TargetServer
from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.hardware.nvml import read_driver
from gpubox.hardware.nvml_reader import DriverReader
from gpubox.hardware.process import descendants
from gpubox.paths import MAIN_INSTANCE
from gpubox.server.instance import observe

PERIOD_SECONDS = 0.5
MOST_SAMPLES = 4000
SETTLE_SECONDS = 10.0
THROTTLE_REASONS = frozenset({"power cap", "thermal", "hw thermal", "power brake", "hw slowdown", "board limit"})
SWAP_BYTES = 4 << 20
CLOCK_DRIFT = 0.05
BUSY_CORES = 0.5
NEW_PROCESS_BYTES = 512 << 20
JUDGED_SECONDS, JUDGED_CLOCKS = 1.0, 3
"""A shorter item, or fewer readings, are judged together with the next ones."""


@dataclass(slots=True)
class ItemReadings:
    """One item under guard; filled when the block ends."""

    samples: list[Sample] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)


class InterferenceMonitor:
    """Reads driver and host for as long as a run lasts. Without a card only the host is watched."""

    def __init__(self, target_server: TargetServer) -> None:
        self._stand = target_server
        self.driver: DriverReading = read_driver()
        self._reader = DriverReader(PERIOD_SECONDS) if self.driver.gpus else None
        self._known = {process.pid for gpu in self.driver.gpus for process in gpu.processes}
        self._told: set[str] = set()
        self._mine: set[int] = set()
        self._clock: float | None = None
        self._clocks: list[int] = []
        self._used = (0.0, 0.0)
        """CPU seconds of others, and the seconds they took them in, since this was last judged."""
        self._base: tuple[float, float] | None = None
        self._others = (0.0, 0.0)

    @property
    def other_gpu_processes(self) -> tuple[str, ...]:
        """The programs that are on the cards beside the server of the main slot, by name."""
        return tuple(sorted({process.name or "without a name" for _, process in self._strangers()}))

    def at_once(self) -> list[Flag]:
        """A flag for each program that holds much of a card before anything is measured."""
        return [
            Flag(
                "other GPU process",
                f"{p.name or p.pid} held {units.memory(p.vram_bytes)} of GPU {index} already",
            )
            for index, p in self._strangers()
            if (p.vram_bytes or 0) >= NEW_PROCESS_BYTES
        ]

    def _strangers(self) -> list[tuple[int, GpuProcess]]:
        running = observe(self._stand.paths, MAIN_INSTANCE).process
        ours = {os.getpid(), *descendants(os.getpid()), *((running.pid, *descendants(running.pid)) if running else ())}
        return [(gpu.index, p) for gpu in self.driver.gpus for p in gpu.processes if p.pid not in ours]

    def close(self) -> None:
        """Stops reading."""
        if self._reader:
            self._reader.close()

    async def begin(self) -> None:
        """A target came up: what its server has counted so far is nobody's concern.

        What a killed run left in the middle is counted when its slot is free again: that is waited for.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while await self._answering():
                    await asyncio.sleep(0.1)
        self._stand.forget()
        self._base = await self._counted()
        self._others = (0.0, 0.0)

    async def foreign(self) -> Flag | None:
        """Whether anybody else used the target since this was last asked; only between items."""
        if self._stand.up is None:
            return None
        if self._stand.lost:  # what the server counts of a broken answer is nobody else's
            await self.begin()
            return None
        now, base, mine = await self._counted(), self._base, self._stand.tokens
        if now and base and any(new < old for new, old in zip(now, base, strict=True)):
            await self.begin()
            return Flag("setup", "the server counts from the beginning: it was started again meanwhile")
        if now and base:
            prompt, generated = (now[i] - base[i] - mine[i] for i in (0, 1))
            generated -= self._stand.loose
            more = (prompt - self._others[0], generated - self._others[1])
            if max(more) >= 1:
                self._others = (prompt, generated)
                text = f"{more[0]:,.0f} prompt and {more[1]:,.0f} generated tokens were somebody else's"
                return Flag("foreign request", text)
        for _ in range(3):  # our own slot may need a moment to be free
            if not await self._answering():
                return None
            await asyncio.sleep(0.1)
        return Flag("foreign request", "another request is being answered")

    async def _answering(self) -> bool:
        """Whether a slot of the target is busy; false where it does not tell."""
        slots = await self._stand.client.slots() if self._stand.server.base_url else None
        return any(slot.busy for slot in slots or ())

    async def _counted(self) -> tuple[float, float] | None:
        """Prompt tokens read and tokens generated, as the server counts them; ``None`` where it does not tell."""
        counters = await self._stand.client.counters() if self._stand.server.base_url else None
        if not counters or "tokens_predicted_total" not in counters:
            return None
        return counters.get("prompt_tokens_total", 0.0), counters["tokens_predicted_total"]

    @asynccontextmanager
    async def watch(self, item: str) -> AsyncIterator[ItemReadings]:
        """Watches the box while the block runs."""
        watch = ItemReadings()
        self._mine = self._pids()
        began, swap, cpu = time.monotonic(), _swapped(), self._cpu()
        reasons: list[tuple[str, ...]] = []
        task = asyncio.create_task(self._sample(watch, began, reasons))
        try:
            yield watch
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._judge(watch, item, reasons)
            seconds = time.monotonic() - began
            if (more := _swapped() - swap) > SWAP_BYTES:
                watch.flags.append(Flag("swap", f"{units.memory(more)} were swapped", item))
            self._judge_cpu(watch, item, cpu, self._cpu(), seconds)

    async def _sample(self, watch: ItemReadings, began: float, reasons: list[tuple[str, ...]]) -> None:
        while True:
            cards = self._cards()
            if len(watch.samples) < MOST_SAMPLES:
                watch.samples.append(_sample(time.monotonic() - began, cards))
            reasons += [card.throttle_reasons for card in cards if card.throttle_reasons is not None]
            await asyncio.sleep(PERIOD_SECONDS)

    def _cards(self) -> list[Gpu]:
        """The cards that the target uses; all, where the driver does not say."""
        if not self._reader:
            return []
        reading = self._reader.latest()
        mine = self._mine
        cards = [gpu for gpu in reading.gpus if not gpu.lost]
        used = [gpu for gpu in cards if any(process.pid in mine for process in gpu.processes)]
        for gpu in used or cards:
            for process in gpu.processes:
                known = process.pid in self._known or process.pid in mine
                large = process.vram_bytes is None or process.vram_bytes >= NEW_PROCESS_BYTES
                if not known and large and process.pid not in descendants(os.getpid()):  # llama-bench is ours
                    self._known.add(process.pid)
                    self._told.add(f"{process.name or process.pid} came onto GPU {gpu.index}")
        return used or cards

    def _judge(self, watch: ItemReadings, item: str, reasons: list[tuple[str, ...]]) -> None:
        for reason in sorted({word for words in reasons for word in words} & THROTTLE_REASONS):
            share = sum(reason in words for words in reasons) / len(reasons)
            watch.flags.append(Flag("throttling", f"clocks held back by {reason} in {share:.0%} of the readings", item))
        watch.flags += [Flag("other GPU process", text, item) for text in sorted(self._told)]
        self._told.clear()
        later = watch.samples[1:] or watch.samples  # the first one tells what was before the item
        self._clocks += [sample.clock_sm_mhz for sample in later if sample.clock_sm_mhz]
        if len(self._clocks) >= JUDGED_CLOCKS:
            median = statistics.median(self._clocks)
            self._clocks.clear()
            self._clock = self._clock or median
            if abs(median / self._clock - 1) > CLOCK_DRIFT:
                watch.flags.append(
                    Flag("clocks", f"SM clock {median:.0f} MHz, {self._clock:.0f} MHz at the beginning", item)
                )

    def _judge_cpu(
        self, watch: ItemReadings, item: str, before: float | None, after: float | None, seconds: float
    ) -> None:
        if before is None or after is None:
            return
        used, over = self._used[0] + after - before, self._used[1] + seconds
        self._used = (used, over) if over < JUDGED_SECONDS else (0.0, 0.0)
        if over >= JUDGED_SECONDS and used / over > BUSY_CORES:
            watch.flags.append(Flag("busy CPU", f"other programs kept {used / over:.1f} cores busy", item))

    def _pids(self) -> set[int]:
        current = self._stand.running
        if current is None or current.process is None:
            return set()
        return {current.process.pid, *descendants(current.process.pid)}

    def _cpu(self) -> float | None:
        """CPU seconds of everybody but the target and gpubox. ``None`` where the target is not ours to know."""
        if self._stand.running is None:
            return None
        try:
            times = psutil.cpu_times()
            idle = times.idle + getattr(times, "iowait", 0.0)
            everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            mine = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self._mine)
            mine += sum(psutil.Process().cpu_times()[:4])  # with what the programs took that ran in the sandbox
        except (psutil.Error, OSError):
            return None
        return everything - idle - mine


def _sample(at: float, cards: list[Gpu]) -> Sample:
    power = [card.power_watts for card in cards if card.power_watts is not None]
    used = [card.vram_used_bytes for card in cards if card.vram_used_bytes is not None]
    return Sample(
        at=round(at, 3),
        power_watts=round(sum(power), 1) if power else None,
        temperature_celsius=max(
            (c.temperature_celsius for c in cards if c.temperature_celsius is not None), default=None
        ),
        clock_sm_mhz=min((c.clock_sm_mhz for c in cards if c.clock_sm_mhz is not None), default=None),
        vram_used_bytes=sum(used) if used else None,
        ram_available_bytes=psutil.virtual_memory().available,
    )


def _swapped() -> int:
    swap = psutil.swap_memory()
    return int(swap.sin + swap.sout)


def energy_joules(samples: tuple[Sample, ...], begin: float, end: float) -> float | None:
    """Joules between two instants of an item: mean power of the readings in between, times the seconds.

    ``None`` where the driver gave fewer than two.
    """
    watts = [s.power_watts for s in samples if s.power_watts is not None and begin <= s.at <= end]
    return statistics.fmean(watts) * (end - begin) if len(watts) >= 2 and end > begin else None
