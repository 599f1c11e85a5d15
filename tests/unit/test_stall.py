"""A load is ended only if it makes no progress."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.hardware.process import ProcessActivity
from gpubox.server.events import LoadProgress
from gpubox.server.loading import BUSY_CPU_PATIENCE, MAX_LINE_KINDS, LoadLog, StallDetector
from gpubox.server.log import MAX_LOG_BYTES

IDLE = ProcessActivity(cpu_seconds=0.0, rss_bytes=100 << 20, file_rss_bytes=50 << 20, read_chars=1000)


@pytest.fixture
def watch() -> StallDetector:
    return StallDetector(60, at=0)


def test_silence_is_a_stall_and_not_a_moment_sooner(watch: StallDetector) -> None:
    assert [watch.stalled(IDLE, 10, at) for at in (1, 30, 60, 61, 61.1)] == [False, False, False, False, True]


@pytest.mark.parametrize(
    "change", [{"read_chars": 1}, {"rss_bytes": 1 << 20}, {"file_rss_bytes": 1 << 20}], ids=lambda c: next(iter(c))
)
def test_anything_that_grows_is_progress(change: dict[str, int], watch: StallDetector) -> None:
    reading = IDLE
    for at in range(0, 6000, 59):
        ((name, step),) = change.items()
        reading = replace(reading, **{name: getattr(reading, name) + step})
        assert not watch.stalled(reading, 10, at)


def test_new_kinds_of_lines_are_progress_also_where_the_process_is_hidden(watch: StallDetector) -> None:
    assert not any(watch.stalled(None, at, at) for at in range(0, 6000, 59))
    assert watch.stalled(None, 5959, 7000)


def test_memory_that_goes_down_and_up_again_is_no_progress(watch: StallDetector) -> None:
    outcomes = [watch.stalled(replace(IDLE, rss_bytes=(100 + at % 2) << 20), 10, at) for at in range(100)]

    assert outcomes[-1]


def test_memory_that_trembles_below_a_mib_is_no_progress(watch: StallDetector) -> None:
    assert [watch.stalled(replace(IDLE, rss_bytes=IDLE.rss_bytes + at), 10, at) for at in (1, 40, 80)][-1]


def test_cpu_time_alone_is_waited_for_ten_times_longer_and_then_not(watch: StallDetector) -> None:
    outcomes = {at: watch.stalled(replace(IDLE, cpu_seconds=float(at)), 10, at) for at in range(0, 700, 10)}

    assert BUSY_CPU_PATIENCE == 10
    assert not any(stalled for at, stalled in outcomes.items() if at <= 600)
    assert outcomes[610]


def test_a_trickle_of_cpu_is_no_progress(watch: StallDetector) -> None:
    assert watch.stalled(IDLE, 10, 0) is False
    assert watch.stalled(replace(IDLE, cpu_seconds=0.04), 10, 61)


def test_a_load_that_moves_again_gets_its_patience_back(watch: StallDetector) -> None:
    watch.stalled(IDLE, 10, 0)
    watch.stalled(IDLE, 11, 59)

    assert not watch.stalled(IDLE, 11, 118)
    assert watch.stalled(IDLE, 11, 120)


def flood(log: Path, lines: int, text: str = "0.00.001.000 W srv: slot {n} of {n} is at 0x{n:x}, waiting\n") -> int:
    with log.open("a") as server:
        return sum(server.write(text.format(n=n)) for n in range(lines))


def test_lines_that_differ_only_in_numbers_are_one_kind(tmp_path: Path) -> None:
    log = tmp_path / "main.log"
    load_log = LoadLog(log)
    flood(log, 3000)
    load_log.read()
    assert load_log.kinds == 1

    flood(log, 1, "0.01.000.000 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB\n")
    load_log.read()
    assert (load_log.kinds, load_log.stage) == (2, "loading weights")


def test_noise_is_not_progress_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "main.log"
    load_log = LoadLog(log)
    with log.open("a") as server:
        server.writelines("".join(random.choices("abcdefgh", k=40)) + "\n" for _ in range(5 * MAX_LINE_KINDS))
    load_log.read()

    assert load_log.kinds == MAX_LINE_KINDS


def test_a_flood_is_cut_while_it_loads_and_counted_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "main.log"
    load_log, written = LoadLog(log), 0
    flood(log, 1, "0.00.000.100 I srv: the first line\n")
    load_log.read()
    for _ in range(5):
        with log.open("a") as server:
            written += server.write("0.00.001.000 W srv: the same again\n" * (20 * 1024 * 1024 // 35))
        load_log.read()
        load_log.cut()
        assert log.stat().st_size <= MAX_LOG_BYTES

    assert abs(load_log.written - written) < 1000
    assert load_log.kinds == 2
    assert log.read_text().startswith("0.00.000.100 I srv: the first line\n")


@pytest.mark.parametrize(
    ("read", "total", "seconds", "left"),
    [
        (None, 100, 5, None),
        (0, 100, 5, None),
        (50, None, 5, None),
        (50, 100, 0.4, None),
        (25, 100, 5, 15),
        (100, 100, 5, 0),
    ],
)
def test_the_time_left_is_only_said_when_it_means_something(
    read: int | None, total: int | None, seconds: float, left: float | None
) -> None:
    assert LoadProgress("p", "loading weights", read, total, seconds).seconds_left == left
