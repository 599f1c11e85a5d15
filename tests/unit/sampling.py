"""The Sampler in tests: fixtures of the box, the clock and the Sampler, and what a test waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from gpubox.config import Config
from gpubox.hardware.gpu import DriverReading
from gpubox.paths import Paths
from gpubox.telemetry import http_source
from gpubox.telemetry import sampler as sampler_module
from gpubox.telemetry.sampler import Sampler
from gpubox.telemetry.snapshot import Snapshot
from tests.unit.llama_box import LlamaBox

NO_DRIVER = DriverReading((), problem="no NVIDIA driver")
NO_SLOTS = "/slots is off or unreadable: no live speed, no context fill"
NO_METRICS = "/metrics is off: no totals"
DENIED = "/slots and /metrics need an API key that gpubox does not have"
Make = Callable[..., Sampler]


class Time:
    """The monotonic clock of the Sampler, moved by hand alone. asyncio keeps its own."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.ahead = 0.0

    def monotonic(self) -> float:
        return self.began + self.ahead

    time = monotonic


@pytest.fixture
def box(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaBox]:
    """A server that answers. However slow this machine is, it is waited for."""
    monkeypatch.setattr(http_source, "REQUEST_TIMEOUT_SECONDS", 30.0)
    monkeypatch.setattr(sampler_module, "FIRST_SECONDS", 30.0)
    monkeypatch.setattr(http_source, "IDLE_POLL_SECONDS", 0.05)
    built = LlamaBox(paths)
    yield built
    built.close()


@pytest.fixture
async def make(box: LlamaBox) -> AsyncIterator[Make]:
    """Makes Samplers, and closes them at the end."""
    built: list[Sampler] = []

    def start(driver: Callable[[], DriverReading] = lambda: NO_DRIVER, **more: Any) -> Sampler:
        built.append(Sampler(box.paths, Config(), driver, **more))
        return built[-1]

    yield start
    for sampler in built:
        await sampler.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed once is asked for again at once."""
    monkeypatch.setattr(http_source, "RETRY_SECONDS", 0.0)


@pytest.fixture
def brief(box: LlamaBox, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is given up after a blink; so is one that is merely slow: try again."""
    monkeypatch.setattr(http_source, "REQUEST_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(sampler_module, "FIRST_SECONDS", 0.1)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(sampler_module, "time", clock)
    monkeypatch.setattr(sampler_module, "time", clock)
    monkeypatch.setattr(http_source, "time", clock)
    return clock


async def until(sample: Callable[[], Awaitable[Snapshot]], so: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that is ``so``; each one is asked for as the screen does, a moment after the other."""
    async with asyncio.timeout(20):
        while not so(snapshot := await sample()):
            await asyncio.sleep(0.01)
    return snapshot


def healthy(snapshot: Snapshot) -> bool:
    return snapshot.problems == () and snapshot.throughput.slots == 1 and snapshot.totals.generated_tokens is not None
