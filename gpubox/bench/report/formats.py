"""A report, a comparison or leaderboards as Markdown, CSV, JSON or SVG. The values are already redacted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import msgspec

from gpubox import units
from gpubox.bench.model import RunInfo
from gpubox.bench.report.chart import Chart, ChartBar, bar_charts, charts, interval_suffix, metric_title
from gpubox.bench.report.formatting import (
    format_interval,
    format_number,
    format_sd,
    format_value,
    interval_title,
    validity_warnings,
)
from gpubox.bench.report.frontier import Frontier, frontier_cells, frontier_notes
from gpubox.bench.report.frontier_picture import frontier_svg, frontier_title
from gpubox.bench.report.leaderboard import Leaderboard, board_intervals, flagged_entries
from gpubox.bench.report.load import bundle_values, load_comparison, load_frontier, load_leaderboards, load_report
from gpubox.bench.report.markdown import markdown_table, markdown_text
from gpubox.bench.report.model import Report
from gpubox.bench.report.references import ReferenceComparison
from gpubox.bench.report.run_comparison import (
    RunComparison,
    comparison_charts,
    comparison_sentences,
    format_ratio_interval,
)
from gpubox.bench.report.svg import svg
from gpubox.bench.run_store import find_run
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.sanitize import sanitize_line, sanitize_paragraph

if TYPE_CHECKING:
    from gpubox.bench.target_server import ProfileLookup

FORMS = ("md", "json", "csv", "svg")
ESTIMATE = ("mean", "n", "sd", "median", "low", "high", "method")


def export_text(paths: Paths, profile_of: ProfileLookup, what: Sequence[str], form: str) -> str:
    """``what``: a run; ``compare`` and one or two runs; ``leaderboard`` and perhaps a kind; ``frontier`` and
    perhaps runs. ``form``: one of FORMS.

    Raises GpuboxError.
    """
    if what[0] == "compare":
        if len(what) not in (2, 3):
            raise UsageError("compare takes two runs.", "gpubox bench export compare A B --md")
        second = find_run(paths, what[2] if len(what) > 2 else "last")
        return _comparison_text(load_comparison(find_run(paths, what[1]), second), form)
    if what[0] == "leaderboard":
        if len(what) > 2:
            raise UsageError("leaderboard takes at most one kind.")
        return _leaderboards_text(load_leaderboards(paths, what[1] if len(what) > 1 else ""), form)
    if what[0] == "frontier":
        return _frontier_text(load_frontier(paths, what[1:]), form)
    if len(what) > 1:
        raise UsageError("Export one run at a time.", "`gpubox bench export compare A B` compares two.")
    bundle = load_report(find_run(paths, what[0]), profile_of)
    if form == "md":
        return report_markdown(bundle.info, bundle.report, bundle.references)
    if form == "json":
        return _json_text(bundle_values(bundle))
    return report_csv(bundle.info, bundle.report) if form == "csv" else report_svg(bundle.info, bundle.report)


def write_export(text: str, path: Path) -> None:
    """Raises GpuboxError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None


# -- a report -------------------------------------------------------------------------------------------------------


def report_markdown(info: RunInfo, report: Report, references: Sequence[ReferenceComparison] = ()) -> str:
    """The whole report with its provenance."""
    return "\n".join(_report_lines(info, report, references)) + "\n"


def _report_lines(info: RunInfo, report: Report, references: Sequence[ReferenceComparison]) -> Iterator[str]:
    yield from (f"## {markdown_text(report.title)}", "")
    took = f", {units.duration(info.seconds)}" if info.seconds else ""
    yield f"gpubox bench {info.plan.kind}, {info.created_at[:10]}, {info.state}{took}"
    if report.verdict:
        yield from ("", f"**{markdown_text(report.verdict)}**")
    for target in dict.fromkeys(metric.target for metric in report.metrics):
        yield from ("", f"### {markdown_text(target)}", "")
        rows = [
            (m.group, m.name, format_number(m.estimate.value), format_sd(m.estimate), format_number(m.estimate.median),
             format_interval(m.estimate), str(m.estimate.n), m.unit)
            for m in report.metrics if m.target == target
        ]  # fmt: skip
        intervals = interval_title(row[5] for row in rows)
        yield from markdown_table(("", "", "mean", "± sd", "median", intervals, "n", "unit"), rows)
    for table in report.tables:
        yield from ("", f"### {markdown_text(table.title)}", "")
        if table.note:
            yield from (markdown_text(table.note), "")
        yield from markdown_table(table.columns, [[format_value(value) for value in row] for row in table.rows])
        for row, text in zip(table.rows, table.details, strict=False):
            if text:
                name = escape(sanitize_line(format_value(row[0])) if row else "")
                code = (f"    {sanitize_line(line)}".rstrip() for line in text.splitlines())  # no backtick can end it
                yield from ("", f"<details><summary>{name}</summary>", "", *code, "", "</details>")
    if references:
        yield from ("", "### Compared with published figures (measured on other hardware)", "")
        yield from markdown_table(("", "published", "measured", "unit", "their hardware", "article"), [
            (r.what, f"{r.reference:g}", format_number(r.measured), r.unit, r.hardware, r.article) for r in references
        ])  # fmt: skip
    if report.text:
        yield from ("", "### llama-bench", "", sanitize_paragraph(report.text))
    notes = [*report.notes, *validity_warnings(report.flags)]
    if notes:
        yield ""
    yield from (f"- {markdown_text(note)}" for note in notes)
    yield from ("", "### What was measured", "")
    yield from markdown_table(("", ""), list(_provenance_rows(info)))


