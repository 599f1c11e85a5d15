"""The runner executes every item once, stores it before the next, and flags what distorts a number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpubox.bench import kinds
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.events import BenchEvent, DoubtRaised, ItemFinished, RunEnded, RunStarted
from gpubox.bench.interference import InterferenceMonitor, ItemReadings
from gpubox.bench.kind import Kind
from gpubox.bench.measured_request import measure_request
from gpubox.bench.model import Doubt, Item, Plan, Provenance, RawRecord, Result, RunInfo, Target
from gpubox.bench.plan_runner import PlanRunner, pending_items, provenance_changes, rescore_run
from gpubox.bench.report.model import Report
from gpubox.bench.report.run_summaries import run_summary
from gpubox.bench.run_store import Run, find_run
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile
from tests.bench_server import BenchServer

KIND = Kind("counting", "counts tokens", "Count tokens.", f"{__name__}:Counting")


class Counting(Benchmark):
    """Requests the number of tokens in the item. Class attributes let a test interfere."""

    kind = "counting"
    on_execute: Callable[[Item, TargetServer], None] = staticmethod(lambda item, target_server: None)
    score_of: Callable[[int], int] = staticmethod(lambda tokens: tokens)
    cells_may_fail = False

    def items(self) -> Sequence[Item]:
        names = [target.name for target in self.plan.targets]
        return [Item(f"{n}/{i}", n, {"tokens": i}, i == 0, n) for n in names for i in range(4)]

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        self.on_execute(item, target_server)
        body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": item.values["tokens"] + 1}
        return await measure_request(target_server, item.id, body)

    async def score(self, item: Item, raw: RawRecord) -> Result:
        return Result(item.id, {"score": self.score_of(raw.data["reply"]["generated_tokens"])})

    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        return Report("counting", "Counting")

    def skip_reason(self, item: Item, results: Sequence[tuple[Item, Result]], server: ActiveTarget | None) -> str:
        return "not wanted" if self.plan.options.get("skip") == item.id else ""

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        return error.message if self.cells_may_fail else ""


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KIND_MODULES", [__name__])


@pytest.fixture
def server() -> Iterator[BenchServer]:
    with BenchServer() as fake:
        yield fake


class Box:
    def __init__(self, root: Path) -> None:
        self.paths = Paths(root / "config", root / "state", root / "cache")
        self.events: list[BenchEvent] = []

    @property
    def runner(self) -> PlanRunner:
        def profile(name: str) -> Profile:
            return Profile(name, f"/nowhere/{name}.gguf")

        return PlanRunner(self.paths, Config(), profile, self.events.append)

    @property
    def last(self) -> Run:
        return find_run(self.paths, "last")

    def finished(self) -> list[str]:
        return [event.item.id for event in self.events if isinstance(event, ItemFinished)]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def plan(server: BenchServer, *names: str, **fields: Any) -> Plan:
    return Plan("counting", tuple(Target(name, url=server.url) for name in names or ("a",)), **fields)


async def test_every_item_is_done_once_and_scored_from_what_is_stored(box: Box, server: BenchServer) -> None:
    info = await box.runner.run(plan(server))

    assert (info.state, info.items, info.doubts) == ("finished", 4, ())
    assert [r.values["score"] for _, r in box.last.scored()] == [1, 2, 3, 4]
    assert len(server.asked) == 4
    assert isinstance(box.events[0], RunStarted)
    assert isinstance(box.events[-1], RunEnded)
    ends = [event for event in box.events if isinstance(event, ItemFinished)]
    assert [event.done for event in ends] == [1, 2, 3, 4]
    assert ends[-1].seconds_left == 0
    assert info.provenance["a"].engine_version == "b1-test"
    assert box.last.raws()["a/2"].data["request"]["max_tokens"] == 3


async def test_a_cancelled_run_resumes_at_the_next_item(box: Box, server: BenchServer, monkeypatch: Any) -> None:
    def cancel(item: Item, target_server: TargetServer) -> None:
        if item.id == "a/2":
            asyncio.current_task().cancel()  # type: ignore[union-attr]

    monkeypatch.setattr(Counting, "on_execute", staticmethod(cancel))
    with pytest.raises(asyncio.CancelledError):
        await box.runner.run(plan(server))
    assert box.last.info.state == "interrupted"
    assert list(box.last.results()) == ["a/0", "a/1"]
    assert (run_summary(box.last).done, run_summary(box.last).failed) == (2, 0)

    monkeypatch.undo()
    monkeypatch.setattr(kinds, "KIND_MODULES", [__name__])
    box.events.clear()
    info = await box.runner.resume(box.last)

    assert info.state == "finished"
    assert box.finished() == ["a/0", "a/2", "a/3"]  # the warm-up again, nothing else
    assert len(box.last.results()) == 4


async def test_a_stored_record_is_scored_without_a_request(box: Box, server: BenchServer) -> None:
    await box.runner.run(plan(server))
    results = box.last.folder / "results.jsonl"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:2]))
    server.asked.clear()

    await box.runner.resume(box.last)

    assert server.asked == []
    assert [r.values["score"] for _, r in box.last.scored()] == [1, 2, 3, 4]


async def test_rescoring_lists_the_changed_items(box: Box, server: BenchServer, monkeypatch: Any) -> None:
    await box.runner.run(plan(server))
    assert await rescore_run(box.last, Config()) == (4, [])

    monkeypatch.setattr(Counting, "score_of", staticmethod(lambda tokens: min(tokens, 3)))
    assert await rescore_run(box.last, Config()) == (4, ["a/3"])
    assert [r.values["score"] for _, r in box.last.scored()] == [1, 2, 3, 3]


async def test_a_scorer_error_affects_only_its_item(box: Box, server: BenchServer, monkeypatch: Any) -> None:
    def choke(tokens: int) -> int:
        if tokens == 3:
            raise ZeroDivisionError("a scorer's fault")
        return -tokens

    monkeypatch.setattr(Counting, "score_of", staticmethod(choke))
    info = await box.runner.run(plan(server))

    assert info.state == "finished"
    assert [r.error for _, r in box.last.scored()] == [
        "", "", "its reply could not be scored (ZeroDivisionError: a scorer's fault)", "",
    ]  # fmt: skip
    monkeypatch.setattr(Counting, "score_of", staticmethod(lambda tokens: tokens))
    assert (await rescore_run(box.last, Config()))[1] == ["a/0", "a/1", "a/2", "a/3"]
    assert box.last.results()["a/2"] == replace(box.last.results()["a/2"], values={"score": 3}, error="")


async def test_requests_of_another_client_are_flagged(box: Box, server: BenchServer, monkeypatch: Any) -> None:
    def intrude(item: Item, target_server: TargetServer) -> None:
        if item.id == "a/1":
            server.counted[0] += 50
            server.counted[1] += 7

    monkeypatch.setattr(Counting, "on_execute", staticmethod(intrude))
    await box.runner.run(plan(server))

    doubtful = [(item.id, [f.kind for f in r.doubts]) for item, r in box.last.scored() if r.doubts]
    assert doubtful == [("a/1", ["foreign request"])]
    assert "7 generated" in box.last.results()["a/1"].doubts[0].text
    assert DoubtRaised(box.last.results()["a/1"].doubts[0]) in box.events


async def test_a_restart_of_a_url_target_is_flagged(box: Box, server: BenchServer, monkeypatch: Any) -> None:
    server.counted[:] = 1000, 1000

    def interfere(item: Item, target_server: TargetServer) -> None:
        if item.id == "a/1":
            server.counted[:] = 0, 0
        if item.id == "a/2":
            server.counted[1] += 7

    monkeypatch.setattr(Counting, "on_execute", staticmethod(interfere))
    await box.runner.run(plan(server))

    doubtful = [(item.id, [f.kind for f in r.doubts]) for item, r in box.last.scored() if r.doubts]
    assert doubtful == [("a/1", ["setup"]), ("a/2", ["foreign request"])]  # counted from there on


async def test_a_refusal_is_a_result_and_a_lost_server_ends_the_run(box: Box, server: BenchServer) -> None:
    server.refuses = "prompt of one word"
    await box.runner.run(plan(server))
    assert all("prompt of one word" in r.error for r in box.last.results().values())

    server.refuses, server.status, server.asked[:] = "slow down", 429, []
    with pytest.raises(GpuboxError, match="slow down") as caught:
        await box.runner.run(plan(server))
    assert "bench resume" in caught.value.hint
    run = box.last
    assert (run.info.state, run.results()) == ("failed", {})  # it would refuse the next ones too
    server.refuses = ""
    assert (await box.runner.resume(run)).state == "finished"
    assert all(r.ok for r in run.results().values())

    gone = replace(plan(server), targets=(Target("a", url="http://127.0.0.1:9"),))
    with pytest.raises(GpuboxError, match="does not answer"):
        await box.runner.run(gone)
    run = box.last
    assert (run.info.state, run.results()) == ("failed", {})


async def test_a_broken_reply_is_repeated_once(box: Box, server: BenchServer) -> None:
    server.breaks = 1

    await box.runner.run(plan(server))

    assert all(result.ok for result in box.last.results().values())
    assert len(server.asked) == 5


async def test_tokens_of_a_broken_reply_are_not_flagged(box: Box, server: BenchServer, monkeypatch: Any) -> None:
    server.breaks = 1

    def intrude(item: Item, target_server: TargetServer) -> None:
        if item.id == "a/3":
            server.counted[1] += 7

    monkeypatch.setattr(Counting, "on_execute", staticmethod(intrude))
    await box.runner.run(plan(server))

    doubtful = [item.id for item, result in box.last.scored() if result.doubts]
    assert doubtful == ["a/3"]  # the guard goes on after it


async def test_a_reply_that_breaks_twice_has_no_result(box: Box, server: BenchServer) -> None:
    server.breaks = 2

    await box.runner.run(plan(server))

    assert "middle of its answer" in box.last.results()["a/0"].error
    assert box.last.results()["a/1"].ok


async def test_items_run_in_parallel(box: Box, server: BenchServer) -> None:
    info = await box.runner.run(plan(server, parallel=3))

    assert info.state == "finished"
    assert sorted(box.finished()) == ["a/0", "a/1", "a/2", "a/3"]
    assert info.doubts == ()


async def test_doubts_of_an_interrupted_group_are_kept(box: Box, server: BenchServer, monkeypatch: Any) -> None:
    class Seen(InterferenceMonitor):
        def _check_gpu(self, watch: ItemReadings, item: str, reasons: Any) -> None:
            watch.doubts.append(Doubt("swap", "9 MiB were swapped", item))

    def cancel(item: Item, target_server: TargetServer) -> None:
        if item.id == "a/2":
            raise GpuboxError("Something ends it.", code=ExitCode.NOT_RUNNING)

    monkeypatch.setattr("gpubox.bench.plan_runner.InterferenceMonitor", Seen)
    monkeypatch.setattr(Counting, "on_execute", staticmethod(cancel))
    with pytest.raises(GpuboxError, match="Something ends it"):
        await box.runner.run(plan(server, parallel=2))

    assert [doubt.kind for doubt in box.last.info.doubts] == ["swap"]


async def test_a_skipped_item_has_a_reason(box: Box, server: BenchServer) -> None:
    await box.runner.run(plan(server, options={"skip": "a/2"}))

    result = box.last.results()["a/2"]
    assert (result.skipped, result.error) == (True, "not wanted")
    assert len(server.asked) == 3


async def test_a_target_that_cannot_load_ends_the_run_or_only_its_items(
    box: Box, server: BenchServer, monkeypatch: Any
) -> None:
    targets = (Target("bad", profile="bad"), Target("a", url=server.url))
    both = Plan("counting", targets)
    with pytest.raises(GpuboxError):
        await box.runner.run(both)
    assert box.last.results() == {}

    monkeypatch.setattr(Counting, "cells_may_fail", True)
    info = await box.runner.run(both)

    assert info.state == "finished"
    assert [r.skipped for r in box.last.results().values()] == [True] * 4 + [False] * 4


async def test_a_full_disk_ends_the_run_and_keeps_what_was_done(
    box: Box, server: BenchServer, monkeypatch: Any
) -> None:
    real = Run.add_raw

    def full(self: Run, record: RawRecord) -> None:
        if record.item == "a/2":
            raise GpuboxError("results cannot be written: No space left on device.", "Free some disk space.")
        real(self, record)

    monkeypatch.setattr(Run, "add_raw", full)
    with pytest.raises(GpuboxError, match="No space left"):
        await box.runner.run(plan(server))

    assert list(box.last.results()) == ["a/0", "a/1"]
    assert box.last.info.state == "failed"


async def test_a_setup_that_changed_between_two_sessions_is_flagged(box: Box, server: BenchServer) -> None:
    await box.runner.run(plan(server))
    (box.last.folder / "results.jsonl").unlink()
    (box.last.folder / "raw.jsonl").unlink()
    info = box.last.info
    old = replace(info.provenance["a"], engine_version="b0-older")
    box.last.save(replace(info, provenance={"a": old}))

    info = await box.runner.resume(box.last)

    assert [(f.kind, "engine_version" in f.text) for f in info.doubts] == [("setup", True)]


async def test_a_changed_machine_between_two_sessions_is_flagged(box: Box, server: BenchServer) -> None:
    await box.runner.run(plan(server))
    (box.last.folder / "results.jsonl").unlink()
    info = box.last.info
    assert info.machine
    box.last.save(replace(info, machine=replace(info.machine, driver="1.2", gpus=({"power_limit_watts": 200.0},))))

    info = await box.runner.resume(box.last)

    assert info.doubts == (Doubt("setup", "the machine changed since the run began: driver, gpus"),)


def test_another_port_is_no_change_of_the_setup() -> None:
    first = Provenance("a", argv=("llama-server", "--port", "1", "-c", "1"))

    assert provenance_changes(first, replace(first, argv=("llama-server", "--port", "2", "-c", "1"))) == []
    assert provenance_changes(first, replace(first, argv=("llama-server", "--port", "1", "-c", "2"), dialect="x")) == [
        "argv",
        "dialect",
    ]
    assert provenance_changes(first, replace(first, env={"GGML_CUDA_FORCE_MMQ": "1"})) == ["env"]
    elsewhere = Provenance("a", url="http://x", model_path="m1", dialect="vllm")
    assert provenance_changes(elsewhere, replace(elsewhere, model_path="m2")) == ["model_path"]
    here = replace(first, model_path="/a/m.gguf", model_sha256="5c")
    assert provenance_changes(here, replace(here, model_path="/b/m.gguf")) == []  # the same file


def test_items_without_a_result_and_their_warm_ups_are_pending() -> None:
    items = [Item("g/w", "t", warmup=True, group="g"), Item("g/1", "t", group="g"), Item("g/2", "t", group="g")]
    items += [Item("h/w", "t", warmup=True, group="h"), Item("h/1", "t", group="h"), Item("alone", "t")]
    done = {name: Result(name) for name in ("g/w", "g/1", "h/w", "h/1")}

    assert [item.id for item in pending_items(items, done)] == ["g/w", "g/2", "alone"]
    assert pending_items(items, {item.id: Result(item.id) for item in items}) == []
    assert Doubt("swap", "x") == Doubt("swap", "x", "")
