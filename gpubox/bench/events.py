"""What a run tells while it works: frozen values, for the screen and the command line alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpubox.bench.model import Flag, Item, Result, RunInfo
from gpubox.server.events import ServerEvent


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins, or goes on with ``done`` of its items behind it."""

    run: RunInfo
    done: int


@dataclass(frozen=True, slots=True)
class TargetServerEvent:
    """What the Supervisor does to bring a target up or to give the old server back."""

    target: str
    event: ServerEvent


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of one sentence: hashing a model, starting a server that died again."""

    text: str


@dataclass(frozen=True, slots=True)
class ItemStarted:
    """``number`` of ``total`` is in flight."""

    item: Item
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class ItemProgress:
    """An item at work, a few times a second."""

    item: str
    text: str
    """``reading 4,096 of 8,192``, ``412 tokens, 49.8 tok/s``."""


@dataclass(frozen=True, slots=True)
class ItemFinished:
    """One more item is on disk."""

    item: Item
    result: Result
    done: int
    total: int
    seconds_left: float | None
    """An estimate from the items of this run so far; ``None`` before it means anything."""
    headline: str
    """The run in a few words: ``tg 249.3 tok/s``, ``pass@1 61.0 % of 41``."""


@dataclass(frozen=True, slots=True)
class FlagRaised:
    """Something that makes numbers doubtful was seen."""

    flag: Flag


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over for now; ``run.state`` says how."""

    run: RunInfo


BenchEvent = RunStarted | TargetServerEvent | Note | ItemStarted | ItemProgress | ItemFinished | FlagRaised | RunEnded
Emit = Callable[[BenchEvent], None]


def ignore_event(event: BenchEvent) -> None:
    """Tells nobody."""
