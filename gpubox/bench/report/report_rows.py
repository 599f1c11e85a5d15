"""A report as rows for a terminal: tables, plots, the articles' figures, what casts doubt. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from gpubox.bench.model import RunInfo
from gpubox.bench.report.chart import charts
from gpubox.bench.report.formatting import DOUBTFUL, format_interval, format_sd, format_value, validity_warnings
from gpubox.bench.report.formatting import format_number as number
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.report.plot import StyledRow, plot
from gpubox.bench.report.references import ReferenceComparison
from gpubox.sanitize import sanitize_line

_HEADER = ("", "", "MEAN", "± SD", "MEDIAN", "95 % CI", "N", "")
_NARROW = ("", "MEAN", "± SD", "95 % CI", "N", "")
_WIDEST_PLOT = 110


def report_text_lines(info: RunInfo, report: Report) -> Iterator[str]:
    """The report as plain text, as wide as it is."""
    return row_texts(report_rows(info, report))


def row_texts(found: Iterable[StyledRow]) -> Iterator[str]:
    """Rows without their roles."""
    for row in found:
        yield "".join(text for text, _ in row).rstrip()


def report_rows(
    info: RunInfo,
    report: Report,
    *,
    width: int | None = None,
    plots: bool = False,
    beside: Sequence[ReferenceComparison] = (),
) -> Iterator[StyledRow]:
    """Every row; ``width`` folds the tables to it where they are wider (``None``: they may be as wide as they are)."""
    yield ((sanitize_line(report.title), "head"), (f"  ({info.id}, {info.state})", "quiet"))
    for target in dict.fromkeys(metric.target for metric in report.metrics):
        yield ()
        yield _who(info, target)
        yield from metric_table([m for m in report.metrics if m.target == target], width)
    if plots:
        for chart in charts(report):
            yield ()
            yield from plot(chart, min(width or _WIDEST_PLOT, _WIDEST_PLOT))
    for table in report.tables:
        yield ()
        note = f"  ({sanitize_line(table.note)})" if table.note else ""
        if width is None or len(sanitize_line(table.title)) + len(note) <= width:
            yield ((sanitize_line(table.title), "head"), (note, "quiet"))
        else:
            yield ((sanitize_line(table.title), "head"),)
            yield from wrapped_rows(table.note, "quiet", width)
        yield from table_rows(
            [table.columns, *([sanitize_line(format_value(value)) for value in row] for row in table.rows)]
        )
    if beside:
        yield ()
        yield from beside_rows(beside)
    if report.notes or report.flags:
        yield ()
    for note in report.notes:
        yield from wrapped_rows(note, "doubt" if DOUBTFUL in note else "", width)
    for doubt in validity_warnings(report.flags):
        yield from wrapped_rows(doubt, "doubt", width)


def wrapped_rows(text: str, role: str, width: int | None) -> Iterator[StyledRow]:
    """One sentence, folded to ``width`` where there is one."""
    for line in textwrap.wrap(sanitize_line(text), width, subsequent_indent="  ") if width else [sanitize_line(text)]:
        yield ((line, role),)


def metric_table(metrics: Sequence[Metric], width: int | None) -> Iterator[StyledRow]:
    """The metrics of one target; groups as headings of their own where there is little room."""
    wide: list[Sequence[str]] = [_HEADER, *_wide(metrics)]
    if width is None or _width(wide) <= width:
        yield from table_rows(wide)
        return
    narrow: list[Sequence[str]] = [_NARROW, *(_narrow(metric) for metric in metrics)]
    if _width(narrow) > width:
        narrow = [(row[0], row[1], row[3], row[5]) for row in narrow]
    fitted = list(table_rows(narrow))
    yield fitted[0]
    last = ""
    for metric, row in zip(metrics, fitted[1:], strict=True):
        if metric.group != last:
            last = metric.group
            yield ((metric.group, "quiet"),)
        yield row


def beside_rows(beside: Sequence[ReferenceComparison]) -> Iterator[StyledRow]:
    """The articles' figures beside the owner's."""
    yield (("Beside the articles", "head"), ("  (theirs on their hardware, not yours)", "quiet"))
    report_rows = [("", "THEIRS", "YOURS", "", "THEIR HARDWARE", "")]
    for one in beside:
        their, yours = f"{one.theirs:g} {one.unit}", f"{number(one.yours)} {one.unit}"
        report_rows.append((one.what, their, yours, f"{one.ratio:.2f}x" if one.ratio else "", one.hardware, one.note))
    yield from table_rows(report_rows)
    for article in dict.fromkeys(one.article for one in beside):
        yield ((f"From: {sanitize_line(article)}", "quiet"),)


def table_rows(report_rows: Sequence[Sequence[str]]) -> Iterator[StyledRow]:
    """Columns as wide as what is in them; the first row is their heads."""
    count = max(len(row) for row in report_rows)
    filled = [[*map(sanitize_line, row), *[""] * (count - len(row))] for row in report_rows]
    widths = [max(len(row[i]) for row in filled) for i in range(count)]
    right = [_numeric([row[i] for row in filled[1:]]) for i in range(count)]
    for number_, row in enumerate(filled):
        cells = [
            text.rjust(width) if at_right else text.ljust(width)
            for text, width, at_right in zip(row, widths, right, strict=True)
        ]
        yield (("  ".join(cells).rstrip(), "quiet" if number_ == 0 else ""),)


def _numeric(column: Sequence[str]) -> bool:
    return any(column) and all(not text or text[0].isdigit() or text[0] in "-+±—" for text in column)


def _width(report_rows: Sequence[Sequence[str]]) -> int:
    return sum(max(len(row[i]) for row in report_rows) for i in range(len(report_rows[0]))) + 2 * (
        len(report_rows[0]) - 1
    )


def _who(info: RunInfo, target: str) -> StyledRow:
    found = info.provenance.get(target)
    if found is None:
        return ((target, "head"),)
    what = [found.model_path.rpartition("/")[2], found.engine_version or found.dialect]
    return ((target, "head"), ("".join(f"  {sanitize_line(text)}" for text in what if text), "quiet"))


def _wide(metrics: Sequence[Metric]) -> Iterator[Sequence[str]]:
    last = ""
    for metric in metrics:
        group, last = (metric.group if metric.group != last else ""), metric.group
        found = metric.estimate
        values = (
            number(found.value),
            format_sd(found),
            number(found.median),
            format_interval(found),
            str(found.n),
            metric.unit,
        )
        yield (group, metric.name, *values)


def _narrow(metric: Metric) -> Sequence[str]:
    found = metric.estimate
    return f"  {metric.name}", number(found.value), format_sd(found), format_interval(found), str(found.n), metric.unit
