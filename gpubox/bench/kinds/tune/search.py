"""Which cell of a tune is started next, and when the search ends. Pure: the outcomes so far decide everything.

The unit is the server start. *Screening* starts cells that are as unlike as possible, once each. *Narrowing* fits the
surface of all cells to the measured ones after each start, drops the cells that cannot win by more than MARGIN, and
starts the one with the largest expected improvement (Jones, Schonlau and Welch 1998). What is left is compared on
fresh starts (``final``), because the best of many measured rates is too good by selection.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

from gpubox.bench.kinds.tune.surface import (
    Coordinates,
    Estimated,
    Surface,
    SurfacePoint,
    fit_surface,
    typical_effects,
)
from gpubox.bench.start_comparison import MIN_STARTS
from gpubox.bench.stats import MARGIN

MAX_FINALISTS = 3
"""Besides the profile's own flags."""
_MIN_QUARTER, MAX_LIMIT = 20, 72
"""Starts of one tune, as far as their number follows from that of the cells: the least, and the most."""
_MIN_LIMIT = 48
"""Starts that any tune may take: on a box whose starts differ by 5 %, fewer cannot show that two cells are alike."""
_FINAL_SHARE, _MIN_FINAL = 0.3, 12
"""Of the starts, for the comparison of the finalists; and the least."""
_MAX_SEARCH_STARTS_PER_CELL = 2
_CAN_WIN_SDS = 2.0
"""A cell can win if it does so with a probability of at least 2 %."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class SearchAxis:
    """What the search knows of one axis."""

    levels: int
    ordered: bool = True
    more_vram: int = 0
    """1: a higher level needs more VRAM, -1: less; 0: unknown, or neither."""
    more_ram: int = 0


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """All cells of a tune."""

    axes: tuple[SearchAxis, ...]
    cells: Mapping[str, Coordinates]
    """By name."""
    own: str
    """The profile's own flags."""
    lossy: frozenset[str] = frozenset()
    """Cells that answer otherwise than the profile does: speed alone never chooses them."""

    @property
    def is_small(self) -> bool:
        """Whether all cells can be finalists: a search would take more starts than it saves."""
        return len(self.cells) <= 1 + MAX_FINALISTS

    @property
    def starts_limit(self) -> int:
        """Of many cells a quarter of what comparing each takes (MIN_STARTS starts each). A few may take more."""
        return max(_MIN_LIMIT, self._quarter)

    @property
    def search_limit(self) -> int:
        """The most starts before the finalists are compared."""
        return self._quarter - max(_MIN_FINAL, math.ceil(self._quarter * _FINAL_SHARE))

    @property
    def _quarter(self) -> int:
        return max(_MIN_QUARTER, min(MAX_LIMIT, len(self.cells) * MIN_STARTS // 4))

    def needs_no_less(self, cell: str, failed: str, memory: str) -> bool:
        """Whether ``cell`` needs at least as much VRAM or RAM as ``failed`` on every axis."""
        for axis, own, other in zip(self.axes, self.cells[cell], self.cells[failed], strict=True):
            direction = axis.more_vram if memory == "VRAM" else axis.more_ram
            if own != other and (own - other) * direction <= 0:
                return False
        return True


@dataclass(frozen=True, slots=True)
class StartOutcome:
    """One server start and what came of it."""

    number: int
    cell: str
    log_rates: Mapping[str, float] = field(default_factory=dict)
    """By prompt; empty: it failed."""
    seconds: float = 0.0
    """That it took, with loading."""
    failure: str = ""
    """Why it has no rate."""
    lacks: str = ""
    """``VRAM`` or ``RAM``, if it ran out of it."""
    loaded: bool = True
    """False: it could not even load."""

    @property
    def log_rate(self) -> float:
        """The mean over prompts."""
        return statistics.fmean(self.log_rates.values())

    @property
    def rate(self) -> float:
        """The geometric mean over prompts, in the unit of the goal."""
        return math.exp(self.log_rate)


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a tune, as its outcomes tell it."""

    budget_seconds: float
    outcomes: Sequence[StartOutcome]

    @property
    def spent(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def per_start(self) -> float | None:
        """The time of one more start; ``None`` before the first."""
        seconds = [outcome.seconds for outcome in self.outcomes if not outcome.failure]
        return statistics.fmean(seconds) if seconds else None

    def allows(self, starts: int) -> bool:
        """Whether so many more starts fit into the time."""
        return self.spent + starts * (self.per_start or 0.0) <= self.budget_seconds

    def left(self, starts_limit: int) -> float | None:
        """The most seconds that the rest takes; ``None`` before the first start has shown how long one takes."""
        if self.per_start is None:
            return None
        most = (starts_limit - len(self.outcomes)) * self.per_start
        return max(0.0, min(most, self.budget_seconds - self.spent))


@dataclass(frozen=True, slots=True)
class TuneStep:
    """What to do next."""

    cell: str = ""
    """The cell to start; empty: this part of the tune has ended."""
    reason: str = ""
    """Why it has ended."""
    exhausted: bool = False
    """Ended by time or number of starts, not by what is known."""


class Knowledge:
    """What the starts of the search say about every cell."""

    def __init__(self, space: SearchSpace, outcomes: Sequence[StartOutcome]) -> None:
        self.space, self.outcomes = space, tuple(outcomes)
        self.starts: dict[str, list[StartOutcome]] = {}
        for outcome in outcomes:
            self.starts.setdefault(outcome.cell, []).append(outcome)

    @cached_property
    def out(self) -> dict[str, str]:
        """The cells that cannot run -> why."""
        reasons = {}
        for cell, starts in self.starts.items():
            failed = [start for start in starts if start.failure]
            if failed and (len(failed) > 1 or len(failed) == len(starts)):
                reasons[cell] = failed[0].failure
        short = [start for start in self.outcomes if start.lacks]
        for cell in self.space.cells:
            for start in short:
                if cell not in self.starts and self.space.needs_no_less(cell, start.cell, start.lacks):
                    reasons[cell] = f"needs at least as much {start.lacks} as {start.cell}, which ran out of it"
                    break
        return reasons

    @cached_property
    def alive(self) -> list[str]:
        """The cells that may run."""
        return [cell for cell in self.space.cells if cell not in self.out]

    @cached_property
    def points(self) -> list[SurfacePoint]:
        return [
            SurfacePoint(self.space.cells[start.cell], start.number, start.log_rate)
            for start in self.outcomes
            if start.log_rates and not start.failure
        ]

    @cached_property
    def measured(self) -> list[str]:
        """The cells that may run and have a rate."""
        return [cell for cell in self.alive if any(not start.failure for start in self.starts.get(cell, ()))]

    @cached_property
    def surface(self) -> Surface:
        axes = self.space.axes
        return fit_surface([axis.levels for axis in axes], [axis.ordered for axis in axes], self.points)

    @cached_property
    def incumbent(self) -> str:
        """The cell that is probably the best of the measured ones."""
        return max(self.measured, key=lambda cell: self.surface.estimate(self.space.cells[cell]).mean)

    @cached_property
    def gains(self) -> dict[str, Estimated]:
        """The log rate of each cell that may run over that of the incumbent."""
        coordinates = [self.space.cells[cell] for cell in self.alive]
        gains = self.surface.differences(coordinates, self.space.cells[self.incumbent])
        return dict(zip(self.alive, gains, strict=True))

    @cached_property
    def leads(self) -> dict[str, Estimated]:
        """As ``gains``, but a cell that answers as the profile does is beside the best of those alone."""
        lossless = [cell for cell in self.measured if cell not in self.space.lossy]
        if not lossless or self.incumbent in lossless:
            return self.gains
        best = max(lossless, key=lambda cell: self.gains[cell].mean)
        alive = [cell for cell in self.alive if cell not in self.space.lossy]
        places = [self.space.cells[cell] for cell in alive]
        own = dict(zip(alive, self.surface.differences(places, self.space.cells[best]), strict=True))
        return {**self.gains, **own}

    @cached_property
    def can_win(self) -> list[str]:
        """The cells that can still win by more than MARGIN."""
        return [
            cell
            for cell, gain in self.leads.items()
            if cell != self.incumbent and gain.mean + _CAN_WIN_SDS * gain.sd > math.log1p(MARGIN)
        ]

    @cached_property
    def contenders(self) -> list[str]:
        """Those of ``can_win`` that the search may start again."""
        return [cell for cell in self.can_win if len(self.starts.get(cell, ())) < _MAX_SEARCH_STARTS_PER_CELL]


def design_size(space: SearchSpace) -> int:
    """The number of cells that are screened: enough to see the effect of every axis."""
    wanted = 2 + sum(min(axis.levels - 1, 2) for axis in space.axes)
    return min(wanted, max(3, space.search_limit // 2), len(space.cells))


def is_screening(knowledge: Knowledge) -> bool:
    """Whether the effect of every axis is still to be seen."""
    return len(knowledge.measured) < design_size(knowledge.space)


def enough_starts(space: SearchSpace) -> int:
    """So many starts are usually enough for a verdict."""
    if space.is_small:
        return 1 + MIN_STARTS * len(space.cells)
    return design_size(space) + MIN_STARTS * (1 + MAX_FINALISTS)


def compares_all(knowledge: Knowledge, budget_seconds: float) -> bool:
    """Whether every cell is compared without a search. The profile's own flags run first: that shows the time."""
    space = knowledge.space
    clock = Clock(budget_seconds, knowledge.outcomes)
    return space.is_small and space.own in knowledge.measured and clock.allows(MIN_STARTS * len(knowledge.alive))


def next_search_step(knowledge: Knowledge, budget_seconds: float, seed: int) -> TuneStep:
    """The next start of the search."""
    space, outcomes = knowledge.space, knowledge.outcomes
    if not outcomes:
        return TuneStep(space.own)
    if compares_all(knowledge, budget_seconds):
        return TuneStep(reason="there are few enough sets of flags to compare all")
    if len(outcomes) >= space.search_limit:
        return TuneStep(reason="the starts of the search are used up")
    if not Clock(budget_seconds, outcomes).allows(1 + 2 * MIN_STARTS):
        return TuneStep(reason="the rest of the time is for the comparison")
    untried = [cell for cell in knowledge.alive if cell not in knowledge.starts]
    if is_screening(knowledge) and untried:
        return TuneStep(_most_unlike(knowledge, untried, seed))
    if not knowledge.measured:
        return TuneStep(reason="no set of flags could be measured")
    if not knowledge.can_win:
        return TuneStep(reason=f"no other set of flags can win by more than {MARGIN:.0%}")
    if not knowledge.contenders:
        return TuneStep(reason="every set of flags that can still win was started twice")
    return TuneStep(max(knowledge.contenders, key=lambda cell: _expected_improvement(knowledge.leads[cell])))


def _most_unlike(knowledge: Knowledge, untried: Sequence[str], seed: int) -> str:
    """The cell of which the started cells say the least."""
    space = knowledge.space
    axes = space.axes
    # Failed cells count as seen: their neighbours are probably alike.
    points = [SurfacePoint(space.cells[start.cell], 0.0, 0.0) for start in knowledge.outcomes]
    surface = Surface(
        [axis.levels for axis in axes], [axis.ordered for axis in axes], points, typical_effects(len(axes))
    )
    order = random.Random(f"screening {seed}").sample(untried, len(untried))
    return max(order, key=lambda cell: round(surface.estimate(space.cells[cell]).sd, 9))


def _expected_improvement(gain: Estimated) -> float:
    if not gain.sd:
        return max(0.0, gain.mean)
    z = gain.mean / gain.sd
    return gain.mean * _NORMAL.cdf(z) + gain.sd * _NORMAL.pdf(z)


def choose_finalists(knowledge: Knowledge, budget_seconds: float) -> list[str]:
    """The profile's own flags, if they run, and the cells that are probably the fastest; the best of them first.

    As many as the starts and the time that are left can compare.
    """
    space = knowledge.space
    if not knowledge.measured:
        return []
    if compares_all(knowledge, budget_seconds):
        return [space.own, *(cell for cell in knowledge.alive if cell != space.own)]
    gains = knowledge.gains
    others = sorted((cell for cell in knowledge.measured if cell != space.own), key=lambda cell: -gains[cell].mean)
    own = [space.own] if space.own in knowledge.measured else []
    left = space.starts_limit - len(knowledge.outcomes)
    clock = Clock(budget_seconds, knowledge.outcomes)
    room = max(
        (count for count in range(1, MAX_FINALISTS + 1)
         if (needed := MIN_STARTS * (count + len(own))) <= left and clock.allows(needed)), default=1,
    )  # fmt: skip
    best = gains[others[0]].mean if others else 0.0
    likely = [cell for cell in others if gains[cell].mean + gains[cell].sd > best - math.log1p(MARGIN)]
    lossless = [cell for cell in likely if cell not in space.lossy]
    lossy = [cell for cell in likely if cell in space.lossy][:1]
    if lossy and not lossless:  # the answers' quality decides about a lossy cell, so a lossless one is compared as well
        lossless = [cell for cell in others if cell not in space.lossy]
    chosen = lossless[: max(1, room - len(lossy))]
    return [*own, *chosen, *(lossy if room > len(chosen) or not chosen else [])]
