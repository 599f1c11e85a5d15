"""The Sampler while all is well; the clock; the driver; closing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpubox.paths import Paths
from gpubox.server.responses import QUIET_SECONDS
from gpubox.telemetry import http_source, log_source
from gpubox.telemetry import sampler as sampler_module
from gpubox.telemetry.http_source import HttpReading, HttpSource
from tests.fake_nvml import GIB, LONG, Clock, Driver, Start, process, watching
from tests.unit.llama_box import LlamaBox, done, slot, taken
from tests.unit.sampling import Make, Time, healthy, until


async def test_nobody_asks_a_server_that_has_to_see_that_a_client_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_source, "POLL_SECONDS", 0.0)
    source = HttpSource("http://127.0.0.1:9", None, may_ask_slots=True, left=tmp_path / "left")
    polls: list[float] = []

    async def poll() -> HttpReading:
        polls.append(time.monotonic())
        return HttpReading(polls[-1], "ok")

    monkeypatch.setattr(source, "poll", poll)
    source.start()
    async with asyncio.timeout(20):
        while len(polls) < 3:
            await asyncio.sleep(0)
        (tmp_path / "left").touch()
        seen, left_at = len(polls), time.monotonic()
        while len(polls) < seen + 2:
            await asyncio.sleep(0.01)
    await source.close()
    assert polls[seen + 1] - left_at > 0.9 * QUIET_SECONDS  # one may have been under way


# -- all is well -----------------------------------------------------------------------------------------


async def test_all_is_well(box: LlamaBox, make: Make) -> None:
    pid = box.start().pid
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    snapshot = await make().sample(wait=True)

    assert snapshot.problems == ()
    assert (snapshot.server.state, snapshot.server.pid, snapshot.throughput.state) == ("ready", pid, "idle")
    assert [(m.device, m.weights_bytes) for m in snapshot.memory] == [("CUDA0", GIB), ("Host", 100 * 2**20)]
    assert (snapshot.offload.layers_on_gpu, snapshot.offload.threads_asked) == (31, 2)
    assert snapshot.process is not None
    assert snapshot.process.pid == pid
    (request,) = snapshot.requests
    assert (request.slot_ttft_seconds, request.duration_seconds, request.tg_tokens_per_second) == (2.0, 4.0, 25.0)
    assert (snapshot.totals.requests, snapshot.totals.prompt_tokens, snapshot.totals.generated_tokens) == (1, 10, 6)


async def test_polling_and_waiting_give_the_same_snapshot(box: LlamaBox, make: Make) -> None:
    box.start()
    snapshot = await until(make().sample, healthy)

    assert (snapshot.server.state, snapshot.throughput.state) == ("ready", "idle")


async def test_nothing_runs(make: Make) -> None:
    snapshot = await make().sample()

    assert (snapshot.server.state, snapshot.throughput.state, snapshot.problems) == ("stopped", "down", ())
    assert (snapshot.slots, snapshot.requests, snapshot.memory) == ((), (), ())
    assert snapshot.host is not None


async def test_an_answer_is_watched_token_by_token(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start()
    box.write(taken("0.00.001.000", 9))
    sampler = make()
    for second in range(4):
        box.answers["/slots"] = [slot(busy=True, task=9, used=1000 + 20 * second, generated=1 + 20 * second)]
        snapshot = await sampler.sample(wait=True)
        ahead.ahead += 1.0

    assert (snapshot.server.state, snapshot.throughput.state) == ("answering", "answering")
    assert snapshot.throughput.tg_tokens_per_second == pytest.approx(20, rel=0.1)
    assert snapshot.slots[0].prompt_tokens == 1000

    box.answers["/slots"] = [slot(task=9, used=1061)]
    box.write(done("0.05.000.000", 9))
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.throughput.tg_tokens_per_second) == ("idle", None)
    assert (snapshot.throughput.context_used_tokens, len(snapshot.requests)) == (1061, 1)


async def test_gpuboxs_proof_during_the_load_is_no_request(box: LlamaBox, make: Make) -> None:
    box.start(ready_at=None, probe_tokens=(0, 0))
    box.answers["/health"] = box.answers["/slots"] = 503
    sampler = make()
    assert (await sampler.sample(wait=True)).throughput.state == "loading"

    box.answers |= {"/health": {"status": "ok"}, "/slots": [slot()]}
    box.write(taken("0.01.000.000", 0, prompt=2) + done("0.01.500.000", 0, prompt=2, generated=1))
    box.record(ready_at="t", probe_tokens=(2, 1))
    snapshot = await sampler.sample(wait=True)

    assert (snapshot.requests, snapshot.totals.requests, snapshot.totals.generated_tokens) == ((), 0, 6)
    assert snapshot.problems == ()


async def test_another_launch_replaces_the_old_one(box: LlamaBox, make: Make, paths: Paths) -> None:
    box.start()
    sampler = make()
    await until(sampler.sample, healthy)
    before = sampler._launch
    other = LlamaBox(paths)
    try:
        other.start(launch_id="beef")
        snapshot = await until(sampler.sample, lambda s: healthy(s) and s.server.base_url == other.url)
    finally:
        other.close()

    assert before is not None
    assert before.http._task is None
    assert snapshot.requests == ()


async def test_a_log_of_a_day_is_read_at_the_first_look(box: LlamaBox, make: Make) -> None:
    filler = "0.02.000.000 I srv  update_slots: all slots are idle\n"
    box.write(taken("0.00.500.000", 0, prompt=2) + done("0.00.600.000", 0, prompt=2, generated=1))  # gpubox's own
    box.write(filler * (900 * 1024 // len(filler)) + taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    box.start()
    snapshot = await make().sample(wait=True)
    assert (len(snapshot.requests), snapshot.totals.requests, snapshot.problems) == (1, 1, ())

    box.write(taken("0.06.000.000", 2) + filler * (4 * 2**20 // len(filler)))
    box.write(taken("0.07.000.000", 3, 1) + done("0.09.000.000", 3, 1))
    snapshot = await make().sample(wait=True)
    assert snapshot.problems == ("the log is long: requests before its last part are not listed",)
    assert ([r.task for r in snapshot.requests], snapshot.totals.requests) == ([3], 2)
    assert snapshot.memory[0].weights_bytes == GIB
    assert snapshot.throughput.state == "idle"


# -- the driver ----------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path) -> Iterator[Start]:
    yield from watching(monkeypatch, clock, tmp_path / "no-sysfs")


async def test_no_nvml(box: LlamaBox, make: Make, watch: Start) -> None:
    driver = Driver()
    driver.refuse("Init", "LibraryNotFound")
    reader = watch(driver)
    box.start()
    snapshot = await make(lambda: reader.fresh(LONG)).sample(wait=True)

    assert (snapshot.driver.gpus, snapshot.driver.problem) == ((), "no NVIDIA driver")
    assert [(m.device, m.total_bytes is None) for m in snapshot.memory] == [("CUDA0", True), ("Host", False)]
    assert snapshot.offload.bottleneck is None


async def test_a_gpu_is_lost_in_the_middle_of_an_answer_and_comes_back(
    box: LlamaBox, make: Make, watch: Start, clock: Clock
) -> None:
    driver = Driver()
    driver.answer("DeviceGetUtilizationRates", lambda card: SimpleNamespace(gpu=97, memory=10))
    reader = watch(driver)
    box.start()
    box.answers["/slots"] = [slot(busy=True, generated=5)]
    sampler = make(lambda: reader.fresh(LONG))
    whole = await sampler.sample(wait=True)
    assert whole.offload.bottleneck == "GPU compute"

    driver.lost.add(0)
    lost = await sampler.sample(wait=True)
    assert lost.driver.gpus[0].lost
    assert lost.driver.gpus[0].lost_at is not None
    assert "LOST" in lost.driver.problem
    assert lost.driver.gpus[0].vram_used_bytes == whole.driver.gpus[0].vram_used_bytes  # its last reading
    assert lost.memory[0] == whole.memory[0]  # the host's RAM moves by itself
    assert lost.offload.bottleneck is None  # 97 % is not of now
    assert lost.throughput.state == "lost"
    assert "GPU 0 is lost: reboot" in lost.problems[0]

    driver.lost.clear()
    clock.now += 60
    back = await sampler.sample(wait=True)
    assert (back.driver.gpus[0].lost, back.driver.problem, back.offload.bottleneck) == (False, "", "GPU compute")


async def test_a_driver_that_hangs_is_no_evidence(box: LlamaBox, make: Make, watch: Start, clock: Clock) -> None:
    driver = Driver()
    driver.answer("DeviceGetUtilizationRates", lambda card: SimpleNamespace(gpu=97, memory=10))
    reader = watch(driver)
    reader.fresh(LONG)
    box.start()
    box.answers["/slots"] = [slot(busy=True, generated=5)]
    sampler = make(reader.latest)
    assert (await sampler.sample(wait=True)).offload.bottleneck == "GPU compute"

    driver.hang()
    with reader._condition:
        reader._wanted = True
        reader._condition.notify_all()
    assert driver.blocked.wait(LONG)
    clock.now += 10
    snapshot = await sampler.sample(wait=True)

    assert snapshot.driver.problem == "the NVIDIA driver does not answer"
    assert snapshot.driver.stale_seconds == pytest.approx(10)
    assert snapshot.offload.bottleneck is None


async def test_fields_that_the_card_does_not_support(box: LlamaBox, make: Make, watch: Start) -> None:
    driver = Driver()
    for function in ("UtilizationRates", "PowerUsage", "Temperature", "FanSpeed", "PcieThroughput", "ClockInfo"):
        driver.refuse(f"DeviceGet{function}")
    for kind in ("Compute", "Graphics"):
        driver.refuse(f"DeviceGet{kind}RunningProcesses")
    reader = watch(driver)
    box.start()
    snapshot = await make(lambda: reader.fresh(LONG)).sample(wait=True)

    (gpu,) = snapshot.driver.gpus
    assert (gpu.utilization_percent, gpu.power_watts, gpu.pcie_rx_bytes_per_second) == (None, None, None)
    card = snapshot.memory[0]
    assert (card.other_processes_bytes, card.weights_bytes) == (None, GIB)
    parts = sum(size for _, size in card.parts)
    assert parts + (card.unaccounted_bytes or 0) + (card.free_bytes or 0) == card.total_bytes


async def test_the_drivers_view_of_the_servers_process(box: LlamaBox, make: Make, watch: Start) -> None:
    driver = Driver()
    pid = box.start(loaded_vram=((0, GIB // 2),)).pid
    driver.answer("DeviceGetComputeRunningProcesses", lambda card: [process(pid, GIB // 2 + 4096)])
    reader = watch(driver)
    snapshot = await make(lambda: reader.fresh(LONG)).sample(wait=True)

    assert snapshot.memory[0].growth_bytes == 4096
    assert snapshot.memory[0].other_processes_bytes == GIB


# -- the clock -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [timedelta(days=400), timedelta(days=-400), timedelta(seconds=-30)], ids=str)
async def test_the_wall_clock_jumps(
    jump: timedelta, box: LlamaBox, make: Make, ahead: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.start()
    box.write(taken("0.00.001.000", 1) + done("0.00.002.000", 1) + taken("0.00.003.000", 9))
    box.answers["/slots"] = [slot(busy=True, task=9, n_prompt_tokens_processed=500)]
    sampler = make()
    await sampler.sample(wait=True)
    ahead.ahead += 2.0
    before = await sampler.sample(wait=True)

    class Jumped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Jumped:
            return cls.fromtimestamp((datetime.now(UTC) + jump).timestamp(), tz)

    monkeypatch.setattr(sampler_module, "datetime", Jumped)
    monkeypatch.setattr(log_source, "datetime", Jumped)
    after = await sampler.sample(wait=True)

    assert after.at >= before.at
    assert after.slots[0].seconds == before.slots[0].seconds
    assert (after.slots[0].eta_seconds or 0) > 0
    assert after.requests == before.requests
    assert (after.throughput.state, after.problems) == ("prefill", ())

    box.answers["/slots"] = [slot(task=9)]
    box.write(done("0.02.000.000", 9))
    await sampler.sample(wait=True)
    ahead.ahead += 5.0
    idle = await sampler.sample(wait=True)
    assert idle.offload.bottleneck == "client"
    assert "-" not in idle.offload.bottleneck_reason


# -- the end -----------------------------------------------------------------------------------------------------


def connections(port: int) -> list[Any]:
    connectionss = psutil.Process().net_connections(kind="tcp")
    return [c for c in connectionss if c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED]


@pytest.mark.parametrize("foreign", [False, True], ids=["own", "by url"])
@pytest.mark.parametrize("hanging", [False, True], ids=["answering", "hanging"])
async def test_close_leaves_no_task_and_no_socket(foreign: bool, hanging: bool, box: LlamaBox, make: Make) -> None:
    box.start()
    before = asyncio.all_tasks()
    sampler = make(url=box.url) if foreign else make()
    await until(sampler.sample, lambda s: s.throughput.slots == 1)
    assert connections(box.port)
    if hanging:
        box.answers["/slots"] = box.hang
        seen = len(box.asked)
        async with asyncio.timeout(10):
            while "/slots" not in box.asked[seen:]:
                await asyncio.sleep(0.01)

    async with asyncio.timeout(20):
        await sampler.close()

    assert asyncio.all_tasks() == before
    assert connections(box.port) == []
    await sampler.close()  # a second time does no harm


async def test_closing_without_a_sample(make: Make) -> None:
    await make().close()
