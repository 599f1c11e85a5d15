"""The report of a comparison of cells: the answer, the figures, every cell as a row, and how it was measured. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpubox import units
from gpubox.bench.compare.cell_benchmark import CellBenchmark, mean_rate, start_facts
from gpubox.bench.compare.contest import Contest
from gpubox.bench.compare.starts import Judged
from gpubox.bench.compare.words import answer_sentence, figures, leader, winner
from gpubox.bench.kinds.shared import name_list, report_doubts, unfinished_note
from gpubox.bench.model import RunInfo, ScoredItems
from gpubox.bench.overrides import lossy_difference
from gpubox.bench.report.formatting import format_change, validity_suffix
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.post_launch import billions
from gpubox.bench.report.prompt_metrics import Measures, acceptance_metrics, prompt_metrics
from gpubox.bench.stats import MARGIN

MEASURES: Measures = (
    ("tg", "tg", "tok/s", "higher"),
    ("pp", "pp", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
    ("effective", "effective", "tok/s", "higher"),
    ("energy", "joules_per_token", "J/token", "lower"),
)
_RATES = (("tg", "tg"), ("pp", "pp"), ("effective", "effective"), ("J/token", "joules_per_token"))
_REASON_CHARACTERS = 60


def contest_report(
    benchmark: CellBenchmark,
    info: RunInfo,
    results: ScoredItems,
    *,
    title: str,
    axes: Mapping[str, Callable[[str], Value]],
    metrics: Sequence[Metric],
    rates: Sequence[tuple[str, str]] = _RATES,
    tables: Sequence[ReportTable] = (),
    series: Sequence[Series] = (),
    notes: Sequence[str] = (),
    save_hint: bool = True,
) -> Report:
    """The report so far. ``axes``: the columns that tell the cells apart, each with its value of a cell."""
    contest = benchmark.contest_after(results)
    judged = contest.judged()
    doubts = report_doubts(info, results)
    verdict = f"Not finished: {len(contest.outcomes)} starts are done (gpubox bench resume {info.id})."
    if contest.reason is not None:
        verdict = answer_sentence(contest, judged, benchmark.label, doubts, info.plan)
    return Report(
        kind=info.plan.kind,
        title=title,
        metrics=tuple(metrics),
        tables=(_cells_table(benchmark, contest, judged, results, axes, rates), *tables),
        series=tuple(series),
        notes=(*_notes(benchmark, info, contest, judged, validity_suffix(doubts), save_hint=save_hint), *notes,
               *unfinished_note(info, results)),
        doubts=doubts,
        verdict=verdict,
    )  # fmt: skip


def cell_metrics(benchmark: CellBenchmark, info: RunInfo, results: ScoredItems, measures: Measures) -> list[Metric]:
    """The metrics of each measured cell; its profile is the target, the cell the group."""
    metrics = []
    targets = {target.name: target for target in info.plan.targets}
    for cell, rows in benchmark.rows_of(benchmark.contest_after(results), results).items():
        metrics += prompt_metrics(targets[cell].profile, cell, rows, measures, info.plan.seed)
        metrics += acceptance_metrics(targets[cell].profile, cell, rows, info.plan.seed)
    return metrics


def _cells_table(
    benchmark: CellBenchmark,
    contest: Contest,
    judged: Mapping[str, Judged],
    results: ScoredItems,
    axes: Mapping[str, Callable[[str], Value]],
    rates: Sequence[tuple[str, str]],
) -> ReportTable:
    """A row for each cell that was started or cannot be, the present flags first."""
    rows_of, facts = benchmark.rows_of(contest, results), start_facts(results)
    measured = {cell: {key: mean_rate(rows, key) for _, key in rates} for cell, rows in rows_of.items()}
    shown = [(name, key) for name, key in rates if any(values[key] is not None for values in measured.values())]
    with_vram = any(known.get("vram_bytes") for known in facts.values())
    table = []
    cells = [cell for cell in contest.rules.cells if contest.starts_of(cell) or contest.hopeless(cell)]
    for cell in cells:
        known, row = facts.get(cell, {}), judged.get(cell)
        values: list[Value] = [value(cell) for value in axes.values()]
        values += _model_values(known) if benchmark.with_models else []
        values += [measured.get(cell, {}).get(key) for _, key in shown]
        values += [units.memory(known.get("vram_bytes"))] if with_vram else []
        change, ends = _change(contest, cell, row)
        values += [units.duration(known.get("load_seconds")), len(contest.starts_of(cell)) or None, change, ends]
        table.append((*values, _word(contest, cell, row)))
    columns = (
        *axes, *(["quant", "size", "parameters", "context"] if benchmark.with_models else []),
        *(name for name, _ in shown), *(["VRAM"] if with_vram else []), "load", "starts",
        f"vs {benchmark.label(contest.rules.own)}", "95 % CI", "",
    )  # fmt: skip
    note = f"rates in {benchmark.unit}"
    if unstarted := len(contest.rules.cells) - len(cells):
        note += f"; {unstarted} more were not started"
    if len(judged) > 1:
        note += f"; answers are corrected for all {len(judged)} rows that have one, intervals are not"
    return ReportTable("Cells", columns, tuple(table), f"{note}; less than {MARGIN:.0%} is never called a difference")


def _change(contest: Contest, cell: str, row: Judged | None) -> tuple[str, str]:
    """How much faster than the present flags, and its interval; ``~`` before a guess from the search."""
    if row and row.contrast:
        ends = f"{format_change(row.interval[0])} to {format_change(row.interval[1])}" if row.interval else ""
        return format_change(row.contrast.ratio), ends
    own, mean = contest.mean(contest.rules.own), contest.mean(cell)
    if cell == contest.rules.own or own is None or mean is None:
        return "", ""
    return f"~{format_change(math.exp(mean - own))}", ""


def _word(contest: Contest, cell: str, row: Judged | None) -> str:
    if cell == contest.rules.own and not contest.failure_of(cell):
        return "now"
    if failure := contest.hopeless(cell):
        return textwrap.shorten(failure, _REASON_CHARACTERS, placeholder=" ...")
    if row:
        return f"equal within {row.within:.0%}" if row.answer == "equal" and row.within else row.answer
    starts = len(contest.starts_of(cell))
    return f"left out after {starts} {'start' if starts == 1 else 'starts'}"


def _model_values(known: Mapping[str, Any]) -> list[Value]:
    context, active = known.get("context_tokens"), known.get("active_parameters")
    parameters = billions(known.get("parameters")) + (f", ~{billions(active)} active" if active else "")
    return [known.get("quant") or None, units.file_size(known.get("model_bytes")), parameters,
            f"{context:,}" if context else None]  # fmt: skip


def _notes(
    benchmark: CellBenchmark, info: RunInfo, contest: Contest, judged: dict[str, Judged], doubt: str, *, save_hint: bool
) -> Iterator[str]:
    cell = leader(contest, judged)
    if contest.reason is not None and cell:
        if text := figures(f"in {benchmark.measure}", cell, benchmark.label, judged[cell]):
            yield text.rstrip(".") + doubt + "."
        if save_hint and winner(contest, judged):
            yield f"To keep it: gpubox bench save {info.id}"
    if judged and (difference := lossy_difference(info)):
        yield difference
    failed = {cell: why for cell in contest.rules.cells if (why := contest.hopeless(cell))}
    for why in dict.fromkeys(failed.values()):
        yield f"Not measured: {name_list([cell for cell, own in failed.items() if own == why])}: {why}."
    if contest.reason:
        count = len(contest.outcomes)
        starts = f"{count} starts in random order" if count > 1 else "One start"
        yield (
            f"{starts}; it ended because {contest.reason}. Only fresh starts are compared, not "
            "those that chose what is compared; a linear drift is removed."
        )
