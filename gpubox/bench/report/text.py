"""A report as rows for a terminal: tables, plots, the articles' figures, what casts doubt. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from gpubox.bench.model import RunInfo
from gpubox.bench.report.chart import charts
from gpubox.bench.report.model import Metric, Report
from gpubox.bench.report.plot import Row, plot
from gpubox.bench.report.references import Beside
from gpubox.bench.report.words import DOUBTFUL, cell, doubts, interval, spread
from gpubox.bench.report.words import number as number
from gpubox.plain import plain

_HEADER = ("", "", "MEAN", "± SD", "MEDIAN", "95 % CI", "N", "")
_NARROW = ("", "MEAN", "± SD", "95 % CI", "N", "")
_WIDEST_PLOT = 110


def lines(info: RunInfo, report: Report) -> Iterator[str]:
    """The report as plain text, as wide as it is."""
    return texts(rows(info, report))


def texts(found: Iterable[Row]) -> Iterator[str]:
    """Rows without their roles."""
    for row in found:
        yield "".join(text for text, _ in row).rstrip()


def rows(
    info: RunInfo, report: Report, *, width: int | None = None, plots: bool = False, beside: Sequence[Beside] = ()
) -> Iterator[Row]:
    """Every row; ``width`` folds the tables to it where they are wider (``None``: they may be as wide as they are)."""
    yield ((plain(report.title), "head"), (f"  ({info.id}, {info.state})", "quiet"))
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
        note = f"  ({plain(table.note)})" if table.note else ""
        if width is None or len(plain(table.title)) + len(note) <= width:
            yield ((plain(table.title), "head"), (note, "quiet"))
        else:
            yield ((plain(table.title), "head"),)
            yield from wrapped(table.note, "quiet", width)
        yield from grid([table.columns, *([plain(cell(value)) for value in row] for row in table.rows)])
    if beside:
        yield ()
        yield from beside_rows(beside)
    if report.notes or report.flags:
        yield ()
    for note in report.notes:
        yield from wrapped(note, "doubt" if DOUBTFUL in note else "", width)
    for doubt in doubts(report.flags):
        yield from wrapped(doubt, "doubt", width)


def wrapped(text: str, role: str, width: int | None) -> Iterator[Row]:
    """One sentence, folded to ``width`` where there is one."""
    for line in textwrap.wrap(plain(text), width, subsequent_indent="  ") if width else [plain(text)]:
        yield ((line, role),)


def metric_table(metrics: Sequence[Metric], width: int | None) -> Iterator[Row]:
    """The metrics of one target; groups as headings of their own where there is little room."""
    wide: list[Sequence[str]] = [_HEADER, *_wide(metrics)]
    if width is None or _width(wide) <= width:
        yield from grid(wide)
        return
    narrow: list[Sequence[str]] = [_NARROW, *(_narrow(metric) for metric in metrics)]
    if _width(narrow) > width:
        narrow = [(row[0], row[1], row[3], row[5]) for row in narrow]
    fitted = list(grid(narrow))
    yield fitted[0]
    last = ""
    for metric, row in zip(metrics, fitted[1:], strict=True):
        if metric.group != last:
            last = metric.group
            yield ((metric.group, "quiet"),)
        yield row


def beside_rows(beside: Sequence[Beside]) -> Iterator[Row]:
    """The articles' figures beside the owner's."""
    yield (("Beside the articles", "head"), ("  (theirs on their hardware, not yours)", "quiet"))
    rows = [("", "THEIRS", "YOURS", "", "THEIR HARDWARE", "")]
    for one in beside:
        their, yours = f"{one.theirs:g} {one.unit}", f"{number(one.yours)} {one.unit}"
        rows.append((one.what, their, yours, f"{one.ratio:.2f}x" if one.ratio else "", one.hardware, one.note))
    yield from grid(rows)
    for article in dict.fromkeys(one.article for one in beside):
        yield ((f"From: {plain(article)}", "quiet"),)


def grid(rows: Sequence[Sequence[str]]) -> Iterator[Row]:
    """Columns as wide as what is in them; the first row is their heads."""
    count = max(len(row) for row in rows)
    filled = [[*map(plain, row), *[""] * (count - len(row))] for row in rows]
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


def _width(rows: Sequence[Sequence[str]]) -> int:
    return sum(max(len(row[i]) for row in rows) for i in range(len(rows[0]))) + 2 * (len(rows[0]) - 1)


def _who(info: RunInfo, target: str) -> Row:
    found = info.provenance.get(target)
    if found is None:
        return ((target, "head"),)
    what = [found.model_path.rpartition("/")[2], found.engine_version or found.dialect]
    return ((target, "head"), ("".join(f"  {plain(text)}" for text in what if text), "quiet"))


def _wide(metrics: Sequence[Metric]) -> Iterator[Sequence[str]]:
    last = ""
    for metric in metrics:
        group, last = (metric.group if metric.group != last else ""), metric.group
        found = metric.estimate
        values = (number(found.value), spread(found), number(found.median), interval(found), str(found.n), metric.unit)
        yield (group, metric.name, *values)


def _narrow(metric: Metric) -> Sequence[str]:
    found = metric.estimate
    return f"  {metric.name}", number(found.value), spread(found), interval(found), str(found.n), metric.unit
