"""Compares two runs row by row, and lists what differs in their setup. Pure.

Speeds are compared over all stored runs of both launches (``bench.compare.past_runs``); what no start of a server
changes (accepted drafts, pass rates, points) by prompt: its answers are exchanged if there are several, else with an
exact test where a prompt is passed or not. All rows share one level; the main one has half of it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gpubox.bench import stats
from gpubox.bench.compare.past_runs import (
    Direction,
    Past,
    PastFigures,
    compare_past,
    launch_identity,
    looks_needed,
    told,
)
from gpubox.bench.compare.starts import LEVEL, limit_of
from gpubox.bench.compare.words import runs_tell
from gpubox.bench.kinds.suite.suite_report import task_weights
from gpubox.bench.model import Provenance, RunInfo
from gpubox.bench.provenance import comparable_argv
from gpubox.bench.report.formatting import format_change, format_number, validity_suffix, written_unit
from gpubox.bench.report.model import SPEED_UNITS, Metric, Report
from gpubox.errors import UsageError
from gpubox.profiles.argv import given_flags

Outcome = Literal["better", "worse", "changed", "equal", "cannot tell"]
MAIN_METRICS = ("tg", "pass@1", "points")
"""The first row of one of them is what two runs are compared for."""
SAME_NAMES = ("the first run", "the second run")
"""Of two runs that measured targets of one name."""
MIN_PROMPTS = 5
"""Fewer pairs give no interval."""
_REPEAT_SUFFIX = re.compile(r"-s\d+(?=/)|(?<=/)[\d.]+$")
_IGNORED_FLAGS = ("--model", "-m", "--hf-token", "-hft")


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One row of both runs. ``None``: unknown."""

    name: str
    group: str
    unit: str
    first: float
    second: float
    ratio: float | None
    """Second over first."""
    low: float | None
    """The interval of the ratio, at this row's share of the table's level."""
    high: float | None
    n: int
    """Looks at each side, or prompts that both have."""
    method: str
    """``past runs``, ``permutation``, ``McNemar`` or ``paired by prompt``; empty: the row cannot be tested."""
    outcome: Outcome

    @property
    def figures(self) -> tuple[str, str, str]:
        """Both values as they are written, and their unit."""
        factor, unit = written_unit(self.unit, max(self.first, self.second))
        return format_number(factor * self.first), format_number(factor * self.second), unit

    @property
    def same(self) -> bool:
        """Whether both are written alike, so that there is nothing to tell."""
        return self.outcome == "cannot tell" and self.figures[0] == self.figures[1]

    @property
    def between(self) -> str:
        """The interval as changes: ``+3.0 % to +5.1 %``; empty without one."""
        return "" if self.low is None else f"{format_change(self.low)} to {format_change(self.high)}"

    @property
    def within(self) -> float | None:
        """For ``equal``: the relative difference that it does not reach."""
        return limit_of(self.low, self.high) if self.low is not None and self.high is not None else None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The run ``second`` against the run ``first``."""

    first: str
    second: str
    names: tuple[str, str]
    """What each of them measured: its targets, or SAME_NAMES."""
    kind: str
    rows: tuple[ComparedRow, ...]
    differs: tuple[str, ...]
    """A sentence for each difference in what was measured."""
    left_out: tuple[str, ...]
    """Rows that only one of the runs has."""
    same_launch: bool
    """Both started the same flags on the same box."""
    looks_needed: int
    """At each side, before the main row can be told."""
    tells: str
    """If the main row cannot be told: the command that tells it, and its time. Else the commands for one more run."""
    validity: str = ""
    """The suffix for sentences and charts if items were doubtful; otherwise empty."""
    others_needed: int = 0
    """As ``looks_needed``, for the other rows: the more rows, the more often chance makes one look faster."""

    @property
    def main(self) -> ComparedRow:
        """The row that the runs are compared for."""
        return next((row for name in MAIN_METRICS for row in self.rows if row.name == name), self.rows[0])


def compare_runs(
    a: tuple[RunInfo, Report], b: tuple[RunInfo, Report], past: PastFigures | None = None
) -> RunComparison:
    """Compares the rows that both have. Raises UsageError for runs of different kinds or without a common row."""
    (first_info, first), (second_info, second) = a, b
    if first.kind != second.kind:
        raise UsageError(
            f"{first_info.id} is of the kind {first.kind}, {second_info.id} of the kind {second.kind}.",
            "Compare two of one kind.",
        )
    first_rows, second_rows = _metrics_by_row(first), _metrics_by_row(second)
    shared = [key for key in first_rows if key in second_rows]
    if not shared:
        raise UsageError(
            f"{first_info.id} and {second_info.id} have no row in common.", "Run both with the same options."
        )
    past = past or PastFigures(())
    main = next((key for name in MAIN_METRICS for key in shared if key[2] == name), shared[0])
    main_level = LEVEL / 2 if len(shared) > 1 else LEVEL
    other_level = LEVEL / 2 / max(1, len(shared) - 1)
    rows, same, needed = [], True, looks_needed(main_level)
    for key in shared:
        one, other = first_rows[key], second_rows[key]
        is_same = launch_identity(first_info, one.target) == launch_identity(second_info, other.target)
        pasts = past.of(first_info, one, alone=is_same), past.of(second_info, other, alone=is_same)
        launched = first_info.provenance.get(one.target)
        same &= is_same and bool(launched and launched.argv)  # no argv: measured at an address, with unknown flags
        rows.append(compare_row(one, other, pasts, main_level if key == main else other_level))
    missing = needed if rows[shared.index(main)].outcome == "cannot tell" else 0
    names = tuple(", ".join(dict.fromkeys(metric.target for metric in own.metrics)) for own in (first, second))
    left_out = sorted({", ".join(filter(None, key)) for key in first_rows.keys() ^ second_rows.keys()})
    return RunComparison(
        first_info.id,
        second_info.id,
        (names[0], names[1]) if names[0] != names[1] else SAME_NAMES,
        first.kind,
        tuple(rows),
        tuple(run_differences(first_info, second_info)),
        tuple(left_out),
        same,
        needed,
        runs_tell((first_info, first_rows[main]), (second_info, second_rows[main]), missing),
        validity_suffix((*first.doubts, *second.doubts)),
        looks_needed(other_level),
    )


def _metrics_by_row(report: Report) -> dict[tuple[str, str, str], Metric]:
    several = len({metric.target for metric in report.metrics}) > 1
    return {(metric.target if several else "", metric.group, metric.name): metric for metric in report.metrics}


def compare_row(first: Metric, second: Metric, pasts: tuple[Past, Past], level: float) -> ComparedRow:
    """One row at its share of the table's level. ``pasts``: the stored runs of a speed's launches."""
    before, after = first.estimate.value, second.estimate.value
    ratio, low, high, n, method = after / before if before else None, None, None, 0, ""
    direction: Direction = "cannot tell"
    if first.unit in SPEED_UNITS:
        if all(pasts):
            compared = compare_past(*pasts, level)
            direction, low, high, n, method = (
                compared.direction,
                compared.low,
                compared.high,
                compared.looks,
                "past runs",
            )
            ratio = compared.ratio if low is not None else ratio  # else it would not be that of the figures beside it
        return _row(first, second, (ratio, low, high), n, method, direction)
    answers = _answers(first), _answers(second)
    pairs = {
        name: (statistics.fmean(own), statistics.fmean(answers[1][name]))
        for name, own in answers[0].items()
        if name in answers[1]
    }
    n = len(pairs)
    if n and min(len(own) for side in answers for own in side.values()) > 1:
        known = task_weights() if first.name == "points" else {}
        weights = {name: known.get(name, 1 / n) for name in answers[0]}
        gain = sum(weights[name] * (other - one) for name, (one, other) in pairs.items())
        if stats.permutation_p(*answers, weights) <= level:
            direction = "higher" if gain > 0 else "lower"
        method = "permutation"
    elif pairs and all({*pair} <= {0.0, 100.0} for pair in pairs.values()):
        outcomes = list(pairs.values())
        lost, won = outcomes.count((100.0, 0.0)), outcomes.count((0.0, 100.0))
        if stats.mcnemar(lost, won) <= level:
            direction = "higher" if won > lost else "lower"
        method = "McNemar"
    elif n >= MIN_PROMPTS and before > 0:
        gains = [other - one for one, other in pairs.values()]
        mean, base = statistics.fmean(gains), statistics.fmean(one for one, _ in pairs.values())
        half = stats.t_quantile(level, n - 1) * statistics.stdev(gains) / math.sqrt(n)
        if base > 0:
            ratio, low, high = 1 + mean / base, 1 + (mean - half) / base, 1 + (mean + half) / base
        direction, method = told(low, high), "paired by prompt"
    return _row(first, second, (ratio, low, high), n, method, direction)


def _row(
    first: Metric, second: Metric, ratio: tuple[float | None, float | None, float | None], n: int, method: str,
    direction: Direction,
) -> ComparedRow:  # fmt: skip
    outcome: Outcome
    if direction in ("equal", "cannot tell"):
        outcome = direction
    elif first.better:
        outcome = "better" if (direction == "higher") == (first.better == "higher") else "worse"
    else:
        outcome = "changed"
    values = (first.estimate.value, second.estimate.value)
    return ComparedRow(first.name, first.group, first.unit, *values, *ratio, n, method, outcome)


def _answers(metric: Metric) -> dict[str, list[float]]:
    """By prompt: the values of its repeats and seeds."""
    prompts: dict[str, list[float]] = {}
    for name, value in metric.samples:
        prompts.setdefault(_REPEAT_SUFFIX.sub("", name).rstrip("/"), []).append(value)
    return prompts


# -- what differs in the setup --------------------------------------------------------------------------------------


def run_differences(first: RunInfo, second: RunInfo) -> Iterator[str]:
    """A sentence for each difference between two runs: protocol, engine, model, flags, machine."""
    if first.plan.options != second.plan.options:
        names = {*first.plan.options, *second.plan.options}
        changed = sorted(name for name in names if first.plan.options.get(name) != second.plan.options.get(name))
        yield f"The protocols differ: {', '.join(changed)}."
    pairs = list(zip(first.provenance.values(), second.provenance.values(), strict=False))
    for one, other in pairs:
        prefix = ""
        if len(pairs) > 1:
            prefix = f"{one.target}: " if one.target == other.target else f"{one.target} and {other.target}: "
        yield from (prefix + sentence for sentence in _provenance_differences(one, other))
    if first.machine and second.machine:
        for field in ("driver", "gpus", "gpu_processes", "cpu", "ram_bytes"):
            if getattr(first.machine, field) != getattr(second.machine, field):
                yield f"The machines differ: {field.replace('_', ' ')}."
    for info in (first, second):
        if info.doubts:
            yield f"{info.id} is doubtful: {', '.join(dict.fromkeys(doubt.kind for doubt in info.doubts))}."


def _provenance_differences(first: Provenance, second: Provenance) -> Iterator[str]:
    hashed = first.model_sha256 and second.model_sha256
    if first.model_sha256 != second.model_sha256 or (not hashed and first.model_path != second.model_path):
        names = [side.model_path.rpartition("/")[2] or "—" for side in (first, second)]
        yield f"The model files differ: {names[0]} and {names[1]}."
    engines = [(side.dialect, side.engine_version, side.engine_sha256) for side in (first, second)]
    if engines[0] != engines[1]:
        names = [side.engine_version or side.dialect or "—" for side in (first, second)]
        yield f"The engines differ: {names[0]} and {names[1]}."
    before, after = (
        {name: value.rpartition("/")[2] if value.startswith("/") else value or "true" for name, value in given.items()}
        for given in (given_flags(comparable_argv(side.argv)) for side in (first, second))
    )
    changed = [
        f"{name} {before.get(name, 'not given')} → {after.get(name, 'not given')}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) and name not in _IGNORED_FLAGS
    ]
    if changed:
        yield f"The flags differ: {'; '.join(changed)}."


# -- in a sentence -----------------------------------------------------------------------------------


def comparison_verdict(comparison: RunComparison) -> str:
    """Better or worse and by how much, equal within so much, or why that cannot be told and what would tell it.

    Then why there is no verdict about other rows: once, for all of them.
    """
    row, (first, second) = comparison.main, comparison.names
    is_speed = row.unit in SPEED_UNITS
    if row.outcome in ("better", "worse"):
        does, basis = "writes" if row.name == "tg" else "is", f" ({row.group})" if row.group else ""
        if row.method == "past runs" and row.ratio:
            does += f" about {percent(abs(row.ratio - 1))}"
            basis += f": {row.between}, from {row.n} runs of each, made in turn"
        sentence = f"{second} {does} {outcome_word(row)} than {first}{basis}."
    elif row.outcome == "equal":
        sentence = f"{first} and {second} are equally {'fast' if is_speed else 'good'}, within {percent(row.within)}."
    elif row.outcome == "changed":
        sentence = f"{row.name} differs between {first} and {second}."
    elif comparison.same_launch and is_speed:
        sentence = "Both runs started the same flags on the same box: what differs is chance, or the box itself."
    elif not is_speed:
        sentence = f"Which of {first} and {second} is better cannot be told: too few answers differ. {comparison.tells}"
    else:
        sentence = (
            f"Which is faster cannot be told from stored runs: {few_looks(row.n, comparison.looks_needed)} "
            f"{comparison.tells}"
        )
    sentence = sentence[0].upper() + sentence[1:] if comparison.names == SAME_NAMES else sentence
    sentence = sentence.removesuffix(".") + comparison.validity + "." if comparison.validity else sentence
    return sentence + _open_sentence(comparison)


def _open_sentence(comparison: RunComparison) -> str:
    """Why other rows have no verdict, once for all of them; the main one's own reason holds for them, too."""
    rows = [row for row in comparison.rows if row.outcome == "cannot tell" and not row.same]
    if not rows or comparison.main.outcome == "cannot tell":
        return ""
    needed, values = comparison.others_needed, f" The {len(rows)} values with a ?"
    if min(row.n for row in rows) >= needed or rows[0].unit not in SPEED_UNITS:
        return f"{values} have no verdict: they differ by no more than chance explains."
    because = "because among so many values one easily differs by chance"
    return f"{values} need {needed} runs of each, {because}. One more of each: {comparison.tells}"


def few_looks(looks: int, needed: int) -> str:
    """Why speeds of stored runs cannot be told apart, for who has never heard of an interval."""
    if looks >= needed:
        return "the same flags were faster one time and slower the next by as much as these two differ."
    times = "once" if looks < 2 else f"{looks} times"
    return (
        "one start of a server is faster than the next, and these two were measured in turn "
        f"only {times}, not {needed} times."
    )


def percent(share: float | None) -> str:
    """A share in whole percents."""
    return f"{100 * (share or 0):.0f} %"


def outcome_word(row: ComparedRow) -> str:
    """The outcome of a row: of a speed ``faster`` or ``slower``."""
    speeds = {"better": "faster", "worse": "slower"} if row.unit in ("tok/s", "s", "ms", "min") else {}
    return speeds.get(row.outcome, row.outcome)
