"""Stored runs as documents: a report, two runs compared, leaderboards; each opens with a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubox import units
from gpubox.bench.report.chart import (
    Chart,
    ChartBar,
    charts,
    interval_suffix,
    metric_title,
)
from gpubox.bench.report.formatting import (
    DOUBTFUL,
    format_change,
    format_number,
    format_sd,
    format_value,
    interval_column,
    validity_suffix,
    validity_warnings,
    written_unit,
)
from gpubox.bench.report.leaderboard import Leaderboard, leaderboard_verdict
from gpubox.bench.report.load import ReportBundle, load_comparison, load_leaderboards, load_report
from gpubox.bench.report.model import Metric
from gpubox.bench.report.prompt_metrics import scale_estimate
from gpubox.bench.report.run_comparison import (
    ComparedRow,
    RunComparison,
    comparison_verdict,
    outcome_word,
    percent,
)
from gpubox.bench.run_store import find_run
from gpubox.paths import Paths
from gpubox.views.documents import Document, Section
from gpubox.views.fields import json_fields
from gpubox.views.marks import SPEED, Mark

_MARKS = {"better": "faster", "worse": "slower", "equal": "equal", "cannot tell": "cannot tell"}
"""Outcome -> its mark in the table of speeds."""


def run_documents(paths: Paths, view: str, runs: Sequence[str] = ()) -> list[Document]:
    """``view``: ``report`` of a run, ``compare`` of two, ``leaderboard`` of any. Raises GpuboxError."""
    if view == "leaderboard":
        return leaderboard_documents(load_leaderboards(paths, runs))
    stored = [find_run(paths, run) for run in runs or ("last",)]
    if view == "compare":
        return [comparison_document(load_comparison(*stored))]
    return [report_document(load_report(stored[0]))]


# -- one run --------------------------------------------------------------------------------------------------------


def report_document(bundle: ReportBundle) -> Document:
    """The report of a run so far."""
    info, report = bundle.info, bundle.report
    sections = [
        _metric_section(bundle, target, [metric for metric in report.metrics if metric.target == target])
        for target in dict.fromkeys(metric.target for metric in report.metrics)
    ]
    for table in report.tables:
        rows = [[format_value(value) for value in row] for row in table.rows]
        sections.append(Section(table.title, table.columns, rows, table.note, details=table.details))
    took = f", took {units.duration(info.seconds)}" if info.seconds else ""
    if info.restore_pending and info.previous and info.state != "running":
        took += f", {info.previous.profile} is not restored"
    doubt = "" if DOUBTFUL in report.verdict else validity_suffix(report.doubts)
    verdict = f"{report.verdict.removesuffix('.')}{doubt}." if doubt and report.verdict else report.verdict
    base = {"run": info.id, "kind": report.kind, "doubts": list(dict.fromkeys(doubt.kind for doubt in report.doubts))}
    records = [base | json_fields(metric, without=("samples", "starts")) for metric in report.metrics]
    return Document(
        report.title,
        f"{info.id}, {info.created_at[:10]}, {info.state}{took}",
        verdict,
        sections,
        charts(report),
        (*report.notes, *validity_warnings(report.doubts)),
        list(_facts(bundle)),
        records,
        {
            "run": json_fields(info, without=("previous", "restore_pending", "applied_argv", "schema")),
            "report": report,
        },
    )


def _metric_section(bundle: ReportBundle, target: str, metrics: Sequence[Metric]) -> Section:
    own = bundle.info.provenance.get(target)
    details = (own.model_path.rpartition("/")[2], own.engine_version or own.dialect) if own else ()
    written = [written_unit(metric.unit, metric.estimate.value) for metric in metrics]
    estimates = [scale_estimate(metric.estimate, factor) for metric, (factor, _) in zip(metrics, written, strict=True)]
    title, intervals = interval_column(estimates)
    rows = [
        (metric.group, metric.name, format_number(own.value), format_sd(own), format_number(own.median), interval,
         str(own.n), unit)
        for metric, own, (_, unit), interval in zip(metrics, estimates, written, intervals, strict=True)
    ]  # fmt: skip
    header = ("", "", "mean", "± sd", "median", title, "n", "")
    narrow = ((1, 2, 3, 5, 6, 7), (1, 2, 5, 7), (1, 2, 7))
    return Section(target, header, rows, "  ".join(filter(None, details)), narrow)


def _facts(bundle: ReportBundle) -> Iterator[tuple[str, str]]:
    info = bundle.info
    for name, own in info.provenance.items():
        yield "profile", own.profile or name
        yield "engine", f"{own.engine_version or own.dialect} {own.engine_sha256[:12]}".strip()
        size = f" ({units.file_size(own.model_bytes)})" if own.model_bytes else ""
        yield "model", f"{own.model_path.rpartition('/')[2]}{size} {own.model_sha256[:12]}".strip()
        if own.argv:
            yield "command line", f"`{' '.join(own.argv)}`"
    if machine := info.machine:
        for gpu in machine.gpus:
            power = f", power cap {gpu['power_limit_watts']:.0f} W" if gpu.get("power_limit_watts") else ""
            yield "GPU", f"{gpu.get('name', '?')}, {units.memory(gpu.get('vram_total_bytes'))}{power}"
        cores, driver = (
            (f"{machine.cores} cores" if machine.cores else ""),
            machine.driver and f"driver {machine.driver}",
        )
        parts = (machine.cpu, cores, units.memory(machine.ram_bytes), driver, machine.kernel)
        yield "machine", ", ".join(filter(None, parts))
        if machine.gpu_processes:
            yield "also on the GPU", ", ".join(machine.gpu_processes)
        if machine.sandbox:
            yield "sandbox", machine.sandbox
        yield "gpubox", machine.gpubox


# -- two runs -------------------------------------------------------------------------------------------------------


def comparison_document(comparison: RunComparison) -> Document:
    """The second run against the first."""
    rows = [
        (row.group, row.name, *row.figures, "" if row.same else format_change(row.ratio), row.between,
         outcome_text(row))
        for row in comparison.rows
    ]  # fmt: skip
    header = ("", "", "first", "second", "", "change", "range", "")
    narrow = ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 7), (1, 2, 3, 4, 7))
    marks = [None if row.same else _mark(row.outcome) for row in comparison.rows]
    notes = []
    if any(row.low is not None for row in comparison.rows):
        notes.append(
            "A change with a range rests on all stored runs of both, any other on these two alone. In at most 1 of 20 "
            "such tables a true change lies outside its range."
        )
    if comparison.left_out:
        notes.append(f"Only in one of the runs: {'; '.join(comparison.left_out[:6])}.")
    sides = f"first {comparison.first}, second {comparison.second}"
    return Document(
        f"{comparison.names[1]} against {comparison.names[0]}",
        " ".join(comparison.differs) or f"two {comparison.kind} runs",
        comparison_verdict(comparison),
        [Section(sides, header, rows, narrow=narrow, roles=[mark.role if mark else "" for mark in marks])],
        notes=notes,
        records=[{**json_fields(row), "doubts": comparison.validity} for row in comparison.rows],
        values={"comparison": json_fields(comparison) | {"verdict": comparison_verdict(comparison)}},
    )


def outcome_text(row: ComparedRow) -> str:
    """The mark of a row and its word: ``▲ faster``, ``= within 2 %``; ``?`` alone: the verdict says why."""
    if row.outcome == "cannot tell":
        return "same" if row.same else SPEED["cannot tell"].glyph
    word = f"within {percent(row.within)}" if row.outcome == "equal" and row.within else outcome_word(row)
    mark = _mark(row.outcome)
    return mark.before(word) if mark else word


def _mark(outcome: str) -> Mark | None:
    return SPEED[_MARKS[outcome]] if outcome in _MARKS else None


# -- many runs ------------------------------------------------------------------------------------------------------


def leaderboard_documents(boards: Sequence[Leaderboard]) -> list[Document]:
    """A document for each protocol; one that says so without any."""
    nothing = "No finished run can be ranked yet."
    return [_leaderboard_document(board) for board in boards] or [
        Document("Leaderboard", verdict=nothing, values={"leaderboards": []})
    ]


def _leaderboard_document(board: Leaderboard) -> Document:
    unit = f", {board.unit}" if board.unit else ""
    title, intervals = interval_column([entry.values[0] for entry in board.entries])
    groups = [group or board.metric for group in board.groups]
    header = ("", "profile", groups[0], "", title, "n", *groups[1:], "model", "run")
    rows, marks = [], []
    for entry, interval in zip(board.entries, intervals, strict=True):
        mark = "" if entry.rank == 1 or board.one_sample else SPEED[_MARKS[entry.against_first]].glyph
        marks.append(" ".join(filter(None, (mark, "!" if entry.doubts else ""))))
        first, *others = (format_number(value.value) if value else units.UNKNOWN for value in entry.values)
        n = str(entry.values[0].n) if entry.values[0] else ""
        rows.append((str(entry.rank), entry.name, first, marks[-1], interval, n, *others, entry.model, entry.run[:15]))
    shown = [f"{SPEED[key].glyph} {SPEED[key].meaning}" for key in _MARKS.values() if any(
        SPEED[key].glyph in mark for mark in marks)]  # fmt: skip
    notes = [f"Against the first: {'; '.join(shown)}."] if shown else []
    notes += [
        f"! {board.kind}, {entry.name} is {DOUBTFUL} {', '.join(entry.doubts)}"
        for entry in board.entries if entry.doubts
    ]  # fmt: skip
    bars = tuple(
        ChartBar(f"{entry.rank} {entry.name}{' !' if entry.doubts else ''}", value.value, value.low, value.high)
        for entry in board.entries
        if (value := entry.values[0])
    )
    measured = ", ".join(filter(None, (board.groups[0], f"{board.kind}: {board.title}")))
    title = interval_suffix(f"{metric_title(board.metric, board.unit)}, {measured}", bars)
    base = {"kind": board.kind, "protocol": board.title, "metric": board.metric, "unit": board.unit}
    records = [
        base | json_fields(entry, without=("values",)) | {"group": group, "estimate": value}
        for entry in board.entries
        for group, value in zip(board.groups, entry.values, strict=True)
    ]
    more = range(6, 6 + len(groups) - 1)
    narrow = [(0, 1, 2, 3, 4, 5, *more[:count], len(header) - 1) for count in range(len(more), -1, -1)]
    verdict = leaderboard_verdict(board)
    return Document(
        f"{board.kind}: {board.title}",
        f"{board.metric}{unit}",
        verdict,
        [Section("", header, rows, narrow=[*narrow, (0, 1, 2, 3, 4)])],
        [Chart(title, board.unit, bars=bars)] if bars else [],
        notes,
        records=records,
        values={"leaderboards": [json_fields(board) | {"verdict": verdict}]},
    )
