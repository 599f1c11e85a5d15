"""What a tune knows so far, for a live picture: frozen values, a pure function of the plan and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpubox.profiles.profile import FlagValue

Goal = Literal["tg", "pp", "agent"]
CandidateState = Literal["waiting", "measuring", "out", "finalist", "best"]
TunePhase = Literal["searching", "comparing", "finished"]
UNITS: Mapping[Goal, str] = {"tg": "tok/s", "pp": "tok/s", "agent": "turns/min"}
"""The unit of every rate of a goal."""


@dataclass(frozen=True, slots=True)
class TuneCandidate:
    """One set of flags."""

    name: str
    """``n-cpu-moe=18 threads=8``; ``own flags`` for the profile as it is."""
    flags: Mapping[str, FlagValue]
    """What it changes in the profile; "" removes a flag. Empty for the profile's own flags."""
    starts: int = 0
    """Server starts that were measured."""
    rate: float | None = None
    """In the goal's unit; ``None``: it was not measured."""
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval of ``rate``."""
    state: CandidateState = "waiting"
    reason: str = ""
    """Why it is out, in a few words; also why a finalist is the best."""

    @property
    def own(self) -> bool:
        """Whether these are the profile's own flags."""
        return not self.flags


@dataclass(frozen=True, slots=True)
class FlagChange:
    """One flag that a candidate sets otherwise than the profile, its values as they are written."""

    flag: str
    before: str
    """Empty: unknown."""
    after: str


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """One tune at one moment."""

    goal: Goal
    unit: str
    """Of every rate."""
    candidates: tuple[TuneCandidate, ...]
    """The profile's own flags first; then the best rate first, then those without a rate."""
    starts_done: int
    starts_limit: int
    """The most server starts that there may be; a clear answer ends it earlier."""
    seconds_left: float | None
    """Of its time; ``None`` before the first start has shown how long one takes. Never more than it may take."""
    phase: TunePhase = "searching"
    verdict: str = ""
    """The outcome in one sentence; empty as long as it is not known."""
    pruned: tuple[tuple[str, int], ...] = ()
    """Why sets of flags were never candidates, with their number: (``would leave less than 1.0 GiB free``, 12)."""
    changes: tuple[FlagChange, ...] = ()
    """The flags to change for what it has found; empty: nothing yet, or the profile's own flags."""
