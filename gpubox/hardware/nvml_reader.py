"""The watching funnel: one thread that keeps the driver open and leaves its newest reading in a mailbox."""

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
from gpubox.hardware.gpu import DriverReading, Gpu, unknown_gpu
from gpubox.hardware.nvml_card import NvmlBinding, ProcessNames, fast_fields, slow_fields, traffic_fields
from gpubox.hardware.sysfs import SYSFS, has_nvidia_card, read_sysfs_gpus

PERIOD_SECONDS = 0.25
TRAFFIC_SECONDS = 1.0
"""PCIe counters block for 20 ms each way and card."""
SLOW_SECONDS = 2.0
RETRY_SECONDS = 5.0
"""How often a missing driver or a lost card is looked for: NVML is opened anew for it."""
RETRY_BESIDE_SECONDS = 30.0
"""The same while another card answers, whose readings pause for it."""
CLOSE_SECONDS = 0.5
NOT_YET = "the GPU driver has not answered yet"


@dataclass(slots=True)
class _Card:
    """One card for as long as the reader lives."""

    gpu: Gpu
    uuid: str | None = None
    handle: Any = None
    lost_at: datetime | None = None
    why: str = ""
    """The driver's words, where it does not say that the card is lost."""


class DriverReader:
    """Reads every card each ``period`` seconds in a daemon thread of its own, from now until ``close``.

    ``clock`` counts seconds and is there for tests, like ``sysfs``. Used as a context manager, it is closed at the end.
    """

    def __init__(
        self, period: float = PERIOD_SECONDS, *, sysfs: Path = SYSFS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._period, self._sysfs, self._clock = period, sysfs, clock
        self._nvml: NvmlBinding | None = None
        self._cards: list[_Card] = []
        self._others: tuple[Gpu, ...] = ()
        self._nvidia_card = False
        self._names: ProcessNames = {}
        self._version: str | None = None
        self._failure = ""
        self._done: dict[str, float] = {}
        self._asking_since: float | None = None
        self._mail = (DriverReading((), problem=NOT_YET), clock())
        self._begun = self._ended = 0
        self._closing = self._wanted = False
        self._turn = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="driver-reader")
        self._thread.start()

    def latest(self) -> DriverReading:
        """The newest reading; never blocks.

        While a query has not come back for QUERY_SECONDS it is the last one with ``problem`` HANGS and its age in
        ``stale_seconds``. A card that was lost has ``lost`` set and keeps its last values; ``problem`` says since when.
        """
        reading, at = self._mail
        asking, now = self._asking_since, self._clock()
        if asking is not None and now - asking > nvml.QUERY_SECONDS:
            return replace(reading, problem=nvml.DRIVER_HANGS, stale_seconds=round(now - at, 1))
        return reading

    def fresh(self, seconds: float) -> DriverReading:
        """A reading begun after this call; after ``seconds`` without one it is ``latest()``."""
        with self._turn:
            awaited = self._begun + 1
            self._wanted = True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._ended >= awaited or self._closing, seconds)
        return self.latest()

    def close(self) -> None:
        """Stops reading. Waits CLOSE_SECONDS at most: a query that hangs is left behind."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        self._thread.join(CLOSE_SECONDS)

    def __enter__(self) -> DriverReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._turn:
                if self._closing:
                    break
                self._wanted = False
                self._begun += 1
            began = self._asking_since = self._clock()
            reading = self._read()
            self._mail = (reading, self._clock())
            self._asking_since = None
            with self._turn:
                self._ended = self._begun
                self._turn.notify_all()
                rest = self._period - (self._clock() - began)
                self._turn.wait_for(lambda: self._closing or self._wanted, max(rest, 0.0))
        self._drop()

    def _read(self) -> DriverReading:
        slow, traffic = self._is_due("slow", SLOW_SECONDS), self._is_due("traffic", TRAFFIC_SECONDS)
        try:
            self._read_nvidia(slow, traffic)
        except Exception as error:  # a broken binding ends neither the thread nor the screen
            self._fail(f"the NVIDIA driver cannot be asked: {error}")
        if slow or self._others:
            self._others = read_sysfs_gpus(self._sysfs)
        if slow and self._others:
            self._nvidia_card = has_nvidia_card(self._sysfs)
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

    def _is_due(self, what: str, seconds: float) -> bool:
        """Whether ``what`` was done ``seconds`` ago or earlier; if so, now counts as done."""
        now = self._clock()
        if now - self._done.get(what, float("-inf")) < seconds:
            return False
        self._done[what] = now
        return True

    def _open(self) -> None:
        """Opens NVML anew and finds the known cards in it. One that is not there is lost."""
        self._drop()
        module = nvml.import_nvml()
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            self._fail(nvml.init_problem(module, error))
            return
        self._nvml = binding = NvmlBinding(module)
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
        """The card known by ``uuid`` (or, where one has none, by ``index``), or a new one. It keeps its first index."""
        for card in self._cards:
            if card.uuid == uuid if card.uuid and uuid else card.gpu.index == index:
                card.uuid = card.uuid or uuid
                return card
        self._cards.append(_Card(unknown_gpu(index), uuid))
        return self._cards[-1]

    def _fail(self, problem: str) -> None:
        """NVML as a whole cannot be asked: every card that was known is lost for that reason."""
        self._drop()
        self._failure = problem
        for card in self._cards:
            self._lose(card, problem)

    def _drop(self) -> None:
        """Closes NVML, if it is open; the cards keep their last readings."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.ask("Shutdown")
        self._nvml = None
        for card in self._cards:
            card.handle = None

    def _read_card(self, binding: NvmlBinding, card: _Card, slow: bool, traffic: bool) -> None:
        """One card's new values, all or none."""
        binding.begin()
        values = traffic_fields(binding, card.handle) if traffic else {}
        values |= fast_fields(binding, card.handle, self._names)
        gone = binding.gone
        if slow and not gone:
            values |= slow_fields(binding, card.handle)
        if gone or binding.lost:
            self._lose(card, "" if binding.lost else binding.refusal)
        else:
            card.gpu = replace(card.gpu, **values, lost=False, lost_at=None)
            card.lost_at, card.why = None, ""

    def _lose(self, card: _Card, why: str) -> None:
        """From now on ``card`` has its last values only; a card that is lost already keeps its time and reason."""
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
        lost = (nvml.lost_problem(sorted(cards), *words) for words, cards in groups.items())
        return "; ".join(lost) or self._failure
