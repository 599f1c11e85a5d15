"""The comparison of a tune's finalists with the profile's own flags, on fresh starts in random blocks. Pure.

Every block has two starts of each side, in random order. After two blocks and after each further one there is an
interim analysis; they share the significance level as in ``start_comparison``, the rows of one analysis by Bonferroni's
correction. A finalist that cannot win by more than MARGIN any more gets no further starts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpubox.bench.kinds.tune.search import Clock, SearchSpace, StartOutcome, TuneStep
from gpubox.bench.start_comparison import (
    LEVEL,
    MIN_STARTS,
    Contrast,
    SidesComparison,
    Start,
    compare_sides,
    interim_analyses,
)
from gpubox.bench.stats import MARGIN, t_quantile

MAX_STARTS = 16
"""Of each side."""
GOOD_ENOUGH = 0.03
"""The comparison ends when no finalist can win by more than this."""
_BLOCK = 2


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the finalists' starts say so far."""

    comparison: SidesComparison | None
    own: str
    """Empty if the profile's own flags do not run."""
    best: str
    """The fastest finalist that answers as the profile does; empty: there is none."""
    fastest: str
    """The fastest finalist of all."""
    contrasts: Mapping[str, Contrast]
    """Each finalist over the profile's own flags."""
    significant: frozenset[str]
    """The finalists that are faster than the profile's own flags, beyond doubt."""
    rows: int

    def leader(self, side: str, space: SearchSpace) -> str:
        """What ``side`` has to beat besides the profile's own flags: a lossless one only the best lossless one."""
        return self.fastest if side in space.lossy else self.best or self.fastest

    def high(self, side: str) -> float:
        """The most that ``side`` can win over the profile's own flags, as a log; simultaneous for all rows."""
        contrast = self.contrasts[side]
        return contrast.log_ratio + half_width(contrast, self.rows)

    @property
    def gain_at_most(self) -> float | None:
        """The most that any finalist can win: 0.02 is 2 %. ``None``: unknown."""
        highs = [self.high(side) for side in self.contrasts]
        return max(0.0, math.expm1(max(highs))) if highs else None


