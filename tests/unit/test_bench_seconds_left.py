"""What a run at work still takes: the estimate goes on between two results."""

from __future__ import annotations

import fcntl
import os
import time

import pytest

from gpubox.bench.report.run_summaries import RunFollower
from gpubox.bench.run_store import list_runs
from gpubox.paths import Paths
from tests.bench_runs import speed_run


def test_the_estimate_goes_down_while_an_item_runs_but_never_below_the_items_after_it(paths: Paths) -> None:
    speed_run(paths, "demo", share=0.5, state="running")
    run = list_runs(paths)[0]
    results = run.folder / "results.jsonl"

    def left_after(seconds: float) -> float:
        at = time.time() - seconds
        os.utime(results, (at, at))
        left = RunFollower(run).read().seconds_left
        assert left is not None
        return left

    with (run.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as who works on it
        at_once, later, long_after = left_after(0), left_after(0.5), left_after(10_000)

        assert at_once - later == pytest.approx(0.5, abs=0.2)
        assert later > long_after > 0
        assert left_after(20_000) == pytest.approx(long_after)


def test_the_estimate_of_an_interrupted_run_does_not_change(paths: Paths) -> None:
    speed_run(paths, "demo", share=0.5, state="interrupted")
    run = list_runs(paths)[0]
    first = RunFollower(run).read().seconds_left
    os.utime(run.folder / "results.jsonl", (1, 1))

    assert RunFollower(run).read().seconds_left == first
