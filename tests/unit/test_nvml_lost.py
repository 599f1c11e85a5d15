"""Continuous readings with lost and returned cards, refused fields, no driver or a broken one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.nvml_reader import DriverReader
from tests.fake_nvml import GIB, LONG, Clock, Driver, Start, nvml_memory, used, watching


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path) -> Iterator[Start]:
    yield from watching(monkeypatch, clock, tmp_path)


def test_what_a_card_stops_supporting_becomes_unknown(start: Start) -> None:
    driver = Driver()
    reader = start(driver)
    assert reader.fresh(LONG).gpus[0].power_watts == 36.5

    driver.refuse("DeviceGetPowerUsage")

    reading = reader.fresh(LONG)
    assert (reading.gpus[0].power_watts, reading.gpus[0].lost, reading.problem) == (None, False, "")


def test_a_card_that_supports_nothing_is_not_lost(start: Start) -> None:
    driver = Driver()
    for name in dir(driver):
        if name.startswith("nvmlDeviceGet") and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
            driver.refuse(name.removeprefix("nvml"))

    reading = start(driver).fresh(LONG)

    assert (reading.gpus, reading.problem) == ((Gpu(0, processes_known=False),), "")


def test_a_lost_card_keeps_its_last_readings_and_the_other_goes_on(start: Start) -> None:
    driver = Driver(cards=2)
    reader = start(driver)
    reader.fresh(LONG)
    driver.lost.add(1)
    driver.answer("DeviceGetMemoryInfo", lambda card, version=None: nvml_memory(5 * GIB))

    reading = reader.fresh(LONG)

    assert used(reading) == [5 * GIB, 2 * GIB]
    assert [gpu.lost for gpu in reading.gpus] == [False, True]
    assert reading.gpus[1].lost_at is not None and reading.gpus[1].lost_at.endswith("+00:00")
    assert re.fullmatch(r"GPU 1 LOST at \d\d:\d\d:\d\d: it fell off the bus; only a reboot .*", reading.problem)


def test_a_lost_card_comes_back_when_nvml_is_opened_anew(start: Start, clock: Clock) -> None:
    driver = Driver()
    reader = start(driver)
    reader.fresh(LONG)
    driver.lost.add(0)
    lost = reader.fresh(LONG)
    clock.now += 3
    assert reader.fresh(LONG) == lost, "the time of the loss stays"
    clock.now += 3
    assert reader.fresh(LONG) == lost, "it was looked for in vain"
    driver.lost.clear()
    driver.answer("DeviceGetMemoryInfo", lambda card, version=None: nvml_memory(5 * GIB))
    assert reader.fresh(LONG) == lost, "it is not looked for all the time"
    clock.now += 6

    reading = reader.fresh(LONG)

    assert (used(reading), reading.gpus[0].lost, reading.gpus[0].lost_at, reading.problem) == (
        [5 * GIB],
        False,
        None,
        "",
    )
    assert driver.calls.count("Init") == driver.calls.count("Shutdown") + 1


def test_a_card_is_known_by_its_uuid_when_another_one_vanishes(start: Start, clock: Clock) -> None:
    driver = Driver(cards=2)
    reader = start(driver)
    reader.fresh(LONG)
    driver.lost.add(0)
    reader.fresh(LONG)
    driver.answer("DeviceGetCount", lambda: 1)
    driver.answer("DeviceGetHandleByIndex", lambda index: 1)  # the second card is the first now
    driver.lost.clear()
    clock.now += 60

    reading = reader.fresh(LONG)

    assert [(gpu.index, gpu.uuid, gpu.lost) for gpu in reading.gpus] == [(0, "GPU-0", True), (1, "GPU-1", False)]


def test_a_card_lost_from_the_start_is_shown_and_read_later(start: Start, clock: Clock) -> None:
    driver = Driver()
    driver.lost.add(0)
    reader = start(driver)
    reading = reader.fresh(LONG)
    assert [(gpu.name, gpu.lost) for gpu in reading.gpus] == [(None, True)]
    assert reading.problem.startswith("GPU 0 LOST at ")

    driver.lost.clear()
    clock.now += 6

    reading = reader.fresh(LONG)
    assert [(gpu.uuid, gpu.lost) for gpu in reading.gpus] == [("GPU-0", False)]


def test_a_card_that_refuses_everything_is_lost_with_the_drivers_words(start: Start) -> None:
    driver = Driver()
    reader = start(driver)
    reader.fresh(LONG)
    for name in dir(driver):
        if name.startswith("nvmlDeviceGet"):
            driver.refuse(name.removeprefix("nvml"), "Unknown")

    reading = reader.fresh(LONG)

    assert (used(reading), reading.gpus[0].lost) == ([GIB], True)
    assert re.fullmatch(r"GPU 0 LOST at \d\d:\d\d:\d\d: Unknown", reading.problem)


def test_a_driver_that_appears_later_is_found(start: Start, clock: Clock) -> None:
    driver = Driver()
    working_init = driver.nvmlInit
    driver.refuse("Init", "LibraryNotFound")
    reader = start(driver)
    assert reader.fresh(LONG) == DriverReading((), problem="no NVIDIA driver")

    driver.answer("Init", working_init)
    assert reader.fresh(LONG).problem == "no NVIDIA driver"
    clock.now += 6

    reading = reader.fresh(LONG)
    assert (reading.problem, used(reading)) == ("", [GIB])


def test_a_driver_that_goes_away_loses_all_cards_until_it_is_back(start: Start, clock: Clock) -> None:
    driver = Driver(cards=2)
    reader = start(driver)
    reader.fresh(LONG)
    working_init = driver.nvmlInit
    driver.refuse("Init", "DriverNotLoaded")
    driver.lost |= {0, 1}
    reader.fresh(LONG)
    clock.now += 6

    reading = reader.fresh(LONG)
    assert [(gpu.vram_used_bytes, gpu.lost) for gpu in reading.gpus] == [(GIB, True), (2 * GIB, True)]
    assert reading.problem.startswith("GPU 0, 1 LOST at ")

    driver.answer("Init", working_init)
    driver.lost.clear()
    clock.now += 6
    assert reader.fresh(LONG).problem == ""


def test_a_driver_without_a_card_may_get_one(start: Start, clock: Clock) -> None:
    driver = Driver()
    driver.answer("DeviceGetCount", lambda: 0)
    reader = start(driver)
    assert reader.fresh(LONG).problem == "the driver sees no GPU"

    driver.answer("DeviceGetCount", lambda: 1)
    clock.now += 6
    assert used(reader.fresh(LONG)) == [GIB]


def test_a_broken_binding_ends_neither_thread_nor_readings(
    start: Start, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = Driver()
    reader = start(driver)
    reader.fresh(LONG)

    def broken(card: int) -> None:
        raise OSError("file too short")

    working = driver.nvmlDeviceGetPowerUsage
    driver.answer("DeviceGetPowerUsage", broken)
    reading = reader.fresh(LONG)
    assert (used(reading), reading.gpus[0].lost) == ([GIB], True)
    assert reading.problem.endswith(": the NVIDIA driver cannot be queried: file too short")

    driver.answer("DeviceGetPowerUsage", working)
    clock.now += 6
    assert reader.fresh(LONG).problem == ""
    assert capfd.readouterr() == ("", "")


def test_no_binding_at_all_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with DriverReader(sysfs=tmp_path) as reader:
        assert reader.fresh(LONG).problem.startswith("the NVIDIA driver cannot be queried: ")
