"""Follows the course of a benchmark without a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpubox.bench.benchmark import Benchmark, make_benchmark
from gpubox.bench.model import Item, Plan, Result
from gpubox.bench.run_store import Run, create_run
from gpubox.paths import Paths

Scored = list[tuple[Item, Result]]


def follow(kind: Benchmark, answer: Callable[[Item], Result], most: int | None = None) -> Scored:
    """Every item that ``kind`` asks for with its ``answer``; at most so many items."""
    course, scored = kind.course(), Scored()
    batch = next(course)
    while True:
        for item in batch.items:
            if len(scored) == most:
                return scored
            scored.append((item, answer(item)))
        try:
            batch = course.send(scored)
        except StopIteration:
            return scored


def store_run(
    paths: Paths, plan: Plan, answer: Callable[[Item], Result], *, starts: int = 9999, state: str = "finished"
) -> Run:
    """A stored run of ``plan`` after so many server starts; the next one is asked for."""
    scored = follow(make_benchmark(plan), answer)
    run = create_run(paths, plan, [item for item, _ in scored if item.start <= starts + 1])
    with run.owned():
        for item, result in scored:
            if item.start <= starts:
                run.add_result(result)
        run.save(replace(run.info, state=state))
    return run