@dataclass(frozen=True, slots=True)
class FinalRound:
    """The sides of the comparison and its starts so far."""

    space: SearchSpace
    sides: tuple[str, ...]
    """The profile's own flags first, if they run."""
    outcomes: tuple[StartOutcome, ...]
    seed: int = 0

    @property
    def own(self) -> str:
        return self.space.own if self.space.own in self.sides else ""

    def next_step(self, search: Sequence[StartOutcome], budget_seconds: float) -> TuneStep:
        """The next start, after the outcomes of the search and of this comparison."""
        if not self.sides:
            return TuneStep(reason="no set of flags could be measured")
        done, alive = 0, list(self.sides)
        for block in range(MAX_STARTS // _BLOCK):
            if reason := self._why_end(done, alive, block):
                return TuneStep(reason=reason)
            alive = self._still_compared(done, alive, block)
            order = [side for side in alive for _ in range(_BLOCK)]
            random.Random(f"final {self.seed} {block}").shuffle(order)
            if len(self.outcomes) < done + len(order):
                return self._start(order[len(self.outcomes) - done], done, order, search, budget_seconds)
            done += len(order)
        return TuneStep(reason=f"{MAX_STARTS} starts of each did not tell them apart", exhausted=True)

    def _start(
        self, side: str, done: int, order: Sequence[str], search: Sequence[StartOutcome], budget_seconds: float
    ) -> TuneStep:
        total = [*search, *self.outcomes]
        if len(self.outcomes) == done and len(total) + len(order) > self.space.starts_limit:
            return TuneStep(reason="the starts are used up", exhausted=True)
        if not Clock(budget_seconds, total).allows(1):
            return TuneStep(reason="the time is over", exhausted=True)
        return TuneStep(side)

    def _why_end(self, done: int, alive: Sequence[str], block: int) -> str:
        """Why the comparison is over after the first ``done`` starts; empty: it goes on."""
        if len(self.sides) < 2:
            return "only one set of flags could be compared"
        failed = {outcome.cell for outcome in self.outcomes[:done] if outcome.failure and not outcome.loaded}
        if len([side for side in alive if side not in failed]) < 2:
            return "the others are slower, or do not run"
        if block * _BLOCK < MIN_STARTS:
            return ""
        outlook = self.outlook(done)
        if any(self._is_open(outlook, side) for side in alive if side != outlook.own):
            return ""
        if not outlook.own or outlook.significant:
            return "the fastest is known"
        return f"no finalist can win by more than {GOOD_ENOUGH:.0%}"

    def _is_open(self, outlook: Outlook, side: str) -> bool:
        """Whether more starts of ``side`` can change the outcome."""
        if side not in outlook.contrasts and outlook.own:
            return False  # it was never measured
        leader = outlook.leader(side, self.space)
        if side != leader:
            return self._can_win(outlook, side, GOOD_ENOUGH)
        undecided = outlook.own and side not in outlook.significant
        return bool(undecided) and outlook.high(side) > math.log1p(GOOD_ENOUGH)

    def _still_compared(self, done: int, alive: Sequence[str], block: int) -> list[str]:
        if block * _BLOCK < MIN_STARTS:
            return [side for side in alive if side == self.own or not self.failure(side, done)]
        outlook = self.outlook(done)
        return [side for side in alive if side == outlook.own or self._can_win(outlook, side, MARGIN)]

    def _can_win(self, outlook: Outlook, side: str, margin: float) -> bool:
        """Whether ``side`` can be faster than the fastest of its kind by more than ``margin``."""
        comparison, leader = outlook.comparison, outlook.leader(side, self.space)
        if comparison is None or side == leader:
            return True
        if side not in comparison.ancova.means:
            return False
        contrast = comparison.contrast(leader, side)
        return contrast.log_ratio + half_width(contrast, 1) > math.log1p(margin)

    def failure(self, side: str, done: int | None = None) -> str:
        """Why no start of ``side`` could be measured, of the first ``done``; empty: one could, or it had none."""
        starts = [outcome for outcome in self.outcomes[:done] if outcome.cell == side]
        return starts[0].failure if starts and all(outcome.failure for outcome in starts) else ""

    def is_out(self, side: str) -> bool:
        """Whether ``side`` gets no further starts, because it cannot win by more than MARGIN."""
        outlook = self.outlook()
        counts = outlook.comparison.ancova.counts if outlook.comparison else {}
        enough = min((counts.get(name, 0) for name in self.sides), default=0) >= MIN_STARTS
        return enough and side != outlook.own and not self._can_win(outlook, side, MARGIN)

    def outlook(self, done: int | None = None, *, last: bool = False) -> Outlook:
        """What the first ``done`` starts say. ``last``: no further ones follow, so the rest of the level is used.

        It uses no noise of past runs: report, screen and `bench save` must read the same verdict from one run.
        """
        starts = [
            Start(outcome.cell, outcome.number, outcome.log_rates)
            for outcome in self.outcomes[:done]
            if not outcome.failure
        ]
        comparison = compare_sides(starts) if starts else None
        means = comparison.ancova.means if comparison else {}
        own = self.own if self.own in means else ""
        others = [side for side in (comparison.order if comparison else []) if side != self.space.own]
        contrasts = {side: comparison.contrast(own, side) for side in others} if comparison and own else {}
        level = self._level(comparison, last=last)
        rows = max(1, len(self.sides) - 1)
        significant = frozenset(
            side for side, contrast in contrasts.items()
            if contrast.verdict(min(1.0, contrast.p_value() * rows), level) == "faster"
        )  # fmt: skip
        fastest = others[0] if others else ""
        best = next((side for side in others if side not in self.space.lossy), "")
        return Outlook(comparison, own, best, fastest, contrasts, significant, rows)

    def _level(self, comparison: SidesComparison | None, *, last: bool) -> float:
        """The share of the significance level of the analysis now."""
        most = max(comparison.ancova.counts.values()) if comparison else 0
        shares = [analysis.level for analysis in interim_analyses(MAX_STARTS) if analysis.starts <= most]
        if last:
            return LEVEL - sum(shares[:-1])
        return shares[-1] if shares else 0.0


def half_width(contrast: Contrast, rows: int) -> float:
    """Half of the 95 % interval of the log, corrected for so many rows."""
    if math.isinf(contrast.error):
        return math.inf
    return t_quantile(LEVEL / rows, contrast.dof) * contrast.error
