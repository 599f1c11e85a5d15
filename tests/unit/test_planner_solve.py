"""Solving for one flag. tests/perf/solve_truth.py compares the solver with brute force over the engine itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubox.config import Config
from gpubox.engines.find import Engine
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.planner.compute import ComputeBuffers, MeasuredRun, Structure
from gpubox.planner.devices import DeviceMemoryNow
from gpubox.planner.plan import MemoryPlan
from gpubox.planner.planner import Planner, Situation
from gpubox.planner.solve import SOLVABLE, solutions, solve
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import FlagValue, Profile
from tests.unit.test_planner_formula import MIB, hybrid, smollm

GIB = 1 << 30
ENGINE = Engine("lab", "llama-server", ("llama-server",), Path("llama-server"))


class Measured(Planner):
    """A planner whose engine has been asked already: 10 MiB of compute buffers on the card."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(Paths(tmp_path / "c", tmp_path / "s", tmp_path / "cache"), Config())

    def _measured(self, structure: Structure) -> tuple[ComputeBuffers, MeasuredRun | None]:
        return ComputeBuffers({"CUDA0": 10 * MIB, "Host": 5 * MIB}, {}, "measured"), None


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return Measured(tmp_path)


def situation(free: int, **flags: FlagValue) -> Situation:
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    devices = (
        DeviceMemoryNow("CUDA0", "gpu", "card", 24 * GIB, free),
        DeviceMemoryNow("Host", "host", "RAM", 64 * GIB, 60 * GIB),
    )
    profile = Profile("p", "m.gguf", flags={"parallel": 1, "n-gpu-layers": 99, **given})
    return Situation(profile, ENGINE, Path("m.gguf"), ("--model", "m.gguf"), hybrid(), {}, devices, (), False)


def test_the_fewest_experts_on_the_host(planner: Planner) -> None:
    whole = planner.plan_in(situation(24 * GIB, ctx_size=4096), {})
    needed = whole.devices[0].total_bytes
    expert = 256 * 256 * 16 // 32 * 34

    answer = solve(planner, situation(needed - 2 * expert, ctx_size=4096), "n-cpu-moe", keep_free_bytes=0)
    assert answer and answer.flags == {"n-cpu-moe": 2} and "2 of 9 layers" in answer.cost
    roomy = solve(planner, situation(needed, ctx_size=4096, n_cpu_moe=7), "n-cpu-moe", keep_free_bytes=0)
    assert roomy and roomy.flags == {} and roomy.cost == "no cost"
    assert solve(planner, situation(MIB, ctx_size=4096), "n-cpu-moe", keep_free_bytes=0) is None


def test_the_largest_context_and_the_best_cache_type(planner: Planner) -> None:
    tight = situation(100 * MIB, ctx_size=262144)
    context = solve(planner, tight, "ctx-size", keep_free_bytes=0)
    assert context and context.flags["ctx-size"] == 68 * 1024
    assert context.spare_bytes is not None and 0 <= context.spare_bytes < MIB
    same = solve(planner, situation(100 * MIB, ctx_size=68 * 1024), "ctx-size", keep_free_bytes=0)
    assert same and (same.flags, same.cost) == ({"ctx-size": 68 * 1024}, "no cost")
    more = planner.plan_in(tight, {"ctx-size": 69 * 1024}, keep_free_bytes=0)
    assert judge(more).fit == "short"
    cache = solve(planner, situation(250 * MIB, ctx_size=262144), "cache-type-k", keep_free_bytes=0)
    assert cache and cache.flags == {"cache-type-k": "q8_0", "cache-type-v": "q8_0"}


def test_layers_and_slots(planner: Planner) -> None:
    layers = solve(planner, situation(20 * MIB, ctx_size=4096), "n-gpu-layers", keep_free_bytes=0)
    assert layers and 0 <= int(str(layers.flags["n-gpu-layers"])) < 9
    slots = solve(planner, situation(60 * MIB, ctx_size=8192), "parallel", keep_free_bytes=0)
    assert slots and int(str(slots.flags["parallel"])) >= 1


def test_what_is_suggested(planner: Planner) -> None:
    answers = solutions(planner, situation(100 * MIB, ctx_size=262144), keep_free_bytes=0)
    assert [next(iter(answer.flags)) for answer in answers] == ["ctx-size"]
    assert solutions(planner, situation(0, ctx_size=4096)) == ()


def test_a_problem_is_one_sentence_with_one_full_stop(planner: Planner, tmp_path: Path) -> None:
    assert judge(planner.plan(Profile("p", str(tmp_path / "m.gguf")))).words.endswith("does not exist")
    assert judge(planner.plan(Profile("p", f"{tmp_path}/no/m.gguf"))).words.endswith(
        f"there is no folder {tmp_path}/no"
    )


def test_what_cannot_be_solved(planner: Planner) -> None:
    with pytest.raises(UsageError, match="cannot solve for 'threads'"):
        solve(planner, situation(GIB), "threads")
    dense = replace(situation(GIB), model=smollm())
    with pytest.raises(UsageError, match="has no experts"):
        solve(planner, dense, "n-cpu-moe")
    assert "ctx-size" in SOLVABLE


class Wrong(Measured):
    """An engine that needs more than the formulas say, from 3 experts on: the solver must ask it."""

    asked = 0

    def plan_in(self, situation: Situation, overrides, **options) -> MemoryPlan:  # type: ignore[no-untyped-def]
        plan = super().plan_in(situation, overrides, **{**options, "may_dry_run": False})
        if options.get("may_dry_run"):
            self.asked += 1
            extra = 0 if int(str(overrides.get("n-cpu-moe") or 0)) >= 4 else 50 * MIB
            card = replace(plan.devices[0], compute_bytes=(plan.devices[0].compute_bytes or 0) + extra)
            return replace(plan, devices=(card, *plan.devices[1:]))
        return plan


def test_the_engine_has_the_last_word(tmp_path: Path) -> None:
    planner = Wrong(tmp_path)
    needed = planner.plan_in(situation(24 * GIB, ctx_size=4096), {}).devices[0].total_bytes

    answer = solve(planner, situation(needed, ctx_size=4096), "n-cpu-moe", keep_free_bytes=0, dry_runs=8)

    assert answer and answer.flags == {"n-cpu-moe": 4}
    assert planner.asked <= 8
