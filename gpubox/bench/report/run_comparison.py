"""Compares two runs row by row (better, regression or noise), and lists what differs in their setup. Pure.

Speeds: two runs were not measured in alternation, so their error is the variation from run to run of one command line
on this box (``noise_history``), or an assumed one. Other figures do not vary from start to start: prompts are paired
(a pass rate by McNemar's test). The p values of all rows are corrected together (Holm).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubox.bench import stats
from gpubox.bench.model import Provenance, RunInfo
from gpubox.bench.provenance import comparable_argv
from gpubox.bench.report.chart import MAX_BARS, Chart, ChartBar, interval_suffix
from gpubox.bench.report.formatting import DOUBTFUL, format_number, interval_title, validity_suffix
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.report.noise_history import NO_HISTORY, NoiseHistory, describe_noise
from gpubox.bench.report.plot import StyledRow
from gpubox.bench.report.report_rows import chart_rows, table_rows, wrapped_rows
from gpubox.bench.start_comparison import (
    LEVEL,
    Contrast,
    Noise,
    compare_prompts,
    compare_unpaired,
    effective_sample_size,
)
from gpubox.errors import UsageError

Outcome = Literal["better", "regression", "noise", "too few", "changed"]
SPEED_UNITS = frozenset({"tok/s", "s", "ms", "min", "J/token"})
"""Units of metrics that vary from start to start."""
BETWEEN_RUNS = "run to run"
"""The method of rows whose error is the variation between runs."""
_REPEAT_SUFFIX = re.compile(r"-s\d+(?=/)|(?<=/)[\d.]+$")
_IGNORED_FLAGS = ("--model", "-m", "--hf-token", "-hft")
_OUTCOME_ROLES = {"better": "good", "regression": "bad", "too few": "quiet", "noise": "quiet", "changed": ""}
_OUTCOME_WIDTH = 12


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One row of both runs."""

    name: str
    group: str
    unit: str
    first: float
    second: float
    ratio: float | None
    """Second over first; ``None`` if first is 0."""
    low: float | None
    high: float | None
    """The 95 % interval of the ratio, for this row alone."""
    p: float | None
    """Corrected for all rows of the table; ``None`` if the row was not tested."""
    n: int
    method: str
    outcome: Outcome
    detectable_difference: float | None = None
    """The smallest relative difference that would be significant in this table: 0.05 is 5 %."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The run ``second`` against the run ``first``."""

    first: str
    second: str
    rows: tuple[ComparedRow, ...]
    differs: tuple[str, ...]
    """A sentence for each difference in what was measured."""
    left_out: tuple[str, ...]
    """Rows that only one of the runs has."""
    noise: str = ""
    """The variation between runs and how it is known; empty if no row is a speed."""
    validity: str = ""
    """The suffix for sentences and charts if items were flagged; otherwise empty."""


@dataclass(frozen=True, slots=True)
class _RowTest:
    first: Metric
    second: Metric
    contrast: Contrast | None = None
    p: float | None = None
    """For this row alone."""
    second_is_higher: bool = True
    n: int = 0
    method: str = ""
    noises: tuple[Noise, ...] = ()


def compare_runs(
    a: tuple[RunInfo, Report], b: tuple[RunInfo, Report], history: NoiseHistory = NO_HISTORY
) -> RunComparison:
    """Compares the rows that both have. Raises UsageError for runs of different kinds or without a common row."""
    (first_info, first), (second_info, second) = a, b
    if first.kind != second.kind:
        raise UsageError(
            f"{first_info.id} is a {first.kind} run, {second_info.id} a {second.kind} run.", "Compare two of one kind."
        )
    first_rows, second_rows = _metrics_by_row(first), _metrics_by_row(second)
    shared = [key for key in first_rows if key in second_rows]
    if not shared:
        raise UsageError(
            f"{first_info.id} and {second_info.id} have no row in common.", "Run both with the same options."
        )
    left_out = sorted({", ".join(filter(None, key)) for key in first_rows.keys() ^ second_rows.keys()})
    tests = [_test_row(first_info, second_info, first_rows[key], second_rows[key], history) for key in shared]
    noises = [noise for test in tests for noise in test.noises]
    return RunComparison(
        first_info.id,
        second_info.id,
        tuple(_corrected_rows(tests)),
        tuple(run_differences(first_info, second_info)),
        tuple(left_out),
        describe_noise(noises) if noises else "",
        validity_suffix((*first.flags, *second.flags)),
    )


