"""The Sampler against real HTTP, a real process, a real log file, and everything that can go wrong with them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpubox.config import Config
from gpubox.hardware.gpu import DriverReading
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.server import log as log_module
from gpubox.server.record import Operation, SlotState, save_state
from gpubox.telemetry import sampler as sampler_module
from gpubox.telemetry import sources
from gpubox.telemetry.model import Snapshot
from gpubox.telemetry.sampler import HUNG_SECONDS, STUCK_SECONDS, Sampler
from tests.fake_nvml import GIB, LONG, Clock, Driver, Start, process, watching
from tests.unit.llama_box import METRICS, LlamaBox, done, send, slot, taken

NO_DRIVER = DriverReading((), problem="no NVIDIA driver")
NO_SLOTS = "/slots is off or unreadable: no live speed, no context fill"
NO_METRICS = "/metrics is off: no totals"
DENIED = "/slots and /metrics want an API key that gpubox does not have"
Make = Callable[..., Sampler]


@pytest.fixture
def box(paths: Paths) -> Iterator[LlamaBox]:
    made = LlamaBox(paths)
    yield made
    made.close()


@pytest.fixture
async def make(box: LlamaBox) -> AsyncIterator[Make]:
    """Makes Samplers, and closes them at the end."""
    made: list[Sampler] = []

    def start(driver: Callable[[], DriverReading] = lambda: NO_DRIVER, **more: Any) -> Sampler:
        made.append(Sampler(box.paths, Config(), driver, **more))
        return made[-1]

    yield start
    for sampler in made:
        await sampler.close()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is given up after a blink."""
    monkeypatch.setattr(sources, "STALE_SECONDS", 0.1)
    monkeypatch.setattr(sources, "RETRY_SECONDS", 0.0)


class Time:
    """The monotonic clock of the Sampler, moved on by hand. asyncio keeps its own."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(sampler_module, "time", clock)
    monkeypatch.setattr(sources, "time", clock)
    return clock


async def until(sample: Callable[[], Awaitable[Snapshot]], so: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that is ``so``; each one is asked for as the screen does, a moment after the other."""
    async with asyncio.timeout(20):
        while not so(snapshot := await sample()):
            await asyncio.sleep(0.01)
    return snapshot


def healthy(snapshot: Snapshot) -> bool:
    return snapshot.problems == () and snapshot.throughput.slots == 1 and snapshot.totals.generated_tokens is not None


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
    assert (request.ttft_seconds, request.duration_seconds, request.tg_tokens_per_second) == (2.0, 4.0, 25.0)
    assert (snapshot.totals.requests, snapshot.totals.prompt_tokens, snapshot.totals.generated_tokens) == (1, 10, 6)


async def test_the_screens_way_of_asking_comes_to_the_same(box: LlamaBox, make: Make) -> None:
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
    box.start(proven_at=None, proof_tokens=(0, 0))
    box.answers["/health"] = box.answers["/slots"] = 503
    sampler = make()
    assert (await sampler.sample(wait=True)).throughput.state == "loading"

    box.answers |= {"/health": {"status": "ok"}, "/slots": [slot()]}
    box.write(taken("0.01.000.000", 0, prompt=2) + done("0.01.500.000", 0, prompt=2, generated=1))
    box.record(proven_at="t", proof_tokens=(2, 1))
    snapshot = await sampler.sample(wait=True)

    assert (snapshot.requests, snapshot.totals.requests, snapshot.totals.generated_tokens) == ((), 0, 6)
    assert snapshot.problems == ()


async def test_another_launch_is_followed_and_the_old_one_let_go(box: LlamaBox, make: Make, paths: Paths) -> None:
    box.start()
    sampler = make()
    await until(sampler.sample, healthy)
    before = sampler._launched
    other = LlamaBox(paths)
    try:
        other.start(launch_id="beef")
        snapshot = await until(sampler.sample, lambda s: healthy(s) and s.server.base_url == other.url)
    finally:
        other.close()

    assert before is not None
    assert before.source._task is None
    assert snapshot.requests == ()


