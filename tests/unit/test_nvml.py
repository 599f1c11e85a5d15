"""Single readings of a fake NVIDIA driver that answers, refuses, answers wrongly or hangs."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpubox.hardware import nvml, nvml_card
from gpubox.hardware.gpu import Gpu, GpuProcess
from gpubox.hardware.nvml import read_driver, vram_used
from gpubox.hardware.nvml_card import link_bytes_per_second, throttle_reasons
from tests.fake_nvml import GIB, LONG, MIB, NOT_AVAILABLE, Driver, process

RADEON = Gpu(0, name="Radeon", vram_total_bytes=8, vram_used_bytes=2)


@pytest.fixture(autouse=True)
def only_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the cards and processes of the machine that runs the tests."""
    monkeypatch.setattr(nvml, "read_sysfs_gpus", lambda root, processes=None: ())
    monkeypatch.setattr(nvml_card, "process_name", lambda pid: None)


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
    assert (gpu.uuid, gpu.bus_id, gpu.driver) == ("GPU-0", "00000000:01:00.0", "nvidia")
    assert (gpu.memory_utilization_percent, gpu.clock_sm_mhz, gpu.clock_memory_mhz) == (3, 2600, 14001)
    assert (gpu.fan_percent, gpu.temperature_limit_celsius, gpu.throttle_reasons) == (30, 90, ("power cap",))
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.pcie_max_generation, gpu.pcie_max_width) == (4, 8, 5, 8)
    assert gpu.pcie_link_bytes_per_second == 15_753_846_154
    assert gpu.vram_reserved_bytes == 300 * MIB
    assert (gpu.lost, gpu.lost_at, gpu.processes_known) == (False, None, True)
    assert reading.stale_seconds is None


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
        ("DeviceGetUUID", "uuid"),
        ("DeviceGetPciInfo", "bus_id"),
        ("DeviceGetUtilizationRates", "memory_utilization_percent"),
        ("DeviceGetClockInfo", "clock_sm_mhz"),
        ("DeviceGetClockInfo", "clock_memory_mhz"),
        ("DeviceGetFanSpeed", "fan_percent"),
        ("DeviceGetCurrentClocksEventReasons", "throttle_reasons"),
        ("DeviceGetCurrPcieLinkGeneration", "pcie_generation"),
        ("DeviceGetCurrPcieLinkGeneration", "pcie_link_bytes_per_second"),
        ("DeviceGetCurrPcieLinkWidth", "pcie_width"),
        ("DeviceGetMaxPcieLinkGeneration", "pcie_max_generation"),
        ("DeviceGetMaxPcieLinkWidth", "pcie_max_width"),
        ("DeviceGetMemoryInfo", "vram_reserved_bytes"),
    ],
)
def test_what_the_card_does_not_say_is_unknown_and_the_rest_is_there(driver: Driver, function: str, field: str) -> None:
    driver.refuse(function)

    reading = read_driver()

    assert getattr(reading.gpus[0], field) is None
    assert reading.gpus[0].processes
    assert reading.problem == ""


def test_a_lost_card_is_named_and_the_others_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(cards=2)
    handle = driver.nvmlDeviceGetHandleByIndex

    def lost(index: int) -> int:
        if index == 1:
            raise driver.NVMLError_GpuIsLost("lost")
        return int(handle(index))

    driver.answer("DeviceGetHandleByIndex", lost)
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


