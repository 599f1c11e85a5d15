"""``fit --solve`` against brute force: ``solve_truth.py ENGINE DENSE HYBRID WINDOW`` (GGUFs as for fit_truth.py).

For each budget a device is given so many bytes, and the solver finds the best value of a flag. The truth is the best of
all values, each measured by a dry run of the engine with its own command line, not by the planner's. A value one step
off counts as near; a value that takes more than the budget is wrong.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from box import options
from fit_truth import MIB, own_planner, rpc_servers

from gpubox.engines.find import Engine
from gpubox.planner.dry_run import DryRun, run_dry
from gpubox.planner.planner import Planner
from gpubox.planner.solve import MAX_DRY_RUNS, solve
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.telemetry.device_memory import HOST
from tests.ports import free_port

Flags = dict[str, FlagValue]


@dataclass(frozen=True, slots=True)
class Problem:
    """One flag of one model, and the shares of the range between the smallest and the largest need that are budgets."""

    model: Path
    flag: str
    fixed: tuple[tuple[str, FlagValue], ...]
    values: tuple[FlagValue, ...]
    """The most wanted first."""
    shares: tuple[float, ...]


def problems(dense: Path, hybrid: Path, window: Path) -> list[Problem]:
    one: tuple[tuple[str, FlagValue], ...] = (("parallel", 1),)
    four = (*one, ("ctx-size", 4096))
    return [
        Problem(hybrid, "n-cpu-moe", four, tuple(range(10)), (0.05, 0.3, 0.5, 0.7, 0.95)),
        Problem(dense, "n-gpu-layers", four, tuple(range(31, -1, -1)), (0.1, 0.35, 0.6, 0.85)),
        Problem(hybrid, "n-gpu-layers", four, tuple(range(10, -1, -1)), (0.2, 0.6)),
        Problem(dense, "ctx-size", one, tuple(range(8192, 0, -1024)), (0.3, 0.8)),
        Problem(hybrid, "ctx-size", one, tuple(range(65536, 0, -1024)), (0.2, 0.5, 0.9)),
        Problem(window, "ctx-size", (("parallel", 2),), tuple(range(32768, 0, -1024)), (0.4, 0.7)),
        Problem(window, "cache-type-k", four, ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"), (0.5,)),
        Problem(hybrid, "parallel", (("ctx-size", 32768), ("kv-unified", True)), tuple(range(32, 0, -1)), (0.5,)),
    ]


def needed(run: DryRun, key: str) -> tuple[int, int]:
    """The bytes on a device, at least and at most: the engine rounds weights and context down to MiB."""
    size = run.main.weights.get(key, 0) + run.main.context.get(key, 0) + run.main.compute.get(key, 0)
    return size, size + 2 * MIB


def main() -> None:
    given = options(__doc__, "engine", "dense", "hybrid", "window")
    os.environ.setdefault("LLAMA_ARG_NO_REPACK", "1")
    counts = {"equal": 0, "near": 0, "WRONG": 0}
    engine, models = Path(given.engine), [Path(model) for model in (given.dense, given.hybrid, given.window)]
    with tempfile.TemporaryDirectory(prefix="solve-truth-") as name, rpc_servers(engine.parent, 1) as endpoints:
        for problem in problems(*models):
            for share in problem.shares:
                outcome, line = check(problem, share, own_planner(Path(name), engine), engine, endpoints[0])
                counts[outcome] += 1
                print(f"{outcome:6}", line)
                sys.stdout.flush()
    print(counts)


@cache
def measure(engine: Path, model: Path, flags: tuple[tuple[str, FlagValue], ...], endpoint: str) -> DryRun:
    argv = ["--model", str(model), "--rpc", endpoint, "--log-jsonl", "-lv", "5", "--port", str(free_port())]
    for key, value in flags:
        argv += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    return run_dry(Engine("it", "llama-server", (str(engine),), engine), argv, {}, draft=False)


def check(problem: Problem, share: float, planner: Planner, engine: Path, endpoint: str) -> tuple[str, str]:
    key = f"RPC {endpoint}"

    def run_of(value: FlagValue) -> DryRun:
        flags = dict(problem.fixed) | {problem.flag: value}
        if problem.flag == "cache-type-k":
            flags["cache-type-v"] = value
        return measure(engine, problem.model, tuple(flags.items()), endpoint)

    most, least = needed(run_of(problem.values[0]), key)[1], needed(run_of(problem.values[-1]), key)[0]
    budget = int(least + (most - least) * share)
    best = _best(problem, lambda value: needed(run_of(value), key)[0] + MIB <= budget)
    profile = Profile("case", str(problem.model), flags={"rpc": endpoint, **dict(problem.fixed)})
    situation = planner.situation(profile)
    devices = tuple(d if d.key == HOST else replace(d, free_bytes=budget) for d in situation.devices)
    began = time.perf_counter()
    solution = solve(
        planner, replace(situation, devices=devices), problem.flag, keep_free_bytes=0, dry_runs=MAX_DRY_RUNS
    )
    seconds = time.perf_counter() - began
    chosen = None
    if solution:
        default: FlagValue = 0 if problem.flag == "n-cpu-moe" else problem.values[0]
        chosen = problem.values.index(solution.flags.get(problem.flag, default))
    over = chosen is not None and needed(run_of(problem.values[chosen]), key)[0] > budget
    off = abs(chosen - best) if chosen is not None and best is not None else (0 if chosen == best else 99)
    outcome = "WRONG" if over or off > 1 else "near" if off else "equal"
    value = None if chosen is None else problem.values[chosen]
    truth = None if best is None else problem.values[best]
    line = f"{problem.model.stem[:8]} {problem.flag} in {budget / MIB:.1f} MiB: {value}, truth {truth}, {seconds:.1f} s"
    return outcome, line + (" OVER BUDGET" if over else "")


def _best(problem: Problem, fits: Callable[[FlagValue], bool]) -> int | None:
    return next((i for i, value in enumerate(problem.values) if fits(value)), None)


if __name__ == "__main__":
    main()
