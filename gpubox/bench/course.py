"""The course of a run: a generator that yields the next items and is sent all results so far.

A kind that knows all its items yields them at once. One that chooses what it measures next by what it has seen is the
same generator, only longer; a resumed run sends it the stored results until it yields an item without one. Pure: the
same results give the same items.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from gpubox.bench.model import Item, Result, ScoredItems


@dataclass(frozen=True, slots=True)
class Batch:
    """What is done next, in this order."""

    items: Sequence[Item]
    later: int = 0
    """The most items that may follow."""


Course = Generator[Batch, ScoredItems, str]
"""Is sent the results of all its items so far, and returns why it ended; empty: all is done."""


@dataclass(frozen=True, slots=True)
class Played:
    """A course as far as the results go."""

    items: tuple[Item, ...]
    """All that it has yielded."""
    later: int
    reason: str | None
    """Why it ended; ``None``: some of ``items`` have no result yet."""


def play(course: Course, results: Mapping[str, Result]) -> Played:
    """Sends ``course`` the stored results of each batch, up to the first batch that is not complete."""
    items: list[Item] = []
    batch = next(course)
    while True:
        items += batch.items
        if any(item.id not in results for item in batch.items):
            return Played(tuple(items), batch.later, None)
        try:
            batch = course.send([(item, results[item.id]) for item in items])
        except StopIteration as end:
            return Played(tuple(items), 0, end.value)