def _metrics_by_row(report: Report) -> dict[tuple[str, str, str], Metric]:
    several = len({metric.target for metric in report.metrics}) > 1
    return {(metric.target if several else "", metric.group, metric.name): metric for metric in report.metrics}


def _test_row(a: RunInfo, b: RunInfo, first: Metric, second: Metric, history: NoiseHistory) -> _RowTest:
    if first.estimate.value > 0 < second.estimate.value and first.unit in SPEED_UNITS:
        return _test_speed(a, b, first, second, history)
    prompts = _prompt_medians(first, second)
    if len(prompts) > 1 and all(min(pair) > 0 for pair in prompts.values()):
        gains = [math.log(value / before) for before, value in prompts.values()]
        domains = [name.partition("-")[0] if "-" in name else "" for name in prompts]
        return _row_test(first, second, compare_prompts(gains, domains), "paired by prompt")
    paired = any(word in (first.estimate.method or second.estimate.method) for word in ("prompts", "Wilson"))
    second_samples = dict(second.samples)
    pairs = [(value, second_samples[name]) for name, value in first.samples if name in second_samples]
    if (paired or len(prompts) > 1) and pairs:
        gained, lost = sum(after > before for before, after in pairs), sum(after < before for before, after in pairs)
        return _RowTest(first, second, None, stats.mcnemar(lost, gained), gained > lost, len(pairs), "McNemar")
    sides = [[math.log(value) for _, value in metric.samples if value > 0] for metric in (first, second)]
    if all(len(side) > 2 for side in sides):
        variances = [(statistics.variance(side) / len(side), float(len(side) - 1)) for side in sides]
        contrast = compare_unpaired(first.estimate.value, second.estimate.value, *variances)
        return _row_test(first, second, contrast, "Welch")
    return _RowTest(first, second, n=min(first.estimate.n, second.estimate.n))


def _test_speed(a: RunInfo, b: RunInfo, first: Metric, second: Metric, history: NoiseHistory) -> _RowTest:
    """Two speeds that were not measured in alternation: their error is the variation between runs."""
    noises = [history.between_runs(info, metric, {a.id, b.id}) for info, metric in ((a, first), (b, second))]
    all_known = all(noise.runs for noise in noises)
    if not all_known and not (first.samples and second.samples):
        return _RowTest(first, second, n=min(first.estimate.n, second.estimate.n))  # single figures without history
    if noises[0] == noises[1]:  # one estimate for both, so its error is not independent
        variances = [(2 * noises[0].sd ** 2, noises[0].dof)]
    else:
        variances = [(noise.sd**2, noise.dof) for noise in noises]
    prompts = _prompt_medians(first, second)
    if len(prompts) > 1:
        gains = [math.log(after / before) for before, after in prompts.values() if before > 0 < after]
        contrast = compare_prompts(gains, [0] * len(gains))
        if math.isfinite(contrast.error):
            variances.append((contrast.error**2, contrast.dof))
    elif not all_known:  # a known noise includes the noise of answers
        for metric in (first, second):
            logs = [math.log(value) for _, value in metric.samples if value > 0]
            if len(logs) > 1:
                variances.append((statistics.variance(logs) / effective_sample_size(len(logs)), len(logs) - 1))
    contrast = compare_unpaired(first.estimate.value, second.estimate.value, *variances)
    return _row_test(first, second, contrast, BETWEEN_RUNS, tuple(noises))


