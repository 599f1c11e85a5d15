"""Continuous readings of all GPUs: a thread keeps NVML open and stores its newest reading."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpubox.hardware import nvml
from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.nvml_card import NvmlBinding, ProcessNames, fast_fields, slow_fields, traffic_fields
from gpubox.hardware.sysfs import SYSFS, DrmProcesses, has_nvidia_card, read_drm_processes, read_sysfs_gpus

PERIOD_SECONDS = 0.25
TRAFFIC_SECONDS = 1.0
"""PCIe counters block for 20 ms for each card and direction."""
SLOW_SECONDS = 2.0
RETRY_SECONDS = 5.0
"""Between two attempts to find a missing driver or a lost card. Each opens NVML again."""
RETRY_BESIDE_SECONDS = 30.0
"""The same while another card answers, because its readings pause during an attempt."""
CLOSE_SECONDS = 0.5
NOT_YET = "the GPU driver has not answered yet"


@dataclass(slots=True)
class _Card:
    """What the reader keeps about one card."""

    gpu: Gpu
    uuid: str | None = None
    handle: Any = None
    lost_at: datetime | None = None
    why: str = ""
    """The driver's own reason, if it did not report the card as lost."""


class DriverReader:
    """Reads every card each ``period`` seconds in a daemon thread, from now until ``close``.

    ``clock`` and ``sysfs`` are for tests. A context manager that closes the reader at the end.
    """

    def __init__(
        self, period: float = PERIOD_SECONDS, *, sysfs: Path = SYSFS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._period, self._sysfs, self._clock = period, sysfs, clock
        self._nvml: NvmlBinding | None = None
        self._cards: list[_Card] = []
        self._others: tuple[Gpu, ...] = ()
        self._drm_processes: DrmProcesses = {}
        self._nvidia_card = False
        self._names: ProcessNames = {}
        self._version: str | None = None
        self._failure = ""
        self._done_at: dict[str, float] = {}
        self._asking_since: float | None = None
        self._latest = (DriverReading((), problem=NOT_YET), clock())
        self._begun = self._ended = 0
        self._closing = self._wanted = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="driver-reader")
        self._thread.start()

    def latest(self) -> DriverReading:
        """The newest reading. Never blocks.

        If the driver has not answered for QUERY_SECONDS, it is the last reading with ``problem`` DRIVER_HANGS and its
        age in ``stale_seconds``. A lost card keeps its last values; ``problem`` says since when it is lost.
        """
        reading, at = self._latest
        asking, now = self._asking_since, self._clock()
        if asking is not None and now - asking > nvml.QUERY_SECONDS:
            return replace(reading, problem=nvml.DRIVER_HANGS, stale_seconds=round(now - at, 1))
        return reading

    def fresh(self, seconds: float) -> DriverReading:
        """A reading that begins after this call; ``latest()`` if there is none after ``seconds``."""
        with self._condition:
            awaited = self._begun + 1
            self._wanted = True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._ended >= awaited or self._closing, seconds)
        return self.latest()

    def close(self) -> None:
        """Stops reading. Waits at most CLOSE_SECONDS; a query that hangs is abandoned."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(CLOSE_SECONDS)

    def __enter__(self) -> DriverReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._closing:
                    break
                self._wanted = False
                self._begun += 1
            began = self._asking_since = self._clock()
            reading = self._read()
            self._latest = (reading, self._clock())
            self._asking_since = None
            with self._condition:
                self._ended = self._begun
                self._condition.notify_all()
                left = self._period - (self._clock() - began)
                self._condition.wait_for(lambda: self._closing or self._wanted, max(left, 0.0))
        self._drop()

    def _read(self) -> DriverReading:
        slow, traffic = self._is_due("slow", SLOW_SECONDS), self._is_due("traffic", TRAFFIC_SECONDS)
        try:
            self._read_nvidia(slow, traffic)
        except Exception as error:  # a broken binding must not end the thread
            self._fail(f"the NVIDIA driver cannot be queried: {error}")
        if slow or self._others:
            self._others = read_sysfs_gpus(self._sysfs, self._drm_processes)
        if slow and self._others:
            self._nvidia_card = has_nvidia_card(self._sysfs)
            self._drm_processes = read_drm_processes()  # looks into every process: not at each reading
        cards = sorted((card.gpu for card in self._cards), key=lambda gpu: gpu.index)
        reading = DriverReading(tuple(cards), self._version, self._problem())
        return nvml.with_sysfs_gpus(reading, self._others, self._nvidia_card)

    def _read_nvidia(self, slow: bool, traffic: bool) -> None:
        answering = [card for card in self._cards if not card.lost_at]
        if (self._nvml is None or len(answering) < len(self._cards) or not self._cards) and self._is_due(
            "open", RETRY_BESIDE_SECONDS if answering else RETRY_SECONDS
        ):
            self._open()
            slow = traffic = True
        if slow:
            self._names.clear()
        for card in self._cards:
            if self._nvml and card.handle is not None:
                self._read_card(self._nvml, card, slow, traffic)

    def _is_due(self, task: str, seconds: float) -> bool:
        """Whether ``task`` was last done at least ``seconds`` ago; if so, it counts as done now."""
        now = self._clock()
        if now - self._done_at.get(task, float("-inf")) < seconds:
            return False
        self._done_at[task] = now
        return True

    def _open(self) -> None:
        """Opens NVML again and matches its cards with the known ones. A known card that is missing is lost."""
        self._drop()
        binding, problem = nvml.open_nvml()
        if binding is None:
            self._fail(problem)
            return
        self._nvml = binding
        self._version = binding.text("SystemGetDriverVersion")
        count = binding.ask("DeviceGetCount") or 0
        for index in range(count):
            binding.begin()
            handle = binding.ask("DeviceGetHandleByIndex", index)
            card = self._card(index, binding.text("DeviceGetUUID", handle) if handle is not None else None)
            card.handle = handle
            if handle is None:
                self._lose(card, "" if binding.lost else binding.refusal)
        self._failure = "" if self._cards else nvml.NO_GPU
        for card in self._cards:
            if card.handle is None:
                self._lose(card, "")

    def _card(self, index: int, uuid: str | None) -> _Card:
        """The known card with this ``uuid`` (or this ``index`` if one has no uuid), or a new one."""
        for card in self._cards:
            if card.uuid == uuid if card.uuid and uuid else card.gpu.index == index:
                card.uuid = card.uuid or uuid
                return card
        self._cards.append(_Card(Gpu(index), uuid))
        return self._cards[-1]

    def _fail(self, problem: str) -> None:
        """NVML does not work at all: every known card is lost for that reason."""
        self._drop()
        self._failure = problem
        for card in self._cards:
            self._lose(card, problem)

    def _drop(self) -> None:
        """Closes NVML if it is open. The cards keep their last readings."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.ask("Shutdown")
        self._nvml = None
        for card in self._cards:
            card.handle = None

    def _read_card(self, binding: NvmlBinding, card: _Card, slow: bool, traffic: bool) -> None:
        """Updates all values of one card, or none."""
        binding.begin()
        values = traffic_fields(binding, card.handle) if traffic else {}
        values |= fast_fields(binding, card.handle, self._names)
        unreachable = binding.unreachable
        if slow and not unreachable:
            values |= slow_fields(binding, card.handle)
        if unreachable or binding.lost:
            self._lose(card, "" if binding.lost else binding.refusal)
        else:
            card.gpu = replace(card.gpu, **values, lost=False, lost_at=None)
            card.lost_at, card.why = None, ""

    def _lose(self, card: _Card, why: str) -> None:
        """Marks ``card`` as lost. If it already is, it keeps its time and reason."""
        card.handle = None
        if card.lost_at is None:
            card.lost_at, card.why = datetime.now(UTC), why
            card.gpu = replace(card.gpu, lost=True, lost_at=card.lost_at.isoformat(timespec="seconds"))

    def _problem(self) -> str:
        groups: dict[tuple[str, str], list[int]] = {}
        for card in self._cards:
            if card.lost_at:
                since = card.lost_at.astimezone().strftime("%H:%M:%S")
                groups.setdefault((since, card.why), []).append(card.gpu.index)
        lost = (nvml.lost_problem(sorted(cards), *since_and_why) for since_and_why, cards in groups.items())
        return "; ".join(lost) or self._failure
