"""Two runs row by row: better, a regression, or noise; and what differs between what was measured. Pure.

Where prompts are the sampling unit, they are paired (a share that passed: McNemar); else the repeats of both are two
samples (Welch). ``stats`` has the formulas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubox.bench import stats
from gpubox.bench.model import RunInfo
from gpubox.bench.report.differences import differences
from gpubox.bench.report.model import Metric, Report
from gpubox.errors import UsageError

Outcome = Literal["better", "regression", "noise", "too few", "changed"]
SURE = 0.05
PAIRED = ("humaneval", "suite", "ab", "sweep")
"""Kinds whose samples are tasks or prompts: no two of them alike, and each asked in both runs."""
_SEED = re.compile(r"-s\d+(?=/)|(?<=/)\d+$")


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of both runs."""

    name: str
    group: str
    unit: str
    first: float
    second: float
    ratio: float | None
    """Second over first; ``None`` where one is 0."""
    low: float | None
    high: float | None
    """Of the ratio, 95 %."""
    p: float | None
    """McNemar's, for shares."""
    n: int
    method: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RunComparison:
    """``second`` against ``first``."""

    first: str
    second: str
    rows: tuple[Compared, ...]
    differs: tuple[str, ...]
    """What was not the same in what was measured, a sentence each."""
    left_out: tuple[str, ...]
    """Rows that only one of them has."""


def compare_runs(a: tuple[RunInfo, Report], b: tuple[RunInfo, Report]) -> RunComparison:
    """The rows that both have. Raises UsageError where they are of different kinds or share no row."""
    (first, one), (second, two) = a, b
    if one.kind != two.kind:
        raise UsageError(f"{first.id} is a {one.kind} run, {second.id} a {two.kind} run.", "Compare two of one kind.")
    mine, theirs = _by_row(one), _by_row(two)
    shared = [key for key in mine if key in theirs]
    if not shared:
        raise UsageError(f"{first.id} and {second.id} have no row in common.", "Run both with the same options.")
    alone = sorted({", ".join(filter(None, key)) for key in (*mine, *theirs) if (key in mine) != (key in theirs)})
    return RunComparison(
        first.id, second.id, tuple(_compared(mine[key], theirs[key], one.kind in PAIRED) for key in shared),
        tuple(differences(first, second)), tuple(alone),
    )  # fmt: skip


def _by_row(report: Report) -> dict[tuple[str, str, str], Metric]:
    several = len({metric.target for metric in report.metrics}) > 1
    return {(metric.target if several else "", metric.group, metric.name): metric for metric in report.metrics}


def _compared(first: Metric, second: Metric, by_task: bool) -> Compared:
    one, two = first.estimate, second.estimate
    found, p, method = None, None, ""
    values = [[value for _, value in metric.samples] for metric in (first, second)]
    paired = by_task or any(word in (one.method or two.method) for word in ("prompts", "Wilson"))
    if all(value > 0 for side in values for value in side) and all(values):
        if paired and (pairs := _pairs(first, second)):
            found, method = stats.compare(pairs), "paired by prompt"
        else:
            found, method = stats.welch(*values), "Welch"
        outcome = _outcome(found.verdict, first.better)
        n = found.n
    elif paired and (both := _both(first, second)):
        gained = sum(b > a for a, b in both)
        lost = sum(b < a for a, b in both)
        p, n, method = stats.mcnemar(lost, gained), len(both), "McNemar"
        verdict: stats.Verdict = "indistinguishable" if p >= SURE else "faster" if gained > lost else "slower"
        outcome = _outcome(verdict, first.better)
    else:
        n, outcome = min(one.n, two.n), "too few"
    ratio = found.ratio if found else two.value / one.value if one.value else None
    low, high = (found.low, found.high) if found else (None, None)
    return Compared(
        first.name, first.group, first.unit, one.value, two.value, ratio, low, high, p, n, method, outcome
    )  # fmt: skip


def _outcome(verdict: stats.Verdict, better: str) -> Outcome:
    if verdict in ("indistinguishable", "too few"):
        return "too few" if verdict == "too few" else "noise"
    if not better:
        return "changed"
    return "better" if (verdict == "faster") == (better == "higher") else "regression"


def _pairs(first: Metric, second: Metric) -> list[stats.Pair]:
    """One for each prompt that both have: its seeds and repeats are one prompt's."""
    sides = [_clusters(metric.samples) for metric in (first, second)]
    return [
        stats.Pair(name.partition("-")[0] if "-" in name else "", tuple(sides[0][name]), tuple(sides[1][name]))
        for name in sides[0]
        if name in sides[1]
    ]


def _clusters(samples: Sequence[tuple[str, float]]) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, value in samples:
        found.setdefault(_SEED.sub("", name), []).append(value)
    return found


def _both(first: Metric, second: Metric) -> list[tuple[float, float]]:
    theirs = dict(second.samples)
    return [(value, theirs[name]) for name, value in first.samples if name in theirs]