def _row_test(
    first: Metric, second: Metric, contrast: Contrast, method: str, noises: tuple[Noise, ...] = ()
) -> _RowTest:
    if not math.isfinite(contrast.error):
        return _RowTest(first, second, n=contrast.starts, method=method)
    n = min(first.estimate.n, second.estimate.n) if noises else contrast.starts
    return _RowTest(first, second, contrast, contrast.p_value(), contrast.log_ratio > 0, n, method, noises)


def _corrected_rows(tests: Sequence[_RowTest]) -> Iterator[ComparedRow]:
    """Every row with its outcome after Holm's correction."""
    p_values = [test.p for test in tests if test.p is not None]
    corrected = iter(stats.holm(p_values))
    for test in tests:
        first, second, contrast = test.first.estimate, test.second.estimate, test.contrast
        p = next(corrected) if test.p is not None else None
        low, high = contrast.interval if contrast else (None, None)
        yield ComparedRow(
            test.first.name,
            test.first.group,
            test.first.unit,
            first.value,
            second.value,
            contrast.ratio if contrast else second.value / first.value if first.value else None,
            low,
            high,
            p,
            test.n,
            test.method,
            _outcome(p, up=test.second_is_higher, better=test.first.better),
            contrast.detectable_difference(LEVEL / len(p_values)) if contrast else None,
        )


def _outcome(p: float | None, *, up: bool, better: str) -> Outcome:
    if p is None:
        return "too few"
    if p > LEVEL:
        return "noise"
    if not better:
        return "changed"
    return "better" if up == (better == "higher") else "regression"


def _prompt_medians(first: Metric, second: Metric) -> dict[str, tuple[float, float]]:
    """By prompt that both have: the median of its repeats and seeds in either run."""
    sides = []
    for metric in (first, second):
        prompts: dict[str, list[float]] = {}
        for name, value in metric.samples:
            prompts.setdefault(_REPEAT_SUFFIX.sub("", name), []).append(value)
        sides.append({name: statistics.median(values) for name, values in prompts.items()})
    return {name: (value, sides[1][name]) for name, value in sides[0].items() if name in sides[1]}


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
        if info.flags:
            yield f"{info.id} is flagged: {', '.join(dict.fromkeys(flag.kind for flag in info.flags))}."


def _provenance_differences(first: Provenance, second: Provenance) -> Iterator[str]:
    hashed = first.model_sha256 and second.model_sha256
    if first.model_sha256 != second.model_sha256 or (not hashed and first.model_path != second.model_path):
        names = [side.model_path.rpartition("/")[2] or "—" for side in (first, second)]
        yield f"The model files differ: {names[0]} and {names[1]}."
    engines = [(side.dialect, side.engine_version, side.engine_sha256) for side in (first, second)]
    if engines[0] != engines[1]:
        names = [side.engine_version or side.dialect or "—" for side in (first, second)]
        yield f"The engines differ: {names[0]} and {names[1]}."
    before, after = _flag_values(comparable_argv(first.argv)), _flag_values(comparable_argv(second.argv))
    changed = [
        f"{name} {before.get(name, 'not given')} → {after.get(name, 'not given')}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name) and name not in _IGNORED_FLAGS
    ]
    if changed:
        yield f"The flags differ: {'; '.join(changed)}."


