"""The Sampler and the server's process and log: killed, suspended, cut, rotated, flooded."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.server import log as log_module
from gpubox.server.state import InstanceState, Operation, save_state
from gpubox.telemetry import log_source
from gpubox.telemetry.sampler import HUNG_SECONDS, STUCK_SECONDS
from tests.fake_nvml import GIB
from tests.unit.llama_box import LlamaBox, done, slot, taken
from tests.unit.sampling import Make, Time, until

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
    assert sampler._launch is None

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
    async with asyncio.timeout(20):  # not delayed by a server that takes connections and says nothing
        for _ in range(5):
            await sampler.sample()

    box.signal(signal.SIGCONT)
    snapshot = await until(sampler.sample, lambda s: s.throughput.state == "idle")
    assert snapshot.server.state == "ready"


async def test_a_process_that_lives_and_does_not_listen(box: LlamaBox, make: Make) -> None:
    box.start()
    box._close_http()
    snapshot = await make().sample(wait=True)

    assert (snapshot.server.state, snapshot.throughput.state) == ("unreachable", "down")
    assert snapshot.problems == (f"nothing answers at {box.url} (nothing accepts connections there)",)


async def test_a_load_is_no_problem(box: LlamaBox, make: Make) -> None:
    box.start(ready_at=None, probe_tokens=(0, 0))
    box._close_http()
    snapshot = await make().sample(wait=True)

    assert (snapshot.server.state, snapshot.throughput.state, snapshot.problems) == ("loading", "loading", ())


async def test_a_stop_and_a_switch_are_seen(box: LlamaBox, make: Make, paths: Paths) -> None:
    identity = box.start()
    sampler = make()
    await sampler.sample(wait=True)
    operation = Operation("stop", "a", "stop", own_identity(), "t")
    save_state(paths.instance_state("main"), InstanceState(replace(box.running, process=identity), operation))
    assert (await sampler.sample(wait=True)).throughput.state == "stopping"

    box.signal(signal.SIGKILL)
    save_state(
        paths.instance_state("main"), InstanceState(None, replace(operation, kind="switch", profile="b", step="load"))
    )
    snapshot = await sampler.sample(wait=True)
    assert (snapshot.throughput.state, snapshot.server.operation) == ("loading", "switch b: load")


async def test_a_slow_batch_on_a_busy_cpu_is_reading_not_stuck(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start()
    box.answers["/slots"] = [slot(busy=True, used=0)]
    sampler = make()
    await sampler.sample(wait=True)
    launched = sampler._launch
    assert launched is not None

    ahead.ahead += STUCK_SECONDS + 5
    launched.process_rates = replace(launched.process_rates, threads_busy=1.9)
    launched.rated = None
    assert (await sampler.sample(wait=True)).throughput.state == "prefill"

    ahead.ahead += HUNG_SECONDS
    launched.rated = None
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
    assert snapshot.problems == ("no token processed or generated for 21 s",)

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


@pytest.mark.parametrize("after", ["create", "nothing", "deleted"])
async def test_the_log_is_rotated(after: str, box: LlamaBox, make: Make) -> None:
    box.start()
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    sampler = make()
    await sampler.sample(wait=True)

    aside = box.log.with_suffix(".log.bak")
    with box.log.open("a") as server:  # a server has its log open and goes on in that file
        box.log.replace(aside)
        if after == "create":
            box.log.touch()
        if after == "deleted":
            aside.unlink()
        server.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    for watcher in (sampler, make()):  # who watched all the while, and a gpubox that is started now
        snapshot = await watcher.sample(wait=True)
        assert [r.task for r in snapshot.requests] == [2, 1]
        assert snapshot.memory[0].weights_bytes == GIB
        (problem,) = snapshot.problems
        assert problem.startswith(f"the server writes its log to {aside}")

    if after == "deleted":
        return
    aside.replace(box.log)
    box.write(taken("0.10.000.000", 3) + done("0.12.000.000", 3))
    snapshot = await sampler.sample(wait=True)
    assert [r.task for r in snapshot.requests] == [3, 2, 1]
    assert snapshot.problems == ()


async def test_the_end_of_a_request_is_lost_with_the_log(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.answers["/slots"] = [slot(busy=True, task=1, generated=5)]
    box.start()
    box.write(taken("0.01.000.000", 1))
    sampler = make()
    await sampler.sample(wait=True)
    launched = sampler._launch
    assert launched is not None

    os.truncate(box.log, 0)
    for _ in range(3):  # while its slot works, it is at work, whatever became of the log
        ahead.ahead += 1.0
        await sampler.sample(wait=True)
        assert launched.log.requests.in_flight != {}

    box.answers["/slots"] = [slot(task=1)]
    for _ in range(6):
        ahead.ahead += 1.0
        await sampler.sample(wait=True)
    assert launched.log.requests.in_flight == {}


async def test_a_new_request_is_not_dropped_for_an_old_reading(box: LlamaBox, make: Make, ahead: Time) -> None:
    box.start()
    sampler = make()
    await sampler.sample(wait=True)
    launched = sampler._launch
    assert launched is not None
    box.write(taken("0.01.000.000", 5))
    for _ in range(5):
        ahead.ahead += 5.0
        await sampler.sample()  # the server's last answer stays the one from before

    assert launched.log.requests.in_flight[0].task == 5


async def test_the_log_is_missing(box: LlamaBox, make: Make) -> None:
    box.start(log=os.devnull)
    box.log.unlink()
    sampler = make()
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == (
        "the log cannot be read (No such file or directory): no new requests",
        "the log does not show where the memory went: no memory breakdown",
    )
    assert (snapshot.throughput.slots, snapshot.memory, snapshot.totals.generated_tokens) == (1, (), 6)

    box.log.write_text(LOADED_AGAIN)
    snapshot = await sampler.sample(wait=True)
    assert snapshot.problems == ()
    assert snapshot.memory[0].weights_bytes == GIB


LOADED_AGAIN = "0.00.000.004 I load_tensors:        CUDA0 model buffer size =  1024.00 MiB\n"


async def test_a_log_that_is_a_folder(box: LlamaBox, make: Make) -> None:
    box.start(log=os.devnull)
    box.log.unlink()
    box.log.mkdir()

    assert (await make().sample(wait=True)).problems == (
        "the log does not show where the memory went: no memory breakdown",
    )


async def test_a_log_without_any_words_of_memory(box: LlamaBox, make: Make) -> None:
    box.log.write_text("0.00.000.008 I srv  llama_server: listening on http://127.0.0.1:1\n")
    box.start()

    assert (await make().sample(wait=True)).problems == (
        "the log does not show where the memory went: no memory breakdown",
    )


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
        patch.setattr(log_source, "parse_event", count)
        box.write(line * (60 * 2**20 // len(line)))
        snapshot = await sampler.sample(wait=True)
    assert read <= log_source.TICK_BYTES
    assert snapshot.problems == ("the log grows too fast: 59 MiB of it were skipped",)
    assert snapshot.totals.requests == 0  # what was not read was counted

    box.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    await sampler.sample(wait=True)
    snapshot = await sampler.sample(wait=True)
    assert [r.task for r in snapshot.requests] == [2]

    ahead.ahead += log_source.FLOOD_SECONDS + 1
    assert (await sampler.sample(wait=True)).problems == (
        "the log is long: requests before its last part are not listed",
    )


async def test_a_log_over_its_size_is_cut_and_followed_on(
    box: LlamaBox, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "MAX_LOG_BYTES", 100_000)
    box.start()
    sampler = make()
    await sampler.sample(wait=True)
    box.write("x" * 200 + "\n" * 120_000)
    box.write(taken("0.01.000.000", 1) + done("0.05.000.000", 1))
    snapshot = await sampler.sample(wait=True)

    assert box.log.stat().st_size < 1000
    box.write(taken("0.06.000.000", 2) + done("0.09.000.000", 2))
    assert [r.task for r in (await sampler.sample(wait=True)).requests] == [2, 1]

    later = await make().sample(wait=True)  # a gpubox that is started now
    assert later.memory[0] == snapshot.memory[0]
    assert [r.task for r in later.requests] == [2, 1]


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
