"""Two runs row by row: better, a regression, or noise; and what differs between what was measured. Pure.

Speeds: two runs were not measured in turn, so their error is how much runs of one command line differ on this box
(``history``), or what is assumed of it. Other figures do not change from start to start: prompts are paired (a share
that passed: McNemar). All rows of the table are corrected together (Holm).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubox.bench import stats
from gpubox.bench.model import RunInfo
from gpubox.bench.report.formatting import validity_suffix
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.report.noise_history import NoiseHistory, describe_noise
from gpubox.bench.report.run_differences import run_differences
from gpubox.bench.start_comparison import (
    LEVEL,
    Contrast,
    Noise,
    compare_prompts,
    compare_unpaired,
    effective_sample_size,
    satterthwaite,
)
from gpubox.errors import UsageError

Outcome = Literal["better", "regression", "noise", "too few", "changed"]
SPEED_UNITS = frozenset({"tok/s", "s", "ms", "min", "J/token"})
"""Units of what another start of the same server changes."""
BETWEEN_RUNS = "run to run"
"""The method of rows whose error is that of runs."""
_SEED = re.compile(r"-s\d+(?=/)|(?<=/)[\d.]+$")


@dataclass(frozen=True, slots=True)
class ComparedRow:
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
    """Of the ratio, 95 %, of this row alone."""
    p: float | None
    """Corrected for all rows of the table; ``None`` where there is none."""
    n: int
    method: str
    outcome: Outcome
    least: float | None = None
    """The smallest difference that this table could tell: 0.05 is 5 %."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """``second`` against ``first``."""

    first: str
    second: str
    rows: tuple[ComparedRow, ...]
    differs: tuple[str, ...]
    """What was not the same in what was measured, a sentence each."""
    left_out: tuple[str, ...]
    """Rows that only one of them has."""
    noise: str = ""
    """How much runs differ by themselves and whence that is known; empty where no row is a speed."""
    doubt: str = ""
    """What every sentence and picture of it must say of flagged items; empty without flags."""


@dataclass(frozen=True, slots=True)
class _Row:
    first: Metric
    second: Metric
    contrast: Contrast | None = None
    tail: float | None = None
    """The p of this row alone."""
    up: bool = True
    """The second is the higher one."""
    n: int = 0
    method: str = ""
    noises: tuple[Noise, ...] = ()


def compare_runs(
    a: tuple[RunInfo, Report], b: tuple[RunInfo, Report], history: NoiseHistory | None = None
) -> RunComparison:
    """The rows that both have. Raises UsageError where they are of different kinds or share no row."""
    (first, one), (second, two) = a, b
    if one.kind != two.kind:
        raise UsageError(f"{first.id} is a {one.kind} run, {second.id} a {two.kind} run.", "Compare two of one kind.")
    mine, theirs = _by_row(one), _by_row(two)
    shared = [key for key in mine if key in theirs]
    if not shared:
        raise UsageError(f"{first.id} and {second.id} have no row in common.", "Run both with the same options.")
    alone = sorted({", ".join(filter(None, key)) for key in (*mine, *theirs) if (key in mine) != (key in theirs)})
    rows = [_row(first, second, mine[key], theirs[key], history) for key in shared]
    noises = [noise for row in rows for noise in row.noises]
    return RunComparison(
        first.id, second.id, tuple(_corrected(rows)), tuple(run_differences(first, second)), tuple(alone),
        describe_noise(noises) if noises else "", validity_suffix((*one.flags, *two.flags)),
    )  # fmt: skip


def _by_row(report: Report) -> dict[tuple[str, str, str], Metric]:
    several = len({metric.target for metric in report.metrics}) > 1
    return {(metric.target if several else "", metric.group, metric.name): metric for metric in report.metrics}


def _row(a: RunInfo, b: RunInfo, first: Metric, second: Metric, history: NoiseHistory | None) -> _Row:
    if first.estimate.value > 0 < second.estimate.value and first.unit in SPEED_UNITS:
        return _speed(a, b, first, second, history)
    paired = any(word in (first.estimate.method or second.estimate.method) for word in ("prompts", "Wilson"))
    both = _clustered(first, second)
    if len(both) > 1 and all(min(one, two) > 0 for one, two in both.values()):
        gains = [math.log(two / one) for one, two in both.values()]
        found = compare_prompts(gains, [_domain(name) for name in both])
        return _contrasted(first, second, found, "paired by prompt")
    if (paired or len(both) > 1) and (pairs := _both(first, second)):
        gained, lost = sum(two > one for one, two in pairs), sum(two < one for one, two in pairs)
        p = stats.mcnemar(lost, gained)
        return _Row(first, second, None, p, gained > lost, len(pairs), "McNemar")
    sides = [[math.log(value) for _, value in metric.samples if value > 0] for metric in (first, second)]
    if all(len(side) > 2 for side in sides):
        parts = [(statistics.variance(side) / len(side), float(len(side) - 1)) for side in sides]
        return _contrasted(
            first, second, compare_unpaired(first.estimate.value, second.estimate.value, *parts), "Welch"
        )
    return _Row(first, second, n=min(first.estimate.n, second.estimate.n))


def _speed(a: RunInfo, b: RunInfo, first: Metric, second: Metric, history: NoiseHistory | None) -> _Row:
    """Two speeds that were not measured in turn: their error is that of runs, not that of answers."""
    noises = []
    for info, metric in ((a, first), (b, second)):
        known = info.provenance.get(metric.target)
        ids = {a.id, b.id}
        noises.append(
            history.runs(known, ids, info.plan.kind, info.plan.options, metric) if history and known else Noise()
        )
    if not all(noise.runs for noise in noises) and not (first.samples and second.samples):
        return _Row(first, second, n=min(first.estimate.n, second.estimate.n))  # one figure each, and no history
    if noises[0] == noises[1]:  # one estimate, used twice
        parts = [(2 * noises[0].sd ** 2, noises[0].dof)]
    else:
        parts = [(noise.sd**2, noise.dof) for noise in noises]
    both = _clustered(first, second)
    if len(both) > 1:
        prompts = compare_prompts([math.log(two / one) for one, two in both.values() if one > 0 < two], [0] * len(both))
        if math.isfinite(prompts.error):
            parts.append((prompts.error**2, prompts.freedom))
    elif not all(noise.runs for noise in noises):  # the history has the noise of answers in it
        for metric in (first, second):
            logs = [math.log(value) for _, value in metric.samples if value > 0]
            if len(logs) > 1:
                parts.append((statistics.variance(logs) / effective_sample_size(len(logs)), len(logs) - 1))
    found = compare_unpaired(first.estimate.value, second.estimate.value, satterthwaite(parts))
    return _contrasted(first, second, found, BETWEEN_RUNS, tuple(noises))


def _contrasted(first: Metric, second: Metric, found: Contrast, method: str, noises: tuple[Noise, ...] = ()) -> _Row:
    if not math.isfinite(found.error):
        return _Row(first, second, n=found.starts, method=method)
    n = min(first.estimate.n, second.estimate.n) if noises else found.starts
    return _Row(first, second, found, found.tail(), found.log_ratio > 0, n, method, noises)


def _corrected(rows: Sequence[_Row]) -> list[ComparedRow]:
    """Every row with its outcome, after what so many of them cost."""
    tested = [row for row in rows if row.tail is not None]
    corrected = dict(zip(map(id, tested), stats.holm([row.tail or 0.0 for row in tested]), strict=True))
    made = []
    for row in rows:
        one, two, p, found = row.first.estimate, row.second.estimate, corrected.get(id(row)), row.contrast
        low, high = found.interval if found else (None, None)
        ratio = found.ratio if found else two.value / one.value if one.value else None
        made.append(
            ComparedRow(
                row.first.name, row.first.group, row.first.unit, one.value, two.value, ratio, low, high, p, row.n,
                row.method, _outcome(p, up=row.up, better=row.first.better),
                found.least(LEVEL / len(tested)) if found else None,
            )
        )  # fmt: skip
    return made


def _outcome(p: float | None, *, up: bool, better: str) -> Outcome:
    if p is None:
        return "too few"
    if p > LEVEL:
        return "noise"
    if not better:
        return "changed"
    return "better" if up == (better == "higher") else "regression"


def _domain(name: str) -> str:
    return name.partition("-")[0] if "-" in name else ""


def _clustered(first: Metric, second: Metric) -> dict[str, tuple[float, float]]:
    """By prompt that both have: the median of its seeds and repeats on either side, which are one prompt's."""
    sides = [_clusters(metric.samples) for metric in (first, second)]
    return {
        name: (statistics.median(sides[0][name]), statistics.median(sides[1][name]))
        for name in sides[0]
        if name in sides[1]
    }


def _clusters(samples: Sequence[tuple[str, float]]) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, value in samples:
        found.setdefault(_SEED.sub("", name), []).append(value)
    return found


def _both(first: Metric, second: Metric) -> list[tuple[float, float]]:
    theirs = dict(second.samples)
    return [(value, theirs[name]) for name, value in first.samples if name in theirs]
