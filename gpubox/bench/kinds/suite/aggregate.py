"""From the scores of tasks to categories, weighted totals and a leaderboard. Pure.

The article's own aggregation (``compat``) is what its tables decode to: coding is the mean of 1.1 to 1.3 with nothing
for functional tests that did not run; reasoning and tool use are means of per-task shares; speed is the mean of the
three rates over the best model's; and its totals are made of categories that were rounded to one decimal.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WEIGHTS = {"coding": 0.4, "reasoning": 0.2, "tools": 0.2, "speed": 0.2}
_MEMBERS = {
    "coding": ("1.1", "1.2", "1.3", "2.1", "2.2"),
    "reasoning": ("3.1", "3.2", "3.3"),
    "tools": ("4.1", "4.2"),
}
_COMPAT_CODING = ("1.1", "1.2", "1.3")


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task of one profile: shares from 0 to 1. ``None``: not to be had here."""

    features: float | None
    """Of what can be read off the answer; for tasks that are not run, the whole."""
    functional: float | None = None
    has_functional: bool = False
    """Whether the rubric knows functional tests for this task."""
    penalty: float = 1.0
    """2/3 where the code does not parse."""

    @property
    def keywords_only(self) -> bool:
        """Whether it was only read, where it should have been run: no score, and no part of any total."""
        return self.features is not None and self.has_functional and self.functional is None

    @property
    def value(self) -> float | None:
        """0 to 100. Features of a program count as far as it works: a stub has them all."""
        if self.features is None or self.keywords_only:
            return None
        if self.functional is None:
            return 100 * self.features * self.penalty
        return (60 * self.features + 40) * self.functional * self.penalty

    @property
    def compat(self) -> float | None:
        """0 to 100 as the article counts: functional tests that were not run give nothing."""
        if self.features is None:
            return None
        if not self.has_functional:
            return 100 * self.features * self.penalty
        return (60 * self.features + 40 * (self.functional or 0.0)) * self.penalty


@dataclass(frozen=True, slots=True)
class MeanScore:
    """One task of one profile over its repeats: each answer's own points, averaged."""

    value: float | None
    compat: float | None

    @classmethod
    def of(cls, several: Sequence[TaskScore]) -> MeanScore:
        """Of those that have points."""
        values = [one.value for one in several if one.value is not None]
        counted = [one.compat for one in several if one.compat is not None]
        return cls(statistics.fmean(values) if values else None, statistics.fmean(counted) if counted else None)


@dataclass(frozen=True, slots=True)
class Standing:
    """One profile. ``None``: n/a."""

    name: str
    categories: Mapping[str, float | None] = field(default_factory=dict)
    """coding, reasoning, tools, speed: 0 to 100."""
    total: float | None = None
    """Weighted over the categories there are."""
    missing: tuple[str, ...] = ()
    """Categories that it has no score for."""

    @property
    def agentic(self) -> float | None:
        """What the article calls "general agentic": the mean of tools and reasoning."""
        found = [self.categories.get("tools"), self.categories.get("reasoning")]
        known = [value for value in found if value is not None]
        return statistics.fmean(known) if len(known) == 2 else None


def standings(
    scores: Mapping[str, Mapping[str, TaskScore | MeanScore]],
    rates: Mapping[str, Sequence[float]],
    *,
    compat: bool = False,
    ref_tps: float | None = None,
) -> list[Standing]:
    """By profile, the best total first. ``rates``: tok/s of the speed rows. ``ref_tps`` is 100 points where given;
    else the best of several profiles is; one alone has no speed score."""
    means = {name: statistics.fmean(found) for name, found in rates.items() if found}
    best = ref_tps or (max(means.values()) if len(means) > 1 else None)
    made = []
    for name in dict.fromkeys((*scores, *rates)):
        own = scores.get(name, {})
        categories: dict[str, float | None] = {}
        for category, members in _MEMBERS.items():
            chosen = _COMPAT_CODING if compat and category == "coding" else members
            found = [own[task].compat if compat else own[task].value for task in chosen if task in own]
            known = [value for value in found if value is not None]
            categories[category] = statistics.fmean(known) if known else None
        categories["speed"] = 100 * means[name] / best if name in means and best else None
        if compat:
            categories = {key: None if value is None else round(value, 1) for key, value in categories.items()}
        made.append(_standing(name, categories))
    return sorted(made, key=lambda one: -1.0 if one.total is None else one.total, reverse=True)


def _standing(name: str, categories: Mapping[str, float | None]) -> Standing:
    known = {category: value for category, value in categories.items() if value is not None}
    missing = tuple(category for category in WEIGHTS if category not in known)
    if not known:
        return Standing(name, categories, None, missing)
    weight = sum(WEIGHTS[category] for category in known)
    total = sum(WEIGHTS[category] * value for category, value in known.items()) / weight
    return Standing(name, categories, total, missing)
