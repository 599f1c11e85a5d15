"""A report as rows for a terminal: tables, charts, reference figures, warnings. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from gpubox.bench.model import RunInfo
from gpubox.bench.report.chart import Chart, charts
from gpubox.bench.report.formatting import (
    DOUBTFUL,
    format_interval,
    format_number,
    format_sd,
    format_value,
    interval_title,
    validity_warnings,
)
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.report.plot import StyledRow, plot
from gpubox.bench.report.references import ReferenceComparison
from gpubox.sanitize import sanitize_line

_MAX_PLOT_WIDTH = 110


def row_texts(rows: Iterable[StyledRow]) -> Iterator[str]:
    """Rows without their roles."""
    for row in rows:
        yield "".join(text for text, _ in row).rstrip()


def report_rows(
    info: RunInfo,
    report: Report,
    *,
    width: int | None = None,
    plots: bool = False,
    references: Sequence[ReferenceComparison] = (),
) -> Iterator[StyledRow]:
    """Every row. Tables are folded to ``width``; ``None``: they may have any width."""
    yield ((sanitize_line(report.title), "head"), (f"  ({info.id}, {info.state})", "quiet"))
    if report.verdict:
        yield from wrapped_rows(report.verdict, "doubt" if DOUBTFUL in report.verdict else "head", width)
    for target in dict.fromkeys(metric.target for metric in report.metrics):
        yield ()
        yield _target_heading(info, target)
        yield from metric_table([metric for metric in report.metrics if metric.target == target], width)
    if plots:
        yield from chart_rows(charts(report), width)
    for table in report.tables:
        yield ()
        title, note = sanitize_line(table.title), f"  ({sanitize_line(table.note)})" if table.note else ""
        if width is None or len(title) + len(note) <= width:
            yield ((title, "head"), (note, "quiet"))
        else:
            yield ((title, "head"),)
            yield from wrapped_rows(table.note, "quiet", width)
        yield from table_rows([table.columns, *([format_value(value) for value in row] for row in table.rows)])
    if references:
        yield ()
        yield from reference_rows(references)
    if report.notes or report.flags:
        yield ()
    for note in report.notes:
        yield from wrapped_rows(note, "doubt" if DOUBTFUL in note else "", width)
    for warning in validity_warnings(report.flags):
        yield from wrapped_rows(warning, "doubt", width)


def chart_rows(drawn: Iterable[Chart], width: int | None) -> Iterator[StyledRow]:
    """Every chart below an empty row."""
    for chart in drawn:
        yield ()
        yield from plot(chart, min(width or _MAX_PLOT_WIDTH, _MAX_PLOT_WIDTH))


def wrapped_rows(text: str, role: str, width: int | None) -> Iterator[StyledRow]:
    """One sentence, wrapped at ``width``."""
    line = sanitize_line(text)
    for part in textwrap.wrap(line, width, subsequent_indent="  ") if width else [line]:
        yield ((part, role),)


def metric_table(metrics: Sequence[Metric], width: int | None) -> Iterator[StyledRow]:
    """The metrics of one target. On a narrow terminal groups are headings, and columns are left out."""
    intervals = [format_interval(metric.estimate) for metric in metrics]
    cells: list[Sequence[str]] = [("", "", "MEAN", "± SD", "MEDIAN", interval_title(intervals), "N", "")]
    last = ""
    for metric, interval in zip(metrics, intervals, strict=True):
        group, last = (metric.group if metric.group != last else ""), metric.group
        estimate = metric.estimate
        values = (format_number(estimate.value), format_sd(estimate), format_number(estimate.median))
        cells.append((group, metric.name, *values, interval, str(estimate.n), metric.unit))
    if width is None or _table_width(cells) <= width:
        yield from table_rows(cells)
        return
    cells = [(f"  {row[1]}" if row[1] else "", row[2], row[3], row[5], row[6], row[7]) for row in cells]
    if _table_width(cells) > width:
        cells = [(row[0], row[1], row[3], row[5]) for row in cells]
    header, *table = table_rows(cells)
    yield header
    last = ""
    for metric, row in zip(metrics, table, strict=True):
        if metric.group != last:
            last = metric.group
            yield ((metric.group, "quiet"),)
        yield row


def reference_rows(references: Sequence[ReferenceComparison]) -> Iterator[StyledRow]:
    """The reference figures next to the owner's."""
    yield (("Compared with published figures", "head"), ("  (measured on other hardware than yours)", "quiet"))
    cells = [("", "PUBLISHED", "MEASURED", "RATIO", "THEIR HARDWARE", "")]
    for pair in references:
        figure, measured = f"{pair.reference:g} {pair.unit}", f"{format_number(pair.measured)} {pair.unit}"
        ratio = f"{pair.ratio:.2f}x" if pair.ratio else ""
        cells.append((pair.what, figure, measured, ratio, pair.hardware, pair.note))
    yield from table_rows(cells)
    for article in dict.fromkeys(pair.article for pair in references):
        yield ((f"Source: {sanitize_line(article)}", "quiet"),)


def table_rows(rows: Sequence[Sequence[str]]) -> Iterator[StyledRow]:
    """Columns as wide as their longest text; the first row is the header."""
    count = max(len(row) for row in rows)
    cells = [[*map(sanitize_line, row), *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(count)]
    numeric = [_is_numeric([row[i] for row in cells[1:]]) for i in range(count)]
    for number, row in enumerate(cells):
        columns = zip(row, widths, numeric, strict=True)
        texts = [text.rjust(width) if right else text.ljust(width) for text, width, right in columns]
        yield (("  ".join(texts).rstrip(), "quiet" if number == 0 else ""),)


def _is_numeric(column: Sequence[str]) -> bool:
    return any(column) and all(not text or text[0].isdigit() or text[0] in "-+±—" for text in column)


def _table_width(rows: Sequence[Sequence[str]]) -> int:
    return sum(max(len(row[i]) for row in rows) for i in range(len(rows[0]))) + 2 * (len(rows[0]) - 1)


def _target_heading(info: RunInfo, target: str) -> StyledRow:
    provenance = info.provenance.get(target)
    if provenance is None:
        return ((target, "head"),)
    details = (provenance.model_path.rpartition("/")[2], provenance.engine_version or provenance.dialect)
    return ((target, "head"), ("".join(f"  {sanitize_line(text)}" for text in details if text), "quiet"))
