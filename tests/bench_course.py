"""Follows the course of a benchmark without a server."""

from __future__ import annotations

from collections.abc import Callable

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.model import Item, Result

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