def _provenance_rows(info: RunInfo) -> Iterator[tuple[str, str]]:
    for name, provenance in info.provenance.items():
        yield "profile", provenance.profile or name
        yield "engine", f"{provenance.engine_version or provenance.dialect} {provenance.engine_sha256[:12]}".strip()
        size = f" ({units.file_size(provenance.model_bytes)})" if provenance.model_bytes else ""
        yield "model", f"{provenance.model_path.rpartition('/')[2]}{size} {provenance.model_sha256[:12]}".strip()
        if provenance.argv:
            yield "command line", f"`{' '.join(provenance.argv)}`"
    if machine := info.machine:
        for gpu in machine.gpus:
            power = f", power cap {gpu['power_limit_watts']:.0f} W" if gpu.get("power_limit_watts") else ""
            yield "GPU", f"{gpu.get('name', '?')}, {units.memory(gpu.get('vram_total_bytes'))}{power}"
        yield "machine", ", ".join(filter(None, (
            machine.cpu, f"{machine.cores} cores" if machine.cores else "", units.memory(machine.ram_bytes),
            f"driver {machine.driver}" if machine.driver else "", machine.kernel,
        )))  # fmt: skip
        if machine.gpu_processes:
            yield "also on the GPU", ", ".join(machine.gpu_processes)
        if machine.sandbox:
            yield "sandbox", machine.sandbox
        yield "gpubox", machine.gpubox


def report_csv(info: RunInfo, report: Report) -> str:
    """One line for each metric, full precision."""
    header = ("run", "kind", "target", "group", "metric", "unit", *ESTIMATE, "flags")
    kinds = " ".join(dict.fromkeys(flag.kind.replace(" ", "-") for flag in report.flags))
    rows = [
        (info.id, report.kind, m.target, m.group, m.name, m.unit, m.estimate.value, m.estimate.n, m.estimate.sd,
         m.estimate.median, m.estimate.low, m.estimate.high, m.estimate.method, kinds)
        for m in report.metrics
    ]  # fmt: skip
    return _csv(header, rows)


def report_svg(info: RunInfo, report: Report) -> str:
    """Its charts; without any, a bar for each metric; without bars, the numbers as notes."""
    drawn = charts(report) or list(bar_charts(report.metrics, min_rows=1))
    notes = [f"{m.group} {m.name}: {format_number(m.estimate.value)} {m.unit}" for m in report.metrics if not drawn]
    targets = dict.fromkeys(target.profile or target.name for target in info.plan.targets if not target.stopped)
    notes = [*filter(None, [report.verdict]), *notes, *validity_warnings(report.flags)]
    return svg(drawn, f"{report.title} - {', '.join(targets)}", notes)


# -- a comparison ---------------------------------------------------------------------------------------------------


def _comparison_text(comparison: RunComparison, form: str) -> str:
    title = f"{comparison.second} against {comparison.first}"
    sentences = [*comparison_sentences(comparison), *comparison.differs]
    if form == "json":
        return _json_text({"comparison": msgspec.to_builtins(comparison)})
    if form == "svg":
        return svg(comparison_charts(comparison), title, sentences)
    if form == "csv":
        header = tuple(comparison.rows[0].__dataclass_fields__) if comparison.rows else ()
        flags = comparison.validity.removeprefix(" - ")
        return _csv((*header, "flags"), [
            [*(getattr(row, name) for name in header), flags] for row in comparison.rows
        ])  # fmt: skip
    lines = [f"## {title}", ""]
    intervals = [format_ratio_interval(row) for row in comparison.rows]
    titles = ("", "", "first", "second", "unit", "ratio", interval_title(intervals), "n", "outcome", "method")
    lines += markdown_table(titles, [
        (row.group, row.name, format_number(row.first), format_number(row.second), row.unit, format_number(row.ratio),
         interval, str(row.n), row.outcome, row.method)
        for row, interval in zip(comparison.rows, intervals, strict=True)
    ])  # fmt: skip
    sentences += [f"Only in one of the runs: {name}" for name in comparison.left_out]
    return "\n".join([*lines, "", *(f"- {markdown_text(sentence)}" for sentence in sentences)]).rstrip() + "\n"


