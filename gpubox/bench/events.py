"""The events of a benchmark run: frozen values, for the screen and the command line alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpubox.bench.model import Doubt, Item, Result, RunInfo
from gpubox.server.events import ServerEvent


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins, or resumes with ``done`` items complete."""

    run: RunInfo
    done: int


@dataclass(frozen=True, slots=True)
class TargetServerEvent:
    """An event of the Supervisor while it starts a target or restores the previous server."""

    event: ServerEvent


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence for the owner, such as that a model is being hashed."""

    text: str


@dataclass(frozen=True, slots=True)
class ItemStarted:
    """Item ``number`` of ``total`` begins."""

    item: Item
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class ItemProgress:
    """Progress within an item, a few times a second."""

    item: str
    text: str
    """``reading 4,096 of 8,192``, ``412 tokens, 49.8 tok/s``."""


@dataclass(frozen=True, slots=True)
class ItemFinished:
    """The result of one more item is on disk."""

    item: Item
    result: Result
    done: int
    total: int
    seconds_left: float | None
    """Estimated from the items finished in this session; ``None`` before the first."""
    headline: str
    """The main figure so far: ``tg 249.3 tok/s``, ``pass@1 61.0 % of 41``."""


@dataclass(frozen=True, slots=True)
class DoubtRaised:
    """A reason to doubt the numbers was observed."""

    doubt: Doubt


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Work on the run ended; ``run.state`` says how."""

    run: RunInfo


BenchEvent = RunStarted | TargetServerEvent | Note | ItemStarted | ItemProgress | ItemFinished | DoubtRaised | RunEnded
Emit = Callable[[BenchEvent], None]


def ignore_event(event: BenchEvent) -> None:
    """For callers that need no events."""
