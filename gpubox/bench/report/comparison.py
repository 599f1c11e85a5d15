"""A comparison as rows of a terminal, and as a chart. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpubox.bench.report.chart import Bar, Chart
from gpubox.bench.report.compare import RunComparison
from gpubox.bench.report.plot import Row
from gpubox.bench.report.text import grid
from gpubox.bench.report.words import number
from gpubox.plain import plain

MOST_BARS = 24


def comparison_rows(found: RunComparison) -> Iterator[Row]:
    """The comparison for a terminal."""
    marks = {"better": "good", "regression": "bad", "too few": "quiet", "noise": "quiet", "changed": ""}
    yield (("Second against first", "head"),)
    yield (("first   ", "quiet"), (found.first, ""))
    yield (("second  ", "quiet"), (found.second, ""))
    yield ()
    header = ("", "", "FIRST", "SECOND", "", "RATIO", "95 % CI", "N", "")
    table, last = [header], ""
    for row in found.rows:
        group, last = (row.group if row.group != last else ""), row.group
        ends = f"{row.low:.3f} – {row.high:.3f}" if row.low is not None and row.high is not None else ""
        ends = ends or (f"p = {row.p:.3f}" if row.p is not None else "")
        ratio = f"{row.ratio:.3f}" if row.ratio is not None else ""
        table.append((group, row.name, number(row.first), number(row.second), row.unit, ratio, ends, str(row.n), ""))
    fitted = list(grid(table))
    yield fitted[0]
    for row, cells in zip(found.rows, fitted[1:], strict=True):
        yield (*cells, (f"  {row.outcome}", marks[row.outcome]))
    yield ()
    counts = {name: sum(row.outcome == name for row in found.rows) for name in ("better", "regression", "noise")}
    few = sum(row.outcome == "too few" for row in found.rows)
    said = f"{counts['better']} better, {counts['regression']} worse, {counts['noise']} within noise"
    yield ((said + (f", {few} with too few values to say" if few else "") + ".", ""),)
    if len(found.rows) >= 10:
        yield (("Each row is sure to 95 %: of twenty rows that are the same, one may well differ.", "quiet"),)
    for text in found.differs:
        yield ((plain(text), "doubt"),)
    if found.left_out:
        yield ((plain(f"In one of them only: {'; '.join(found.left_out[:6])}"), "quiet"),)


def comparison_charts(found: RunComparison) -> list[Chart]:
    """Every ratio with its interval around 1, the rows that decide first."""
    rows = [row for row in found.rows if row.ratio is not None and row.outcome != "changed"]
    rows.sort(key=lambda row: row.outcome in ("noise", "too few"))
    bars = tuple(
        Bar(", ".join(filter(None, (row.name, row.group))), row.ratio, row.low, row.high)
        for row in rows[:MOST_BARS]
        if row.ratio is not None
    )
    return [Chart("Second over first, 95 % CI", "ratio", bars=bars, centre=1.0)] if bars else []