# -- leaderboards ---------------------------------------------------------------------------------------------------


def _leaderboards_text(boards: Sequence[Leaderboard], form: str) -> str:
    if form == "json":
        return _json_text({"leaderboards": msgspec.to_builtins(boards)})
    if form == "svg":
        return _leaderboards_svg(boards)
    if form == "csv":
        header = ("kind", "protocol", "rank", "profile", "model", "run", "metric", "group", "unit", *ESTIMATE, "flags")
        return _csv(header, [
            (b.kind, b.title, e.rank, e.name, e.model, e.run, b.metric, group, b.unit, v.value, v.n, v.sd, v.median,
             v.low, v.high, v.method, " ".join(kind.replace(" ", "-") for kind in e.flagged))
            for b in boards for e in b.entries for group, v in zip(b.groups, e.values, strict=True) if v
        ])  # fmt: skip
    lines: list[str] = []
    for board in boards:
        unit = f", {board.unit}" if board.unit else ""
        lines += [f"## {board.kind}: {markdown_text(board.title)} ({board.metric}{unit})", ""]
        groups = (group or board.metric for group in board.groups)
        intervals = board_intervals(board)
        lines += markdown_table(("", "profile", "model", *groups, interval_title(intervals), "n", ""), [
            (str(e.rank), e.name, e.model, *(format_number(v.value) if v else "—" for v in e.values),
             interval, str(e.values[0].n) if e.values[0] else "",
             "; ".join(filter(None, ("≈" if e.tied and e.rank > 1 else "", ", ".join(e.flagged)))))
            for e, interval in zip(board.entries, intervals, strict=True)
        ])  # fmt: skip
        lines += ["", *(f"- {markdown_text(text)}" for text in (board.note, *flagged_entries(board)) if text), ""]
    return "\n".join(lines)


def _leaderboards_svg(boards: Sequence[Leaderboard]) -> str:
    """A chart of the ranking group for each protocol."""
    drawn = []
    for board in boards:
        bars = tuple(
            ChartBar(f"{entry.rank} {entry.name}{' !' if entry.flagged else ''}", value.value, value.low, value.high)
            for entry in board.entries
            if (value := entry.values[0])
        )
        if bars:
            measured = ", ".join(filter(None, (board.groups[0], f"{board.kind}: {board.title}")))
            title = interval_suffix(f"{metric_title(board.metric, board.unit)}, {measured}", bars)
            drawn.append(Chart(title, board.unit, bars=bars))
    notes = [text for board in boards for text in (board.note, *flagged_entries(board)) if text]
    return svg(drawn, "Leaderboard", list(dict.fromkeys(notes)))


# -- the frontier ---------------------------------------------------------------------------------------------------


def _frontier_text(frontier: Frontier, form: str) -> str:
    if form == "json":
        return _json_text({"frontier": msgspec.to_builtins(frontier)})
    if form == "svg":
        return frontier_svg(frontier)
    if form == "csv":
        names = ("target", "measure", "quality", "low", "high", "tg", "vram_bytes", "model_bytes", "on_frontier",
                  "speed_run")  # fmt: skip
        return _csv(names, [
            (p.name, frontier.measure, p.quality.value, p.quality.low, p.quality.high, p.tg.value if p.tg else None,
             p.vram_bytes, p.model_bytes, p.on_frontier, p.speed_run)
            for p in frontier.points
        ])  # fmt: skip
    columns, *rows = frontier_cells(frontier)
    lines = [f"## {markdown_text(frontier_title(frontier))}", ""]
    notes = (f"- {markdown_text(note)}" for note in frontier_notes(frontier))
    return "\n".join([*lines, *markdown_table(columns, rows), "", *notes]) + "\n"


# -- parts ----------------------------------------------------------------------------------------------------------


def _json_text(fields: dict[str, Any]) -> str:
    """One object, as the verbs' ``--json``."""
    return json.dumps({"schema_version": 1, **fields}, indent=2) + "\n"


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return out.getvalue()
