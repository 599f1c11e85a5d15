"""A report as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubox import units
from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Estimate, Metric, Report

_HEADER = ("", "", "MEAN", "± SD", "MEDIAN", "95 % CI", "N", "")


def lines(info: RunInfo, report: Report) -> Iterator[str]:
    """Every line, widths fitted to what is in them."""
    yield f"{report.title}  ({info.id}, {info.state})"
    for target in dict.fromkeys(metric.target for metric in report.metrics):
        yield ""
        yield _who(info, target)
        yield from _table([_HEADER, *_rows([m for m in report.metrics if m.target == target])])
    for table in report.tables:
        yield ""
        yield table.title + (f"  ({table.note})" if table.note else "")
        yield from _table([table.columns, *([_cell(value) for value in row] for row in table.rows)])
    if report.notes or report.flags:
        yield ""
    yield from report.notes
    yield from _doubts(report)


def _doubts(report: Report) -> Iterator[str]:
    """One line for each kind of flag: how many items have it, and the last one's words."""
    for kind in dict.fromkeys(flag.kind for flag in report.flags):
        flags = [flag for flag in report.flags if flag.kind == kind]
        items = len({flag.item for flag in flags if flag.item})
        where = f" in {items} items" if items > 1 else f" in {flags[-1].item}" if items else ""
        yield f"! {kind}{where}: {flags[-1].text}"


def number(value: float | None) -> str:
    """Four significant figures, and no more."""
    if value is None:
        return units.UNKNOWN
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 1000
        else f"{value:.1f}"
        if size >= 100
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.4f}"
    )


def _who(info: RunInfo, target: str) -> str:
    found = info.provenance.get(target)
    if found is None:
        return target
    what = [found.model_path.rpartition("/")[2], found.engine_version or found.dialect]
    return "  ".join([target, *filter(None, what)])


def _rows(metrics: Sequence[Metric]) -> Iterator[Sequence[str]]:
    last = ""
    for metric in metrics:
        group, last = (metric.group if metric.group != last else ""), metric.group
        found = metric.estimate
        sd = f"± {number(found.sd)}" if found.sd is not None else ""
        values = (number(found.value), sd, number(found.median), _interval(found), str(found.n), metric.unit)
        yield (group, metric.name, *values)


def _interval(found: Estimate) -> str:
    if found.low is not None:
        return f"{number(found.low)} – {number(found.high)}"
    if found.least is not None and found.n > 1:
        return f"range {number(found.least)} – {number(found.most)}"
    return units.UNKNOWN


def _cell(value: str | int | float | None) -> str:
    return number(value) if isinstance(value, float) else units.UNKNOWN if value is None else str(value)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
