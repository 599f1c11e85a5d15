"""The course of a tune: first the search, then the comparison of its finalists. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gpubox.bench.kinds.tune.final import FinalRound, Outlook
from gpubox.bench.kinds.tune.progress import TunePhase
from gpubox.bench.kinds.tune.search import (
    Knowledge,
    SearchSpace,
    StartOutcome,
    TuneStep,
    choose_finalists,
    is_screening,
    next_search_step,
)


@dataclass(frozen=True)
class Course:
    """A tune after some starts. What follows depends on its fields alone."""

    space: SearchSpace
    budget_seconds: float
    search: Sequence[StartOutcome] = ()
    final: Sequence[StartOutcome] = ()
    seed: int = 0

    @property
    def outcomes(self) -> tuple[StartOutcome, ...]:
        """Of all starts so far."""
        return (*self.search, *self.final)

    @cached_property
    def knowledge(self) -> Knowledge:
        """What the search says about every cell."""
        return Knowledge(self.space, self.search)

    @cached_property
    def search_step(self) -> TuneStep:
        """The next start of the search."""
        step = next_search_step(self.knowledge, self.budget_seconds, self.seed)
        return TuneStep(reason="the comparison has begun") if step.cell and self.final else step

    @cached_property
    def finalists(self) -> tuple[str, ...]:
        """The profile's own flags first. Call it after the search."""
        return tuple(choose_finalists(self.knowledge, self.budget_seconds))

    @cached_property
    def round(self) -> FinalRound:
        """The comparison of the finalists."""
        return FinalRound(self.space, self.finalists, tuple(self.final), self.seed)

    @cached_property
    def final_step(self) -> TuneStep:
        """The next start of the comparison."""
        return self.round.next_step(self.search, self.budget_seconds)

    @property
    def phase(self) -> TunePhase:
        if self.search_step.cell:
            return "screening" if is_screening(self.knowledge) else "narrowing"
        return "comparing" if self.final_step.cell else "finished"

    @cached_property
    def outlook(self) -> Outlook:
        """What the comparison says so far; for good if ``phase`` is finished."""
        return self.round.outlook(last=self.phase == "finished" and self.final_step.exhausted)