def _flag_values(argv: Sequence[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    name = ""
    for word in argv[1:]:
        if word.startswith("-") and not re.match(r"-\d", word):
            name = word
            flags[name] = "on"
        elif name:
            flags[name] = word.rpartition("/")[2] if word.startswith("/") else word
    return flags


# -- for a terminal -------------------------------------------------------------------------------------------------


def comparison_rows(comparison: RunComparison, width: int | None = None, *, plots: bool = False) -> Iterator[StyledRow]:
    """The comparison for a terminal. On a narrow one, groups become headings and the interval is left out."""
    yield (("Second against first", "head"),)
    yield (("first   ", "quiet"), (comparison.first, ""))
    yield (("second  ", "quiet"), (comparison.second, ""))
    yield ()
    yield from _outcome_table(comparison, width)
    yield ()
    for sentence in comparison_sentences(comparison):
        yield from wrapped_rows(sentence, "doubt" if DOUBTFUL in sentence else "", width)
    for sentence in comparison.differs:
        yield from wrapped_rows(sentence, "doubt", width)
    if comparison.left_out:
        yield from wrapped_rows(f"Only in one of the runs: {'; '.join(comparison.left_out[:6])}", "quiet", width)
    if plots:
        yield from chart_rows(comparison_charts(comparison), width)


def comparison_sentences(comparison: RunComparison) -> Iterator[str]:
    """The counts of outcomes, the smallest detectable difference, and the correction."""
    outcomes = [row.outcome for row in comparison.rows]
    counts = [outcomes.count(outcome) for outcome in ("better", "regression", "noise")]
    few = outcomes.count("too few")
    untested = f", {few} with too few values for a verdict" if few else ""
    yield f"{counts[0]} better, {counts[1]} worse, {counts[2]} within noise{untested}{comparison.validity}."
    detectable = [
        100 * row.detectable_difference
        for row in comparison.rows
        if row.detectable_difference is not None and row.method == BETWEEN_RUNS
    ]
    if comparison.noise and detectable:
        low, high = f"{min(detectable):.0f}", f"{max(detectable):.0f}"
        limit = low if low == high else f"{low} to {high}"
        yield (
            f"Two runs are not measured in alternation, so differences in speed under about {limit} % cannot be "
            f"detected ({comparison.noise}). `gpubox bench ab` detects smaller ones."
        )
    tested = sum(row.p is not None for row in comparison.rows)
    if tested > 1:
        yield f"Verdicts are corrected for the {tested} rows (Holm); intervals are not."


def _outcome_table(comparison: RunComparison, width: int | None) -> Iterator[StyledRow]:
    intervals = [format_ratio_interval(row) for row in comparison.rows]
    header = ("", "", "FIRST", "SECOND", "", "RATIO", interval_title(intervals), "N")
    cells, last = [header], ""
    for row, interval in zip(comparison.rows, intervals, strict=True):
        group, last = (row.group if row.group != last else ""), row.group
        ratio = f"{row.ratio:.3f}" if row.ratio is not None else ""
        first, second = format_number(row.first), format_number(row.second)
        cells.append((group, row.name, first, second, row.unit, ratio, interval, str(row.n)))
    for columns in (range(8), (1, 2, 3, 5, 6), (1, 2, 3, 5)):
        table = list(table_rows([tuple(row[i] for i in columns) for row in cells]))
        widest = max(len(row[0][0]) for row in table)
        if width is None or widest + _OUTCOME_WIDTH <= width:
            break
    yield table[0]
    last = ""
    for row, texts in zip(comparison.rows, table[1:], strict=True):
        if len(columns) < len(header) and row.group != last:
            last = row.group
            yield ((row.group, "quiet"),)
        yield ((texts[0][0].ljust(widest), ""), (f"  {row.outcome}", _OUTCOME_ROLES[row.outcome]))


def format_ratio_interval(row: ComparedRow) -> str:
    """The interval of the ratio; the p value if the test has no interval."""
    if row.low is not None and row.high is not None:
        return f"{row.low:.3f} – {row.high:.3f}"
    return f"p = {row.p:.3f}" if row.p is not None else ""


def comparison_charts(comparison: RunComparison) -> list[Chart]:
    """Every ratio with its interval around 1, significant rows first."""
    rows = [row for row in comparison.rows if row.ratio is not None and row.outcome != "changed"]
    rows.sort(key=lambda row: row.outcome in ("noise", "too few"))
    bars = tuple(
        ChartBar(", ".join(filter(None, (row.name, row.group))), row.ratio, row.low, row.high)
        for row in rows[:MAX_BARS]
        if row.ratio is not None
    )
    title = interval_suffix("Each value of the second run over that of the first", bars) + comparison.validity
    return [Chart(title, "second / first", bars=bars, centre=1.0)] if bars else []
