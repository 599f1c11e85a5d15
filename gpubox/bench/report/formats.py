"""A report, a comparison or a leaderboard as Markdown, CSV, JSON or SVG. Redacted by whoever calls. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from gpubox import units
from gpubox.bench.model import RunInfo
from gpubox.bench.report.chart import Chart, ChartBar, bar_charts, charts
from gpubox.bench.report.comparison_rows import comparison_charts, comparison_sentences
from gpubox.bench.report.formatting import format_interval, format_number, format_sd, format_value, validity_warnings
from gpubox.bench.report.leaderboard import Leaderboard, flagged_entries
from gpubox.bench.report.model import Report
from gpubox.bench.report.references import ReferenceComparison
from gpubox.bench.report.run_comparison import RunComparison
from gpubox.bench.report.svg import svg
from gpubox.sanitize import sanitize_line, sanitize_paragraph

ESTIMATE = ("mean", "n", "sd", "median", "low", "high", "method")


def report_markdown(info: RunInfo, report: Report, beside: Sequence[ReferenceComparison] = ()) -> str:
    """The whole report, provenance and all, ready to be pasted."""
    return "\n".join(_markdown(info, report, beside)) + "\n"


def _markdown(info: RunInfo, report: Report, beside: Sequence[ReferenceComparison]) -> Iterator[str]:
    yield f"## {_safe(report.title)}"
    yield ""
    took = f", {units.duration(info.seconds)}" if info.seconds else ""
    yield f"gpubox bench {info.plan.kind}, {info.created_at[:10]}, {info.state}{took}"
    for target in dict.fromkeys(metric.target for metric in report.metrics):
        rows = [m for m in report.metrics if m.target == target]
        yield from ("", f"### {_safe(target)}", "")
        header = ("", "", "mean", "± sd", "median", "95 % CI", "n", "unit")
        yield from table(header, [
            (m.group, m.name, format_number(m.estimate.value), format_sd(m.estimate), format_number(m.estimate.median),
             format_interval(m.estimate), str(m.estimate.n), m.unit)
            for m in rows
        ])  # fmt: skip
    for one in report.tables:
        yield from ("", f"### {_safe(one.title)}", "")
        if one.note:
            yield from (_safe(one.note), "")
        yield from table(one.columns, [[format_value(value) for value in row] for row in one.rows])
        for row, text in zip(one.rows, one.details, strict=False):
            if text:
                name = sanitize_line(format_value(row[0])) if row else ""
                yield from ("", f"<details><summary>{escape(name)}</summary>", "", *_indented(text), "", "</details>")
    if beside:
        yield from ("", "### Beside the articles (their hardware, not this one's)", "")
        yield from table(
            ("", "theirs", "here", "unit", "their hardware", "article"),
            [(b.what, f"{b.theirs:g}", format_number(b.yours), b.unit, b.hardware, b.article) for b in beside],
        )
    if report.text:
        yield from ("", "### llama-bench", "", sanitize_paragraph(report.text))
    said = [*report.notes, *validity_warnings(report.flags)]
    if said:
        yield ""
    yield from (f"- {_safe(text)}" for text in said)
    yield from ("", "### What was measured", "")
    yield from table(("", ""), list(provenance_rows(info)))


def provenance_rows(info: RunInfo) -> Iterator[tuple[str, str]]:
    """What exactly was measured, and on what: names and texts."""
    for name, found in info.provenance.items():
        yield "profile", found.profile or name
        yield "engine", f"{found.engine_version or found.dialect} {found.engine_sha256[:12]}".strip()
        size = f" ({units.file_size(found.model_bytes)})" if found.model_bytes else ""
        yield "model", f"{found.model_path.rpartition('/')[2]}{size} {found.model_sha256[:12]}".strip()
        if found.argv:
            yield "command line", f"`{' '.join(found.argv)}`"
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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; bars and line breaks in the cells do not break it."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(_safe(text).replace('|', chr(92) + '|') for text in row)} |"


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
    """Its charts; where there are none, a bar for each metric; where those have none, their numbers as notes."""
    drawn = charts(report) or list(bar_charts(report.metrics, fewest=1))
    notes = [] if drawn else [f"{m.group} {m.name}: {format_number(m.estimate.value)} {m.unit}" for m in report.metrics]
    return svg(drawn, f"{report.title} - {_targets(info)}", [*notes, *validity_warnings(report.flags)])


def comparison_markdown(found: RunComparison) -> str:
    """The rows, and what differs."""
    lines = [f"## {found.second} against {found.first}", ""]
    lines += table(("", "", "first", "second", "unit", "ratio", "95 % CI", "n", "", "by"), [
        (r.group, r.name, format_number(r.first), format_number(r.second), r.unit, format_number(r.ratio),
         f"{r.low:.3f} – {r.high:.3f}" if r.low is not None and r.high is not None else
         f"p = {r.p:.3f}" if r.p is not None else "", str(r.n), r.outcome, r.method)
        for r in found.rows
    ])  # fmt: skip
    said = [*comparison_sentences(found), *found.differs, *(f"In one of them only: {name}" for name in found.left_out)]
    return "\n".join([*lines, "", *(f"- {_safe(text)}" for text in said)]).rstrip() + "\n"


def comparison_csv(found: RunComparison) -> str:
    """One line for each row."""
    header = tuple(name for name in found.rows[0].__dataclass_fields__) if found.rows else ()
    doubt = found.doubt.removeprefix(" - ")
    rows = [[*(getattr(row, name) for name in header), doubt] for row in found.rows]
    return _csv((*header, "flags"), rows)


def leaderboards_markdown(boards: Sequence[Leaderboard]) -> str:
    """A table for each protocol."""
    lines: list[str] = []
    for board in boards:
        unit = f", {board.unit}" if board.unit else ""
        lines += [f"## {board.kind}: {_safe(board.title)} ({board.metric}{unit})", ""]
        header = ("", "profile", "model", *(group or board.metric for group in board.groups), "95 % CI", "n", "")
        lines += table(header, [
            (str(p.rank), p.name, p.model, *(format_number(v.value) if v else "—" for v in p.values),
             format_interval(p.values[0]) if p.values[0] else "", str(p.values[0].n) if p.values[0] else "",
             "; ".join(filter(None, ("≈" if p.tied and p.rank > 1 else "", ", ".join(p.flagged)))))
            for p in board.places
        ])  # fmt: skip
        lines += ["", *(f"- {_safe(text)}" for text in (board.note, *flagged_entries(board)) if text), ""]
    return "\n".join(lines)


def leaderboards_csv(boards: Sequence[Leaderboard]) -> str:
    """One line for each profile and group."""
    header = ("kind", "protocol", "rank", "profile", "model", "run", "metric", "group", "unit", *ESTIMATE, "flags")
    rows = [
        (b.kind, b.title, p.rank, p.name, p.model, p.run, b.metric, group, b.unit, v.value, v.n, v.sd, v.median,
         v.low, v.high, v.method, " ".join(kind.replace(" ", "-") for kind in p.flagged))
        for b in boards for p in b.places for group, v in zip(b.groups, p.values, strict=True) if v
    ]  # fmt: skip
    return _csv(header, rows)


def comparison_svg(found: RunComparison) -> str:
    """Every ratio with its interval."""
    notes = [*comparison_sentences(found), *found.differs]
    return svg(comparison_charts(found), f"{found.second} against {found.first}", notes)


def leaderboards_svg(boards: Sequence[Leaderboard]) -> str:
    """A chart for each protocol, of what decides."""
    drawn = [
        Chart(f"{b.kind}: {b.title}, {b.metric} {b.groups[0]}".strip(), b.unit, bars=tuple(
            ChartBar(f"{p.rank} {p.name}{' !' if p.flagged else ''}", v.value, v.low, v.high)
            for p in b.places if (v := p.values[0])
        ))
        for b in boards
    ]  # fmt: skip
    notes = [text for b in boards for text in (b.note, *flagged_entries(b)) if text]
    return svg([chart for chart in drawn if chart.bars], "Leaderboard", list(dict.fromkeys(notes)))


def json_text(found: dict[str, Any]) -> str:
    """One object, as the verbs' ``--json``."""
    return json.dumps({"schema_version": 1, **found}, indent=2) + "\n"


def values(found: Any) -> Any:
    """Any of them as JSON values."""
    return msgspec.to_builtins(found)


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return out.getvalue()


def _indented(text: str) -> Iterator[str]:
    """A code block that no backticks of the text can end."""
    return (f"    {sanitize_line(line)}".rstrip() for line in text.splitlines())


def _targets(info: RunInfo) -> str:
    """Each profile once: a sweep has dozens of targets of one."""
    return ", ".join(dict.fromkeys(one.profile or one.name for one in info.plan.targets if not one.stopped))


def _safe(text: str) -> str:
    """A text of anybody's on one line: no tag, no link, no picture. In a code span nothing is one anyway."""
    shown = sanitize_line(text)
    if len(shown) > 1 and shown[0] == shown[-1] == "`" and "`" not in shown[1:-1]:
        return shown
    return shown.replace("<", "\\<").replace("[", "\\[")
