"""A fake pynvml: a driver that answers as the test sets it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpubox.hardware import nvml_card
from gpubox.hardware.gpu import DriverReading
from gpubox.hardware.nvml_reader import DriverReader

GIB = 1024**3
MIB = 1024**2
NOT_AVAILABLE = 2**64 - 1
"""NVML's value for the memory of a process that it cannot read."""
LONG = 30.0
"""Far longer than any wait here; a test that waits so long has failed."""
Start = Callable[["Driver"], DriverReader]


class Driver(ModuleType):
    """The functions of pynvml that gpubox calls, for a box of ``cards``; ``refuse`` makes one raise.

    ``lost`` cards refuse everything; ``hangs`` blocks the next query of a card until it is released.
    """

    def __init__(self, cards: int = 1) -> None:
        super().__init__("pynvml")
        self.NVMLError = type("NVMLError", (Exception,), {})
        for name in ("LibraryNotFound", "NotSupported", "GpuIsLost", "DriverNotLoaded", "Unknown"):
            setattr(self, f"NVMLError_{name}", type(name, (self.NVMLError,), {}))
        self.NVML_TEMPERATURE_GPU, self.NVML_PCIE_UTIL_TX_BYTES, self.NVML_PCIE_UTIL_RX_BYTES = 0, 0, 1
        self.nvmlMemory_v2 = 0x2000028
        self.lost: set[int] = set()
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.blocked = threading.Event()
        answers: dict[str, Callable[..., Any]] = {
            "Init": lambda: None,
            "Shutdown": lambda: None,
            "DeviceGetCount": lambda: cards,
            "SystemGetDriverVersion": lambda: "580.65",
            "DeviceGetHandleByIndex": lambda index: index,
            "DeviceGetMemoryInfo": lambda card, version=None: SimpleNamespace(
                total=16 * GIB, used=(card + 1) * GIB, reserved=300 * MIB
            ),
            "DeviceGetName": lambda card: b"NVIDIA GeForce RTX 5060 Ti",
            "DeviceGetUUID": lambda card: f"GPU-{card}",
            "DeviceGetPciInfo": lambda card: SimpleNamespace(busId=f"00000000:0{card + 1}:00.0".encode()),
            "DeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=0, memory=3),
            "DeviceGetTemperature": lambda card, kind: 41,
            "DeviceGetTemperatureThreshold": lambda card, kind: 90 if kind == 1 else 95,
            "DeviceGetMarginTemperature": lambda card: 46,
            "DeviceGetPowerUsage": lambda card: 36_500,
            "DeviceGetEnforcedPowerLimit": lambda card: 180_000,
            "DeviceGetFanSpeed": lambda card: 30,
            "DeviceGetClockInfo": lambda card, kind: 2600 if kind == 1 else 14001,
            "DeviceGetCurrentClocksEventReasons": lambda card: 0x1 | 0x4,
            "DeviceGetCurrPcieLinkGeneration": lambda card: 4,
            "DeviceGetCurrPcieLinkWidth": lambda card: 8,
            "DeviceGetMaxPcieLinkGeneration": lambda card: 5,
            "DeviceGetMaxPcieLinkWidth": lambda card: 8,
            "DeviceGetPcieThroughput": lambda card, kind: 7 if kind == 1 else 0,
            "DeviceGetComputeRunningProcesses": lambda card: [process(7, None)],
            "DeviceGetGraphicsRunningProcesses": lambda card: [process(8, GIB)],
            "SystemGetProcessName": lambda pid: b"/opt/llama-server\n" if pid == 7 else "Xorg",
        }
        for name, answer in answers.items():
            self.answer(name, answer)

    def answer(self, function: str, answer: Callable[..., Any]) -> None:
        """``nvml<function>`` answers so from now on."""

        def query(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(function)
            if function.startswith("DeviceGet") and args:
                if not self.gate.is_set():
                    self.blocked.set()
                    self.gate.wait(60)
                if args[0] in self.lost:
                    raise self.NVMLError_GpuIsLost("GPU is lost")
            return answer(*args, **kwargs)

        setattr(self, f"nvml{function}", query)

    def refuse(self, function: str, error: str = "NotSupported") -> None:
        """``nvml<function>`` raises from now on."""
        kind = getattr(self, f"NVMLError_{error}")

        def raises(*args: object, **kwargs: object) -> None:
            raise kind(error)

        self.answer(function, raises)

    def hang(self) -> None:
        """Every query of a card blocks from now on; ``blocked`` is set when one does."""
        self.blocked.clear()
        self.gate.clear()


def process(pid: int, vram_bytes: int | None) -> SimpleNamespace:
    """One entry of NVML's process lists."""
    return SimpleNamespace(pid=pid, usedGpuMemory=vram_bytes)


def nvml_memory(used_bytes: int) -> SimpleNamespace:
    """An answer of nvmlDeviceGetMemoryInfo."""
    return SimpleNamespace(total=16 * GIB, used=used_bytes, reserved=0)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def watching(monkeypatch: pytest.MonkeyPatch, clock: Clock, sysfs: Path) -> Iterator[Start]:
    """What a fixture yields: starts a reader of a driver, and ends it after the test.

    It rests for ever between two readings, so that each is one asked for with ``fresh``.
    """
    readers: list[tuple[DriverReader, Driver]] = []
    monkeypatch.setattr(nvml_card, "process_name", lambda pid: None)

    def starts(driver: Driver) -> DriverReader:
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        readers.append((DriverReader(period=3600, sysfs=sysfs, clock=clock), driver))
        return readers[-1][0]

    yield starts
    for reader, driver in readers:
        driver.gate.set()
        reader.close()
        assert not reader._thread.is_alive()


def used(reading: DriverReading) -> list[int | None]:
    return [gpu.vram_used_bytes for gpu in reading.gpus]
