"""Waiting for released VRAM: until no use falls any more, for a limited time, and only with a driver."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpubox.hardware.gpu import DriverReading, Gpu, GpuProcess
from gpubox.server import server_process as module
from gpubox.server.server_process import vram_in_use, wait_vram_released

GIB = 1024**3


def script(monkeypatch: pytest.MonkeyPatch, readings: Iterable[tuple[int, ...] | None]) -> list[tuple[int, ...] | None]:
    left = list(readings)
    monkeypatch.setattr(module, "vram_used", lambda: left.pop(0))
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0)
    return left


async def test_no_driver_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [None])

    assert await wait_vram_released() == "no GPU driver"


async def test_it_waits_until_every_card_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = [(20 * GIB, GIB), (12 * GIB, 2 * GIB), (2 * GIB, 3 * GIB), (2 * GIB - 1024, 3 * GIB)]
    left = script(monkeypatch, [*falling, None])

    assert await wait_vram_released() == "5.0 GiB in use"
    assert left == [None]


async def test_a_driver_that_stops_answering_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [(2 * GIB,), (GIB,), None])

    assert await wait_vram_released() == "the GPU driver stopped answering"


async def test_a_card_that_vanishes_is_not_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    left = script(monkeypatch, [(GIB, GIB), (GIB,), (GIB,)])

    assert await wait_vram_released() == "1.0 GiB in use"
    assert left == []


async def test_memory_that_never_settles_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    script(monkeypatch, [((100 - n) * GIB,) for n in range(100)])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))

    assert await wait_vram_released() == "still changing after 10 s"


def test_the_zero_line_of_growth_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (
        Gpu(0, vram_used_bytes=3 * GIB, processes=(GpuProcess(7, None, GIB), GpuProcess(8, None, 9))),
        Gpu(1, vram_used_bytes=2 * GIB, processes=(GpuProcess(7, None, None),)),
        Gpu(2),
    )
    monkeypatch.setattr(module, "read_driver", lambda: DriverReading(cards))

    assert vram_in_use(7) == (((0, GIB), (1, 2 * GIB)), (1,))