async def test_a_log_of_a_day_is_read_at_the_first_look(box: LlamaBox, make: Make) -> None:
    filler = "0.02.000.000 I srv  update_slots: all slots are idle\n"
    box.write(filler * (900 * 1024 // len(filler)) + taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    box.start()
    snapshot = await make().sample(wait=True)
    assert (len(snapshot.requests), snapshot.totals.requests, snapshot.problems) == (1, 1, ())

    box.write(taken("0.06.000.000", 2) + filler * (4 * 2**20 // len(filler)))
    box.write(taken("0.07.000.000", 3, 1) + done("0.09.000.000", 3, 1))
    snapshot = await make().sample(wait=True)
    assert snapshot.problems == ("the log is long: requests before its last part are not listed",)
    assert ([r.task for r in snapshot.requests], snapshot.totals.requests) == ([3], None)
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
    assert lost.throughput.state == "answering"

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
    with reader._turn:
        reader._wanted = True
        reader._turn.notify_all()
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


async def test_what_the_driver_says_of_the_servers_process(box: LlamaBox, make: Make, watch: Start) -> None:
    driver = Driver()
    pid = box.start(loaded_vram=((0, GIB // 2),)).pid
    driver.answer("DeviceGetComputeRunningProcesses", lambda card: [process(pid, GIB // 2 + 4096)])
    reader = watch(driver)
    snapshot = await make(lambda: reader.fresh(LONG)).sample(wait=True)

    assert snapshot.memory[0].growth_bytes == 4096
    assert snapshot.memory[0].other_processes_bytes == GIB


# -- the server's HTTP side ----------------------------------------------------------------------------------


async def test_401_and_the_key_comes_later(box: LlamaBox, make: Make, paths: Paths) -> None:
    box.key = "sesame"
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (DENIED,)
    assert (snapshot.server.message, snapshot.totals.generated_tokens) == (
        "It wants an API key that gpubox does not have.",
        None,
    )
    assert snapshot.memory[0].weights_bytes == GIB

    paths.api_key_file.parent.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.write_text("sesame")
    paths.api_key_file.chmod(0o600)
    snapshot = await sampler.sample(wait=True)
    assert healthy(snapshot)
    assert snapshot.server.message == ""


async def test_401_and_the_server_stops_asking_for_a_key(box: LlamaBox, make: Make, brief: None) -> None:
    box.key = "sesame"
    box.start()
    sampler = make()
    assert (await until(sampler.sample, lambda s: s.problems != ())).problems == (DENIED,)

    box.key = None
    await until(sampler.sample, healthy)


@pytest.mark.parametrize("status", [501, 404, 500])
async def test_slots_are_off(status: int, box: LlamaBox, make: Make) -> None:
    box.answers["/slots"] = status
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (NO_SLOTS,)
    assert (snapshot.server.state, snapshot.throughput.slots, snapshot.totals.generated_tokens) == ("ready", None, 6)

    box.write(taken("0.01.000.000", 1))
    assert (await sampler.sample(wait=True)).throughput.state == "answering"  # the log tells
    box.write(done("0.05.000.000", 1))
    assert len((await sampler.sample(wait=True)).requests) == 1

    box.answers["/slots"] = [slot()]
    assert healthy(await sampler.sample(wait=True))


@pytest.mark.parametrize("status", [501, 404, 500])
async def test_metrics_are_off(status: int, box: LlamaBox, make: Make, brief: None) -> None:
    box.answers["/metrics"] = status
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (NO_METRICS,)
    assert snapshot.totals.generated_tokens is None
    assert snapshot.throughput.slots == 1

    box.answers["/metrics"] = METRICS.format(prompt=12, generated=7)
    assert healthy(await sampler.sample(wait=True))


async def test_metrics_are_read_when_a_request_ended_and_else_left_alone(box: LlamaBox, make: Make) -> None:
    box.start()
    sampler = make()
    for _ in range(5):
        await sampler.sample(wait=True)
    assert box.asked.count("/metrics") == 1

    box.answers["/metrics"] = METRICS.format(prompt=100, generated=51)
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    assert (await sampler.sample(wait=True)).totals.generated_tokens == 50
    assert box.asked.count("/metrics") == 2


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "<html>404</html>",
        "",
        "null",
        "[]",
        "{}",
        '"slots"',
        "[1, null, [], true]",
        "[" * 100_000,
        "9" * 5000,
        '[{"id": "x", "is_processing": 1, "n_ctx": [], "next_token": 3, "params": []}]',
        f'[{{"id": 0, "is_processing": true, "n_ctx": {"9" * 400}, "next_token": [{{"n_decoded": {"9" * 400}}}]}}]',
        '[{"id": 0, "is_processing": true, "n_ctx": -1, "n_prompt_tokens": -5, "next_token": [{"n_decoded": -9}]}]',
        '[{"id": 0, "is_processing": true, "n_ctx": NaN, "next_token": [{"n_decoded": 1e400}]}]',
        '[{"id": 0, "is_processing": true, "next_token": []}, {"id": 0, "is_processing": true}]',
    ],
    ids=lambda body: body[:12] or "empty",
)
async def test_garbage_from_slots(body: str, box: LlamaBox, make: Make) -> None:
    box.answers["/slots"] = body
    box.start()
    box.write(taken("0.00.001.000", 1))
    sampler = make()
    for _ in range(3):
        snapshot = await sampler.sample(wait=True)
    assert snapshot.problems in ((NO_SLOTS,), ())
    assert (snapshot.throughput.tg_tokens_per_second or 0) >= 0
    assert (snapshot.throughput.context_size_tokens or 0) >= 0

    box.answers["/slots"] = [slot()]
    box.write(done("0.00.002.000", 1))
    assert healthy(await sampler.sample(wait=True))


@pytest.mark.parametrize(
    "body",
    [
        "<html></html>",
        "llamacpp:tokens_predicted_total nan\nllamacpp:prompt_tokens_total inf\n",
        "llamacpp:tokens_predicted_total -5\n",
        f"llamacpp:tokens_predicted_total {'9' * 400}\n",
        "llamacpp:tokens_predicted_total\nllamacpp:_total \n\0\n",
        "llamacpp:tokens_predicted_total 1e300\n" * 50,
    ],
    ids=["html", "nan", "negative", "long", "bare", "huge"],
)
async def test_garbage_from_metrics(body: str, box: LlamaBox, make: Make, brief: None) -> None:
    box.answers["/metrics"] = body
    box.start()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.totals.prompt_tokens is None

    box.answers["/metrics"] = METRICS.format(prompt=12, generated=7)
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    assert (await sampler.sample(wait=True)).totals.generated_tokens == 6


def endless(box: LlamaBox) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        try:
            while not box.unblock.wait(0.01):
                handler.wfile.write(b" " * 64)
                handler.wfile.flush()
        except OSError:
            return

    return answer


@pytest.mark.parametrize("path", ["/slots", "/metrics", "/health"])
@pytest.mark.parametrize("how", ["endless", "silent", "cut off"])
async def test_an_answer_that_never_ends(path: str, how: str, box: LlamaBox, make: Make, brief: None) -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n[")
        handler.close_connection = True

    healthy_answer = box.answers[path]
    box.answers[path] = {"endless": endless(box), "silent": box.hang, "cut off": cut}[how]
    if path == "/health":
        box.answers["/slots"] = 501
    box.start()
    sampler = make()
    async with asyncio.timeout(5):
        snapshot = await sampler.sample(wait=True)
    expected = {"/slots": NO_SLOTS, "/metrics": NO_METRICS, "/health": f"nothing answers at {box.url}"}[path]
    assert any(problem.startswith(expected) for problem in snapshot.problems)
    assert snapshot.throughput.state == ("down" if path == "/health" else "idle")

    box.unblock.set()
    box.answers[path] = healthy_answer
    box.answers["/slots"] = [slot()]
    assert healthy(await sampler.sample(wait=True))


async def test_a_health_that_is_no_llama_servers(box: LlamaBox, make: Make) -> None:
    box.answers |= {"/health": 418, "/slots": 418, "/metrics": 418}
    box.start()
    snapshot = await make().sample(wait=True)

    assert snapshot.problems == (f"{box.url} answers with HTTP 418",)
    assert snapshot.throughput.state == "down"


async def test_asking_that_fails_in_a_way_nobody_thought_of_goes_on(
    box: LlamaBox, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.start()
    sampler = make()
    await until(sampler.sample, healthy)
    launched = sampler._launched
    assert launched is not None

    async def broken() -> None:
        raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr(launched.source.client, "slots", broken)
        snapshot = await until(sampler.sample, lambda s: s.problems != ())
    assert snapshot.problems == (f"{box.url} answers with LookupError",)
    await until(sampler.sample, healthy)


async def test_a_server_that_hangs_delays_no_snapshot_and_is_said_to(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start()
    sampler = make()
    await until(sampler.sample, healthy)
    box.answers["/slots"] = box.hang
    seen = len(box.asked)
    async with asyncio.timeout(10):
        while "/slots" not in box.asked[seen:]:
            await asyncio.sleep(0.01)

    ahead.ahead += 5
    async with asyncio.timeout(1):
        snapshot = await sampler.sample()
    assert snapshot.problems == ("the server has not answered for 5 s",)

    ahead.ahead += STUCK_SECONDS
    assert (await sampler.sample()).throughput.state == "stuck"

    box.answers["/slots"] = [slot()]
    box.unblock.set()
    await until(sampler.sample, lambda s: s.throughput.state == "idle" and s.problems == ())


async def test_a_sleeping_server_is_not_woken_by_slots(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start(launch=replace(box.launch, argv=("llama-server", "--sleep-idle-seconds", "60")))
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.throughput.state == "idle"
    assert snapshot.problems == ("/slots is not asked, it would keep the server awake: no live speed, no context fill",)

    box.write("1.00.000.000 I que    start_loop: entering sleeping state\n")
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.problems) == ("sleeping", ())
    assert snapshot.memory == ()  # its memory is free again

    for _ in range(5):
        ahead.ahead += 30
        await sampler.sample(wait=True)
    assert "/slots" not in box.asked

    box.write("2.00.000.000 I que    start_loop: exiting sleeping state\n")
    box.write((box.log.read_text().partition("0.00.000.008")[0]).replace("0.00.000", "2.00.100"))
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.memory[0].weights_bytes) == ("idle", GIB)


# -- the server's process ----------------------------------------------------------------------------------------


async def test_kill_minus_9(box: LlamaBox, make: Make) -> None:
    box.start_serving()
    sampler = make()
    snapshot = await until(sampler.sample, lambda s: s.throughput.slots == 1)
    assert snapshot.server.state == "ready"

    box.signal(signal.SIGKILL)
    snapshot = await sampler.sample()  # the very next one
    assert (snapshot.server.state, snapshot.throughput.state, snapshot.process) == ("crashed", "down", None)
    assert snapshot.server.message.startswith("a died: ")
    assert (snapshot.slots, snapshot.throughput.tg_tokens_per_second) == ((), None)
    assert sampler._launched is None

    box.start_serving(launch_id="beef")
    snapshot = await until(sampler.sample, lambda s: s.throughput.slots == 1)
    assert snapshot.server.state == "ready"


async def test_sigstop_and_sigcont(box: LlamaBox, make: Make, brief: None) -> None:
    box.start_serving()
    sampler = make()
    await until(sampler.sample, lambda s: s.throughput.slots == 1)

    box.signal(signal.SIGSTOP)
    snapshot = await until(sampler.sample, lambda s: s.throughput.state == "stuck")
    assert snapshot.problems[0] == "the server process is suspended (SIGSTOP)"
    assert snapshot.process is not None
    assert snapshot.process.stopped
    async with asyncio.timeout(2):  # not delayed by a server that takes connections and says nothing
        for _ in range(5):
            await sampler.sample()

    box.signal(signal.SIGCONT)
    snapshot = await until(sampler.sample, lambda s: s.throughput.state == "idle")
    assert snapshot.server.state == "ready"


async def test_a_process_that_lives_and_does_not_listen(box: LlamaBox, make: Make, brief: None) -> None:
    box.start()
    box._close_http()
    snapshot = await make().sample(wait=True)

    assert (snapshot.server.state, snapshot.throughput.state) == ("unreachable", "down")
    assert snapshot.problems == (f"nothing answers at {box.url} (ConnectError)",)


async def test_a_load_is_no_problem(box: LlamaBox, make: Make, brief: None) -> None:
    box.start(proven_at=None, proof_tokens=(0, 0))
    box._close_http()
    snapshot = await make().sample(wait=True)

    assert (snapshot.server.state, snapshot.throughput.state, snapshot.problems) == ("loading", "loading", ())


async def test_a_stop_and_a_switch_are_seen(box: LlamaBox, make: Make, paths: Paths) -> None:
    identity = box.start()
    sampler = make()
    await sampler.sample(wait=True)
    operation = Operation("stop", "a", "stop", own_identity(), "t")
    save_state(paths.slot_state("main"), SlotState(replace(box.running, process=identity), operation))
    assert (await sampler.sample(wait=True)).throughput.state == "stopping"

    box.signal(signal.SIGKILL)
    save_state(paths.slot_state("main"), SlotState(None, replace(operation, kind="switch", profile="b", step="load")))
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.server.operation) == ("loading", "switch b: load")


async def test_a_slow_batch_on_a_busy_cpu_is_reading_not_stuck(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start()
    box.answers["/slots"] = [slot(busy=True, used=0)]
    sampler = make()
    await sampler.sample(wait=True)
    launched = sampler._launched
    assert launched is not None

    ahead.ahead += STUCK_SECONDS + 5
    launched.pace = replace(launched.pace, threads_busy=1.9)
    launched.before = None
    assert (await sampler.sample(wait=True)).throughput.state == "prefill"

    ahead.ahead += HUNG_SECONDS
    launched.before = None
    assert (await sampler.sample(wait=True)).throughput.state == "stuck"


async def test_a_busy_slot_that_does_not_move_while_nothing_computes_is_stuck(
    box: LlamaBox, make: Make, ahead: Time
) -> None:
    box.start()
    box.answers["/slots"] = [slot(busy=True, generated=5)]
    sampler = make()
    await sampler.sample(wait=True)
    ahead.ahead += STUCK_SECONDS + 1
    snapshot = await sampler.sample(wait=True)

    assert (snapshot.server.state, snapshot.throughput.state) == ("answering", "stuck")
    assert snapshot.problems == ("no busy slot has moved for 21 s",)

    box.answers["/slots"] = [slot(busy=True, generated=6)]
    assert (await sampler.sample(wait=True)).throughput.state == "answering"


# -- the log ---------------------------------------------------------------------------------------------------


async def test_the_log_is_cut_to_nothing(box: LlamaBox, make: Make) -> None:
    box.start()
    sampler = make()
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    await sampler.sample(wait=True)

    os.truncate(box.log, 0)
    box.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    snapshot = await sampler.sample(wait=True)

    assert [r.task for r in snapshot.requests] == [2, 1]
    assert snapshot.memory[0].weights_bytes == GIB  # what was read stays known
    assert snapshot.problems == ()


async def test_the_log_is_rotated(box: LlamaBox, make: Make) -> None:
    box.start()
    sampler = make()
    await sampler.sample(wait=True)

    box.log.replace(box.log.with_suffix(".log.1"))
    box.log.write_text(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    snapshot = await sampler.sample(wait=True)

    assert [r.task for r in snapshot.requests] == [2]
    assert snapshot.problems == ()


async def test_the_end_of_a_request_is_lost_with_the_log(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.answers["/slots"] = [slot(busy=True, task=1, generated=5)]
    box.start()
    box.write(taken("0.01.000.000", 1))
    sampler = make()
    await sampler.sample(wait=True)
    launched = sampler._launched
    assert launched is not None

    os.truncate(box.log, 0)
    for _ in range(3):  # while its slot works, it is at work, whatever became of the log
        ahead.ahead += 1.0
        await sampler.sample(wait=True)
        assert launched.log.requests.in_flight != {}

    box.answers["/slots"] = [slot(task=1)]
    for _ in range(4):
        ahead.ahead += 1.0
        await sampler.sample(wait=True)
    assert launched.log.requests.in_flight == {}


async def test_a_request_that_was_just_taken_is_not_forgotten_for_an_old_answer(
    box: LlamaBox, make: Make, ahead: Time
) -> None:
    box.start()
    sampler = make()
    await sampler.sample(wait=True)
    launched = sampler._launched
    assert launched is not None
    box.write(taken("0.01.000.000", 5))
    for _ in range(5):
        ahead.ahead += 5.0
        await sampler.sample()  # the server's last answer stays the one from before

    assert launched.log.requests.in_flight[0].task == 5


async def test_the_log_is_missing(box: LlamaBox, make: Make) -> None:
    box.log.unlink()
    box.start()
    box.log.unlink()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (
        "the log cannot be read (No such file or directory): no new requests",
        "the log does not tell where the memory went: no split",
    )
    assert (snapshot.throughput.slots, snapshot.memory, snapshot.totals.generated_tokens) == (1, (), 6)

    box.log.write_text(LOADED_AGAIN)
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == ()
    assert snapshot.memory[0].weights_bytes == GIB


LOADED_AGAIN = "0.00.000.004 I load_tensors:        CUDA0 model buffer size =  1024.00 MiB\n"


async def test_a_log_that_is_a_folder(box: LlamaBox, make: Make) -> None:
    box.start()
    box.log.unlink()
    box.log.mkdir()

    assert (await make().sample(wait=True)).problems == ("the log does not tell where the memory went: no split",)


async def test_a_log_without_any_words_of_memory(box: LlamaBox, make: Make) -> None:
    box.log.write_text("0.00.000.008 I srv  llama_server: listening on http://127.0.0.1:1\n")
    box.start()

    assert (await make().sample(wait=True)).problems == ("the log does not tell where the memory went: no split",)


async def test_the_log_floods(box: LlamaBox, make: Make, ahead: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    box.start()
    sampler = make()
    await sampler.sample(wait=True)
    read = 0

    def count(line: str) -> tuple[None, None]:
        nonlocal read
        read += len(line)
        return None, None

    line = "0.02.000.000 D srv  update_slots: a line of a server that was started with -v and a prompt in it\n"
    with monkeypatch.context() as patch:
        patch.setattr(sources, "event_of", count)
        box.write(line * (60 * 2**20 // len(line)))
        snapshot = await sampler.sample(wait=True)
    assert read <= sources.TICK_BYTES
    assert snapshot.problems == ("the log grows too fast: 59 MiB of it were not read",)
    assert snapshot.totals.requests is None  # not known any more

    box.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    await sampler.sample(wait=True)
    snapshot = await sampler.sample(wait=True)
    assert [r.task for r in snapshot.requests] == [2]

    ahead.ahead += sources.FLOOD_SECONDS + 1
    assert (await sampler.sample(wait=True)).problems == (
        "the log is long: requests before its last part are not listed",
    )


async def test_a_log_over_its_size_is_cut_and_followed_on(
    box: LlamaBox, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "ROTATE_BYTES", 100_000)
    box.start()
    sampler = make()
    await sampler.sample(wait=True)
    box.write("x" * 200 + "\n" * 120_000)
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    await sampler.sample(wait=True)

    assert box.log.stat().st_size == 0
    box.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    assert [r.task for r in (await sampler.sample(wait=True)).requests][:1] == [2]


@pytest.mark.parametrize(
    "noise",
    [os.urandom(100_000), b"\0" * 100_000, b"x" * 1_000_000, b"\xff\n" * 50_000],
    ids=["random", "0", "x", "ff"],
)
async def test_garbage_in_the_log(noise: bytes, box: LlamaBox, make: Make) -> None:
    box.start()
    sampler = make()
    await sampler.sample(wait=True)
    with box.log.open("ab") as file:
        file.write(noise + b"\n")
    box.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    for _ in range(3):
        snapshot = await sampler.sample(wait=True)

    assert [r.task for r in snapshot.requests] == [2]
    assert snapshot.problems == ()


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
    monkeypatch.setattr(sources, "datetime", Jumped)
    after = await sampler.sample(wait=True)

    assert after.at >= before.at
    assert before.slots[0].seconds == pytest.approx(2.0, abs=1.5)
    assert after.slots[0].seconds == pytest.approx(before.slots[0].seconds, abs=1.0)
    assert (after.slots[0].eta_seconds or 0) > 0
    assert after.requests == before.requests
    assert (after.throughput.state, after.problems) == ("prefill", ())

    box.answers["/slots"] = [slot(task=9)]
    box.write(done("0.02.000.000", 9))
    idle = await sampler.sample(wait=True)
    assert idle.offload.bottleneck == "client"
    assert "-" not in idle.offload.evidence


# -- the end -----------------------------------------------------------------------------------------------------


def connections(port: int) -> list[Any]:
    found = psutil.Process().net_connections(kind="tcp")
    return [c for c in found if c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED]


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

    async with asyncio.timeout(2):
        await sampler.close()

    assert asyncio.all_tasks() == before
    assert connections(box.port) == []
    await sampler.close()  # twice is no harm


async def test_closing_what_never_sampled(make: Make) -> None:
    await make().close()


# -- a server that gpubox did not start ------------------------------------------------------------------------


async def test_a_server_by_its_url(box: LlamaBox, make: Make) -> None:
    snapshot = await make(url=box.url).sample(wait=True)

    assert (snapshot.server.state, snapshot.server.model_path, snapshot.server.pid) == ("ready", "/m.gguf", None)
    assert (snapshot.throughput.state, snapshot.totals.generated_tokens, snapshot.problems) == ("idle", 7, ())
    assert snapshot.memory == ()


async def test_the_totals_of_a_server_by_its_url_move(box: LlamaBox, make: Make) -> None:
    sampler = make(url=box.url)
    await until(sampler.sample, lambda s: s.totals.generated_tokens == 7)
    box.answers["/slots"] = [slot(busy=True, task=2, generated=3)]
    await until(sampler.sample, lambda s: s.throughput.state == "answering")

    box.answers["/metrics"] = METRICS.format(prompt=20, generated=57)
    box.answers["/slots"] = [slot(task=2)]
    await until(sampler.sample, lambda s: s.totals.generated_tokens == 57)


async def test_a_server_by_its_url_that_loads_first(box: LlamaBox, make: Make) -> None:
    wanted = dict(box.answers)
    box.answers |= {"/health": 503, "/slots": 503, "/metrics": 503, "/props": 503}
    sampler = make(url=box.url)
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.problems) == ("loading", ())

    box.answers |= wanted
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.server.state, snapshot.server.model_path) == ("ready", "/m.gguf")


async def test_a_server_by_its_url_that_is_not_there_and_comes(paths: Paths, make: Make, box: LlamaBox) -> None:
    box._close_http()
    sampler = make(url=box.url)
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.server.state, snapshot.throughput.state) == ("unreachable", "down")
    assert snapshot.server.message == f"Nothing answers at {box.url}."
    assert snapshot.problems == (f"nothing answers at {box.url} (ConnectError)",)

    box.start_serving()
    snapshot = await until(lambda: sampler.sample(wait=True), lambda s: s.throughput.slots == 1)
    assert (snapshot.server.state, snapshot.server.message) == ("ready", "")


async def test_a_server_by_its_url_that_wants_a_key(box: LlamaBox, make: Make, brief: None) -> None:
    box.key = "sesame"
    sampler = make(url=box.url)
    assert (await sampler.sample(wait=True)).problems == (DENIED,)

    box.key = None
    assert (await sampler.sample(wait=True)).problems == ()


async def test_a_key_that_all_can_read_is_not_sent_and_ends_nothing(box: LlamaBox, make: Make, paths: Paths) -> None:
    box.key = "sesame"
    paths.api_key_file.parent.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.write_text("sesame")
    paths.api_key_file.chmod(0o644)
    box.start()

    assert (await make(url=box.url).sample(wait=True)).problems == (DENIED,)
    assert (await make().sample(wait=True)).problems == (DENIED,)


async def test_a_server_by_its_url_without_slots_or_metrics(box: LlamaBox, make: Make) -> None:
    def web_page(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b"<html>It works!</html>")

    box.answers = dict.fromkeys(box.answers, web_page)
    snapshot = await make(url=box.url).sample(wait=True)

    assert (snapshot.problems, snapshot.throughput.state) == ((NO_SLOTS,), "idle")