def test_a_broken_binding_is_said_and_prints_no_traceback(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise OSError("libnvidia-ml.so.1: file too short")

    driver.answer("Init", broken)
    assert read_driver().problem == "the NVIDIA driver cannot be queried: libnvidia-ml.so.1: file too short"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "cannot be queried" in read_driver().problem
    assert capfd.readouterr() == ("", "")


def test_a_driver_that_hangs_is_not_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.hang()
    monkeypatch.setattr(nvml, "QUERY_SECONDS", 0.05)
    try:
        assert read_driver().problem == "the NVIDIA driver does not answer"
        assert vram_used() is None
        assert driver.calls.count("Init") == 1, "nothing is sent behind a query that hangs"
        (left_behind,) = (thread for thread in threading.enumerate() if thread.name == "nvml")
    finally:
        driver.gate.set()
    left_behind.join(LONG)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert len(read_driver().gpus) >= 1


def _undecodable(pid: int) -> str:
    return b"caf\xe9".decode()


LISTS = ("DeviceGetComputeRunningProcesses", "DeviceGetGraphicsRunningProcesses")
LLAMA, XORG = GpuProcess(7, "/opt/llama-server", None), GpuProcess(8, "Xorg", GIB)


@pytest.mark.parametrize(
    ("refused", "answers", "missing", "expected"),
    [
        ([LISTS[0], "SystemGetProcessName"], {}, [], {"processes": (replace(XORG, name=None),)}),
        ([], {"SystemGetProcessName": _undecodable}, [],
         {"processes": (replace(LLAMA, name=None), replace(XORG, name=None))}),
        ([], {LISTS[0]: lambda card: [process(7, NOT_AVAILABLE)]}, [], {"processes": (LLAMA, XORG)}),
        # a driver that lists none is not one that has none
        ([], dict.fromkeys(LISTS, lambda card: []), [], {"processes": (), "processes_known": True}),
        (LISTS, {}, [], {"processes": (), "processes_known": False}),
        # numbers that mean "not available", and what an older binding does not know
        ([], {"DeviceGetFanSpeed": lambda card: 2**32 - 1}, [], {"fan_percent": None}),
        ([], {"DeviceGetCurrentClocksThrottleReasons": lambda card: 0x20},
         ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetUUID", "nvmlMemory_v2"],
         {"uuid": None, "vram_reserved_bytes": None, "throttle_reasons": ("thermal",)}),
        # a newer card gives only the distance to its limit
        (["DeviceGetTemperatureThreshold"], {}, [], {"temperature_limit_celsius": 41 + 46}),
        (["DeviceGetTemperatureThreshold", "DeviceGetMarginTemperature"], {}, [], {"temperature_limit_celsius": None}),
    ],
)  # fmt: skip
def test_odd_answers(
    driver: Driver, refused: list[str], answers: dict[str, Any], missing: list[str], expected: dict[str, Any]
) -> None:
    for function in refused:
        driver.refuse(function)
    for function, answer in answers.items():
        driver.answer(function, answer)
    for name in missing:
        delattr(driver, name)

    (gpu,) = read_driver().gpus

    assert {name: getattr(gpu, name) for name in expected} == expected


def test_only_memory_is_asked_without_details_and_used_where_it_is_known(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("DeviceGetName", "DeviceGetPowerUsage", "DeviceGetComputeRunningProcesses"):
        setattr(driver, f"nvml{function}", None)
    assert vram_used() == (GIB,)
    driver.refuse("DeviceGetMemoryInfo")
    assert vram_used() is None
    monkeypatch.setitem(sys.modules, "pynvml", Driver(cards=0))
    assert (read_driver().gpus, read_driver().problem) == ((), "the driver sees no GPU")
    assert vram_used() is None


@pytest.mark.parametrize(
    ("computes", "draws", "bytes_"),
    [
        (GIB, GIB, GIB),
        (None, GIB, GIB),
        (GIB, None, GIB),
        (NOT_AVAILABLE, NOT_AVAILABLE, None),
        (2 * GIB, GIB, 2 * GIB),
    ],
)
def test_a_process_on_both_lists_is_one_process(
    driver: Driver, computes: int | None, draws: int | None, bytes_: int | None
) -> None:
    driver.answer("DeviceGetComputeRunningProcesses", lambda card: [process(7, computes)])
    driver.answer("DeviceGetGraphicsRunningProcesses", lambda card: [process(7, draws)])

    assert read_driver().gpus[0].processes == (GpuProcess(7, "/opt/llama-server", bytes_),)


def test_a_card_lost_between_two_queries_is_marked(driver: Driver) -> None:
    driver.refuse("DeviceGetMemoryInfo", "GpuIsLost")

    reading = read_driver()

    assert reading.problem == "GPU 0 LOST: it fell off the bus; only a reboot brings it back"
    assert reading.gpus[0].lost


def test_cards_of_other_makes_come_behind(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvml, "read_sysfs_gpus", lambda root, processes=None: (RADEON,))

    assert [(gpu.index, gpu.name) for gpu in read_driver(sysfs=tmp_path).gpus] == [
        (0, "NVIDIA GeForce RTX 5060 Ti"),
        (1, "Radeon"),
    ]
    assert vram_used() == (GIB, 2)


@pytest.mark.parametrize(("plugged", "problem"), [(False, ""), (True, "no NVIDIA driver")])
def test_a_box_without_nvidia_card_lacks_no_driver(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, plugged: bool, problem: str
) -> None:
    driver.refuse("Init", "LibraryNotFound")
    monkeypatch.setattr(nvml, "read_sysfs_gpus", lambda root, processes=None: (RADEON,))
    monkeypatch.setattr(nvml, "has_nvidia_card", lambda root: plugged)

    reading = read_driver()

    assert ([gpu.index for gpu in reading.gpus], reading.problem) == ([0], problem)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, ("power cap",)),
        (0x8 | 0x40, ("hw thermal", "hw slowdown")),
        (0x20 | 0x1, ("thermal",)),
        (0x80 | 0x100 | 0x2, ("power brake", "application clocks", "display clocks")),
        (0x4000, ("reason 0x4000",)),
    ],
)
def test_throttle_bits_are_words(bits: int, words: tuple[str, ...]) -> None:
    assert throttle_reasons(bits) == words


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"),
    [(1, 16, 4.0), (2, 8, 4.0), (3, 16, 15.754), (4, 16, 31.508), (5, 8, 31.508), (5, 16, 63.015), (6, 16, 121.0)],
)
def test_a_link_carries_what_the_specification_says(generation: int, width: int, gigabytes: float) -> None:
    assert link_bytes_per_second(generation, width) == pytest.approx(gigabytes * 1e9, rel=1e-4)


@pytest.mark.parametrize(("generation", "width"), [(None, 8), (4, None), (0, 0), (9, 16)])
def test_an_unknown_link_carries_nobody_knows_what(generation: int | None, width: int | None) -> None:
    assert link_bytes_per_second(generation, width) is None
