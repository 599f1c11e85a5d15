"""The thread that reads the driver: its intervals, a driver that hangs, lost and returned cards, and closing."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubox.hardware import nvml, nvml_card, nvml_reader
from gpubox.hardware.gpu import DriverReading, Gpu
from gpubox.hardware.nvml_reader import DriverReader
from tests.fake_nvml import GIB, LONG, Clock, Driver, Start, nvml_memory, used, watching


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path) -> Iterator[Start]:
    yield from watching(monkeypatch, clock, tmp_path)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_the_first_reading_has_everything(start: Start) -> None:
    reader = start(Driver(cards=2))
    reading = reader.fresh(LONG)

    assert reader.fresh(LONG) == reading, "equal readings are equal"
    assert (reading.driver_version, reading.problem, reading.stale_seconds) == ("580.65", "", None)
    assert used(reading) == [GIB, 2 * GIB]
    assert [(gpu.uuid, gpu.name, gpu.pcie_rx_bytes_per_second, gpu.fan_percent) for gpu in reading.gpus] == [
        ("GPU-0", "NVIDIA GeForce RTX 5060 Ti", 7000, 30),
        ("GPU-1", "NVIDIA GeForce RTX 5060 Ti", 7000, 30),
    ]


def test_nothing_is_known_before_the_first_answer(start: Start, driver: Driver) -> None:
    driver.hang()
    reader = start(driver)

    assert reader.latest() == DriverReading((), problem="the GPU driver has not answered yet")


def test_slow_fields_and_traffic_have_their_own_pace(start: Start, clock: Clock, driver: Driver) -> None:
    reader = start(driver)
    reader.fresh(LONG)

    def queries(seconds: float) -> tuple[int, ...]:
        driver.calls.clear()
        clock.now += seconds
        reader.fresh(LONG)
        return tuple(map(driver.calls.count, ("DeviceGetPowerUsage", "DeviceGetPcieThroughput", "DeviceGetName")))

    assert queries(0.25) == (1, 0, 0)
    assert queries(0.75) == (1, 2, 0)
    assert queries(1.0) == (1, 2, 1)
    assert driver.calls.count("Init") == 0, "the driver stays open"


def test_a_slow_field_is_kept_between(start: Start, clock: Clock, driver: Driver) -> None:
    reader = start(driver)
    reader.fresh(LONG)
    driver.answer("DeviceGetTemperature", lambda card, kind: 80)

    assert reader.fresh(LONG).gpus[0].temperature_celsius == 41
    clock.now += 2
    assert reader.fresh(LONG).gpus[0].temperature_celsius == 80


def test_a_driver_that_hangs_leaves_the_last_values_and_their_age_and_recovers(
    start: Start, clock: Clock, driver: Driver
) -> None:
    reader = start(driver)
    before = reader.fresh(LONG)
    driver.hang()
    waiting = threading.Thread(target=reader.fresh, args=(LONG,))
    waiting.start()
    assert driver.blocked.wait(LONG)

    assert reader.latest() == before, "slow is not hanging"
    clock.now += nvml.QUERY_SECONDS + 1
    during = reader.latest()
    assert (during.problem, during.stale_seconds) == ("the NVIDIA driver does not answer", 4.0)
    assert during.gpus == before.gpus

    driver.gate.set()
    waiting.join(LONG)
    after = reader.fresh(LONG)
    assert (after.problem, after.stale_seconds, used(after)) == ("", None, [GIB])


def test_a_query_that_never_comes_back_is_left_behind(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_reader, "CLOSE_SECONDS", 0.01)
    driver = Driver()
    driver.hang()
    reader = start(driver)
    assert driver.blocked.wait(LONG)

    reader.close()

    assert reader._thread.is_alive(), "close came back although the query did not"
    assert reader._thread.daemon
    driver.gate.set()
    reader._thread.join(LONG)
    assert driver.calls[-1] == "Shutdown"


def test_close_interrupts_the_rest_between_two_readings(start: Start, driver: Driver) -> None:
    with start(driver) as reader:
        reader.fresh(LONG)

    assert not reader._thread.is_alive()
    assert driver.calls.count("Shutdown") == 1
    assert reader.fresh(LONG).problem == "", "a closed reader answers with what it has"


def test_names_are_asked_for_again_because_a_pid_gets_a_new_owner(
    start: Start, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = start(Driver())
    assert [p.name for p in reader.fresh(LONG).gpus[0].processes] == ["/opt/llama-server", "Xorg"]
    monkeypatch.setattr(nvml_card, "process_name", lambda pid: "blender")

    assert [p.name for p in reader.fresh(LONG).gpus[0].processes] == ["/opt/llama-server", "Xorg"]
    clock.now += 2
    assert [p.name for p in reader.fresh(LONG).gpus[0].processes] == ["blender", "blender"]


def test_cards_of_other_makes_are_behind_and_alone_they_are_enough(
    start: Start, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_reader, "read_sysfs_gpus", lambda root, processes=None: (Gpu(0),))
    driver = Driver()
    working_init = driver.nvmlInit
    driver.refuse("Init", "LibraryNotFound")
    reader = start(driver)
    assert reader.fresh(LONG) == DriverReading((Gpu(0),))

    driver.answer("Init", working_init)
    clock.now += 6
    reading = reader.fresh(LONG)
    assert [(gpu.index, gpu.uuid) for gpu in reading.gpus] == [(0, "GPU-0"), (1, None)]


def test_it_reads_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: Driver) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    third = threading.Event()

    def power(card: int) -> int:
        if driver.calls.count("DeviceGetPowerUsage") == 3:
            third.set()
        return 36_500

    driver.answer("DeviceGetPowerUsage", power)

    with DriverReader(period=0.001, sysfs=tmp_path):
        assert third.wait(LONG)


def test_what_a_card_stops_supporting_becomes_unknown(start: Start, driver: Driver) -> None:
    reader = start(driver)
    assert reader.fresh(LONG).gpus[0].power_watts == 36.5

    driver.refuse("DeviceGetPowerUsage")

    reading = reader.fresh(LONG)
    assert (reading.gpus[0].power_watts, reading.gpus[0].lost, reading.problem) == (None, False, "")


def test_a_card_that_supports_nothing_is_not_lost(start: Start, driver: Driver) -> None:
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


def test_a_lost_card_comes_back_when_nvml_is_opened_anew(start: Start, clock: Clock, driver: Driver) -> None:
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


def test_a_card_lost_from_the_start_is_shown_and_read_later(start: Start, clock: Clock, driver: Driver) -> None:
    driver.lost.add(0)
    reader = start(driver)
    reading = reader.fresh(LONG)
    assert [(gpu.name, gpu.lost) for gpu in reading.gpus] == [(None, True)]
    assert reading.problem.startswith("GPU 0 LOST at ")

    driver.lost.clear()
    clock.now += 6

    reading = reader.fresh(LONG)
    assert [(gpu.uuid, gpu.lost) for gpu in reading.gpus] == [("GPU-0", False)]


def test_a_card_that_refuses_everything_is_lost_with_the_drivers_words(start: Start, driver: Driver) -> None:
    reader = start(driver)
    reader.fresh(LONG)
    for name in dir(driver):
        if name.startswith("nvmlDeviceGet"):
            driver.refuse(name.removeprefix("nvml"), "Unknown")

    reading = reader.fresh(LONG)

    assert (used(reading), reading.gpus[0].lost) == ([GIB], True)
    assert re.fullmatch(r"GPU 0 LOST at \d\d:\d\d:\d\d: Unknown", reading.problem)


def test_a_driver_that_appears_later_is_found(start: Start, clock: Clock, driver: Driver) -> None:
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


def test_a_driver_without_a_card_may_get_one(start: Start, clock: Clock, driver: Driver) -> None:
    driver.answer("DeviceGetCount", lambda: 0)
    reader = start(driver)
    assert reader.fresh(LONG).problem == "the driver sees no GPU"

    driver.answer("DeviceGetCount", lambda: 1)
    clock.now += 6
    assert used(reader.fresh(LONG)) == [GIB]


def test_a_broken_binding_ends_neither_thread_nor_readings(
    start: Start, clock: Clock, capfd: pytest.CaptureFixture[str], driver: Driver
) -> None:
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
