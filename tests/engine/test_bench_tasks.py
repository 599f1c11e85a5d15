"""humaneval in all three modes and the suite on a real engine: killed -9 half way, resumed, reported, scored again."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable

import pytest

from gpubox.config import Config
from gpubox.sandbox.runner import Sandbox
from tests.engine.conftest import Box
from tests.engine.outside import SLOWLY, gpubox, until

pytestmark = pytest.mark.engine

SMALL = ("--mode", "all", "--limit", "1", "--max-tokens", "24", "--rounds", "2")


def lines_of_new_runs(box: Box) -> Callable[..., list[bytes]]:
    """A function that reads a file of lines of the runs that are new from now on; their results, if not said else."""
    runs = box.paths.state / "runs"
    before = set(runs.glob("*"))

    def lines(name: str = "results.jsonl") -> list[bytes]:
        new = set(runs.glob("*")) - before
        return [line for run in new for path in run.glob(name) for line in path.read_bytes().splitlines()]

    return lines


def test_a_run_of_all_modes_survives_kill_9(box: Box) -> None:
    if asyncio.run(Sandbox(Config()).confinement()).isolation is None:
        pytest.skip("nothing confines programs on this machine")
    box.profile("demo", {"ctx-size": 2048})
    lines = lines_of_new_runs(box)

    with subprocess.Popen([*SLOWLY, "bench", "humaneval", "demo", *SMALL], stderr=subprocess.DEVNULL) as process:
        until(lambda: len(lines()) >= 1, process)
        process.kill()
    kept = lines()
    assert len(kept) < 3

    resumed = gpubox("bench", "resume", "--json")

    assert resumed.returncode == 0, resumed.stderr
    values = json.loads(resumed.stdout)
    assert (values["run"]["state"], values["run"]["plan"]["kind"]) == ("finished", "humaneval")
    assert values["run"]["machine"]["sandbox"]
    assert lines()[: len(kept)] == kept and len(lines()) == 3
    scores = {m["group"]: m["estimate"] for m in values["report"]["metrics"] if m["name"] == "pass@1"}
    assert {mode: score["n"] for mode, score in scores.items()} == {"vanilla": 1, "chat": 1, "agentic": 1}
    assert not {doubt["kind"] for doubt in values["report"]["doubts"]} & {"foreign request", "crash", "setup"}
    for line in map(json.loads, lines()):
        parts = line["values"]["parts"]
        assert sum(parts.values()) == pytest.approx(line["seconds"], rel=0.02)
        assert parts["answer"] + parts["thinking"] > 0
    first = json.loads(lines("raw.jsonl")[0])["data"]["request"]
    assert first["prompt"] and all(isinstance(token, int) for token in first["prompt"])
    assert "<|im_end|>" in first["stop"]  # the model's end of text, as lm-eval adds it

    again = gpubox("bench", "resume", "--rescore", "--json")
    assert json.loads(again.stdout)["changed"] == [] and json.loads(again.stdout)["scored"] == 3
    assert box.servers() == []


@pytest.mark.nightly
def test_a_suite_run_survives_kill_9(box: Box) -> None:
    box.profile("demo", {"ctx-size": 2048})
    lines = lines_of_new_runs(box)
    few = ("--tasks", "3.3,4.1,5.1", "--max-tokens", "8", "--speed-tokens", "8", "--ref-tps", "100", "--repeats", "1")
    with subprocess.Popen([*SLOWLY, "bench", "suite", "demo", *few], stderr=subprocess.DEVNULL) as process:
        until(lambda: len(lines()) >= 1, process)
        process.kill()
    kept = lines()
    assert len(kept) < 6

    resumed = gpubox("bench", "resume", "--json")

    assert resumed.returncode == 0, resumed.stderr
    values = json.loads(resumed.stdout)
    assert (values["run"]["state"], values["run"]["plan"]["kind"]) == ("finished", "suite")
    assert lines()[: len(kept)] == kept and len({json.loads(line)["item"] for line in lines()}) == 6
    points = {m["group"]: m["estimate"]["value"] for m in values["report"]["metrics"]}
    assert set(points) == {"weighted total", "reasoning", "tools", "speed"} and points["speed"] > 0
    assert box.servers() == []
