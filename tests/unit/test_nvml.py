"""The funnel to the NVIDIA driver, with a driver that answers, refuses, lies and hangs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpubox.hardware import nvml
from gpubox.hardware.nvml import GpuProcess, read_driver, vram_used

GIB = 1024**3


class Driver(ModuleType):
    """The functions of pynvml that gpubox calls, for a box of ``cards``; ``refuse`` makes one raise."""

    def __init__(self, cards: int = 1) -> None:
        super().__init__("pynvml")
        self.NVMLError = type("NVMLError", (Exception,), {})
        for name in ("LibraryNotFound", "NotSupported", "GpuIsLost", "DriverNotLoaded"):
            setattr(self, f"NVMLError_{name}", type(name, (self.NVMLError,), {}))
        self.NVML_TEMPERATURE_GPU, self.NVML_PCIE_UTIL_TX_BYTES, self.NVML_PCIE_UTIL_RX_BYTES = 0, 0, 1
        answers: dict[str, Callable[..., Any]] = {
            "Init": lambda: None,
            "Shutdown": lambda: None,
            "DeviceGetCount": lambda: cards,
            "SystemGetDriverVersion": lambda: "580.65",
            "DeviceGetHandleByIndex": lambda index: index,
            "DeviceGetMemoryInfo": lambda card: SimpleNamespace(total=16 * GIB, used=(card + 1) * GIB),
            "DeviceGetName": lambda card: b"NVIDIA GeForce RTX 5060 Ti",
            "DeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=0),
            "DeviceGetTemperature": lambda card, kind: 41,
            "DeviceGetPowerUsage": lambda card: 36_500,
            "DeviceGetEnforcedPowerLimit": lambda card: 180_000,
            "DeviceGetPcieThroughput": lambda card, kind: 7 if kind == 1 else 0,
            "DeviceGetComputeRunningProcesses": lambda card: [SimpleNamespace(pid=7, usedGpuMemory=None)],
            "DeviceGetGraphicsRunningProcesses": lambda card: [SimpleNamespace(pid=8, usedGpuMemory=GIB)],
            "SystemGetProcessName": lambda pid: b"/opt/llama-server\n" if pid == 7 else "Xorg",
        }
        for name, answer in answers.items():
            setattr(self, f"nvml{name}", answer)

    def refuse(self, function: str, error: str = "NotSupported") -> None:
        kind = getattr(self, f"NVMLError_{error}")

        def raises(*args: object) -> None:
            raise kind(error)

        setattr(self, f"nvml{function}", raises)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_card_that_answers_everything(driver: Driver) -> None:
    reading = read_driver()

    (gpu,) = reading.gpus
    assert (reading.driver_version, reading.problem) == ("580.65", "")
    assert (gpu.index, gpu.name, gpu.vram_total_bytes, gpu.vram_used_bytes) == (
        0,
        "NVIDIA GeForce RTX 5060 Ti",
        16 * GIB,
        GIB,
    )
    assert (gpu.utilization_percent, gpu.temperature_celsius) == (0, 41)
    assert (gpu.power_watts, gpu.power_limit_watts) == (36.5, 180.0)
    assert (gpu.pcie_rx_bytes_per_second, gpu.pcie_tx_bytes_per_second) == (7000, 0)
    assert gpu.processes == (GpuProcess(7, "/opt/llama-server", None), GpuProcess(8, "Xorg", GIB))


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("DeviceGetMemoryInfo", "vram_total_bytes"),
        ("DeviceGetMemoryInfo", "vram_used_bytes"),
        ("DeviceGetName", "name"),
        ("DeviceGetUtilizationRates", "utilization_percent"),
        ("DeviceGetTemperature", "temperature_celsius"),
        ("DeviceGetPowerUsage", "power_watts"),
        ("DeviceGetEnforcedPowerLimit", "power_limit_watts"),
        ("DeviceGetPcieThroughput", "pcie_rx_bytes_per_second"),
        ("DeviceGetPcieThroughput", "pcie_tx_bytes_per_second"),
    ],
)
def test_what_the_card_does_not_say_is_unknown_and_the_rest_is_there(driver: Driver, function: str, field: str) -> None:
    driver.refuse(function)

    reading = read_driver()

    assert getattr(reading.gpus[0], field) is None
    assert reading.gpus[0].processes
    assert reading.problem == ""


def test_processes_that_the_driver_will_not_list_are_none(driver: Driver) -> None:
    driver.refuse("DeviceGetComputeRunningProcesses")
    driver.refuse("SystemGetProcessName")

    assert read_driver().gpus[0].processes == (GpuProcess(8, None, GIB),)


def test_a_process_name_that_is_no_text_is_unknown(driver: Driver) -> None:
    def undecodable(pid: int) -> str:
        return b"caf\xe9".decode()

    driver.nvmlSystemGetProcessName = undecodable

    assert [p.name for p in read_driver().gpus[0].processes] == [None, None]


def test_a_lost_card_is_named_and_the_others_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(cards=2)
    handle = driver.nvmlDeviceGetHandleByIndex

    def lost(index: int) -> int:
        if index == 1:
            raise driver.NVMLError_GpuIsLost("lost")
        return int(handle(index))

    driver.nvmlDeviceGetHandleByIndex = lost
    monkeypatch.setitem(sys.modules, "pynvml", driver)

    reading = read_driver()

    assert [gpu.index for gpu in reading.gpus] == [0]
    assert reading.problem.startswith("GPU 1 LOST")
    assert vram_used() == (GIB,)


@pytest.mark.parametrize(
    ("error", "words"),
    [("LibraryNotFound", "no NVIDIA driver"), ("DriverNotLoaded", "the NVIDIA driver fails")],
)
def test_no_driver_is_a_fact_and_not_an_error(driver: Driver, error: str, words: str) -> None:
    driver.refuse("Init", error)

    reading = read_driver()

    assert (reading.gpus, reading.driver_version) == ((), None)
    assert reading.problem.startswith(words)
    assert vram_used() is None


def test_a_driver_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Driver(cards=0))

    assert (read_driver().gpus, read_driver().problem) == ((), "the driver sees no GPU")
    assert vram_used() is None


def test_a_broken_binding_is_said_and_prints_no_traceback(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise OSError("libnvidia-ml.so.1: file too short")

    driver.nvmlInit = broken
    assert read_driver().problem == "the NVIDIA driver cannot be asked: libnvidia-ml.so.1: file too short"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "cannot be asked" in read_driver().problem
    assert capfd.readouterr() == ("", "")


def test_a_driver_that_hangs_is_not_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    driver.nvmlDeviceGetMemoryInfo = lambda card: release.wait(30) and None
    monkeypatch.setattr(nvml, "QUERY_SECONDS", 0.05)
    began = time.monotonic()
    try:
        assert read_driver().problem == "the NVIDIA driver does not answer"
        assert vram_used() is None
        assert time.monotonic() - began < 5
    finally:
        release.set()


def test_without_details_only_memory_is_asked(driver: Driver) -> None:
    for function in ("DeviceGetName", "DeviceGetPowerUsage", "DeviceGetComputeRunningProcesses"):
        setattr(driver, f"nvml{function}", None)

    assert vram_used() == (GIB,)


def test_memory_is_only_used_where_it_is_known(driver: Driver) -> None:
    driver.refuse("DeviceGetMemoryInfo")

    assert vram_used() is None
