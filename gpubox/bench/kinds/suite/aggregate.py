"""Scores of tasks -> categories, weighted totals and a leaderboard. Pure.

The article's own aggregation (``compat``) is reconstructed from its tables. Coding is the mean of 1.1 to 1.3, with
nothing for functional tests that did not run. Reasoning and tools are means of the tasks' shares. Speed is the mean of
the three rates over the best model's. The totals use categories rounded to one decimal.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpubox.bench.kinds.suite.tasks import TASKS

WEIGHTS = {"coding": 0.4, "reasoning": 0.2, "tools": 0.2, "speed": 0.2}
_NOT_IN_ARTICLE = ("2.1", "2.2")


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One answer to one task: shares from 0 to 1. ``None``: not available on this box."""

    features: float | None
    """The share of what can be read off the answer; the whole score of a task that is not run."""
    functional: float | None = None
    """The share of functional checks that its program passes."""
    has_functional: bool = False
    """Whether the rubric has functional checks for this task."""
    penalty: float = 1.0
    """2/3 for code that does not parse."""

    @property
    def keywords_only(self) -> bool:
        """Whether the program should have run but could not: then it has no score and is in no total."""
        return self.features is not None and self.has_functional and self.functional is None

    @property
    def value(self) -> float | None:
        """0 to 100. Features count only as far as the program works, because a stub has them all."""
        if self.features is None or self.keywords_only:
            return None
        if self.functional is None:
            return 100 * self.features * self.penalty
        return (60 * self.features + 40) * self.functional * self.penalty

    @property
    def compat(self) -> float | None:
        """0 to 100 as the article counts: functional checks that did not run give nothing."""
        if self.features is None:
            return None
        if not self.has_functional:
            return 100 * self.features * self.penalty
        return (60 * self.features + 40 * (self.functional or 0.0)) * self.penalty


@dataclass(frozen=True, slots=True)
class MeanScore:
    """One task over its repeats: the mean of its answers' points."""

    value: float | None
    compat: float | None

    @classmethod
    def of(cls, scores: Sequence[TaskScore]) -> MeanScore:
        """The mean of the scores that have points."""
        return cls(_mean(score.value for score in scores), _mean(score.compat for score in scores))


@dataclass(frozen=True, slots=True)
class Standing:
    """One profile on the leaderboard. ``None``: n/a."""

    name: str
    categories: Mapping[str, float | None]
    """By name, as in WEIGHTS: 0 to 100."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Categories without a score."""
        return tuple(name for name, value in self.categories.items() if value is None)

    @property
    def total(self) -> float | None:
        """Weighted over the categories that have a score."""
        known = {name: value for name, value in self.categories.items() if value is not None}
        return statistics.fmean(known.values(), [WEIGHTS[name] for name in known]) if known else None

    @property
    def agentic(self) -> float | None:
        """What the article calls "general agentic": the mean of tools and reasoning."""
        scores = [self.categories["tools"], self.categories["reasoning"]]
        return None if None in scores else _mean(scores)


def standings(
    scores: Mapping[str, Mapping[str, TaskScore | MeanScore]],
    rates: Mapping[str, Sequence[float]],
    *,
    compat: bool = False,
    ref_tps: float | None = None,
) -> list[Standing]:
    """The leaderboard, best total first.

    ``scores``: profile -> task -> score. ``rates``: profile -> tok/s of its speed rows. 100 points of speed are
    ``ref_tps``, else the fastest of several profiles; a single profile without ``ref_tps`` has no speed score.
    """
    means = {name: statistics.fmean(own) for name, own in rates.items() if own}
    best = ref_tps or (max(means.values()) if len(means) > 1 else None)
    board = []
    for name in dict.fromkeys((*scores, *rates)):
        own = [
            (TASKS[task].category, score.compat if compat else score.value)
            for task, score in scores.get(name, {}).items()
            if not (compat and task in _NOT_IN_ARTICLE)
        ]
        categories = {key: _mean(value for category, value in own if category == key) for key in WEIGHTS}
        categories["speed"] = 100 * means[name] / best if name in means and best else None
        if compat:
            categories = {key: None if value is None else round(value, 1) for key, value in categories.items()}
        board.append(Standing(name, categories))
    return sorted(board, key=lambda standing: -1.0 if standing.total is None else standing.total, reverse=True)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
