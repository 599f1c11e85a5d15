"""A comparison as rows of a terminal, and as a chart. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpubox.bench.report.chart import Chart, ChartBar
from gpubox.bench.report.formatting import DOUBTFUL, format_number
from gpubox.bench.report.plot import StyledRow
from gpubox.bench.report.report_rows import table_rows, wrapped_rows
from gpubox.bench.report.run_comparison import BETWEEN_RUNS, ComparedRow, RunComparison

MOST_BARS = 24


_MARKS = {"better": "good", "regression": "bad", "too few": "quiet", "noise": "quiet", "changed": ""}
_WIDEST_OUTCOME = 12


def comparison_rows(found: RunComparison, width: int | None = None) -> Iterator[StyledRow]:
    """The comparison for a terminal; where it is narrow, the groups become headings and the interval gives way."""
    yield (("Second against first", "head"),)
    yield (("first   ", "quiet"), (found.first, ""))
    yield (("second  ", "quiet"), (found.second, ""))
    yield ()
    yield from _table(found, width)
    yield ()
    for text in comparison_sentences(found):
        yield from wrapped_rows(text, "doubt" if DOUBTFUL in text else "", width)
    for text in found.differs:
        yield from wrapped_rows(text, "doubt", width)
    if found.left_out:
        yield from wrapped_rows(f"In one of them only: {'; '.join(found.left_out[:6])}", "quiet", width)


def comparison_sentences(found: RunComparison) -> Iterator[str]:
    """What the table comes to: counts and their doubts, what could be told, what it is corrected for."""
    counts = {name: sum(row.outcome == name for row in found.rows) for name in ("better", "regression", "noise")}
    few = sum(row.outcome == "too few" for row in found.rows)
    said = f"{counts['better']} better, {counts['regression']} worse, {counts['noise']} within noise"
    yield f"{said}{f', {few} with too few values to say' if few else ''}{found.doubt}."
    least = [row.least for row in found.rows if row.least is not None and row.method == BETWEEN_RUNS]
    if found.noise and least:
        low, high = (f"{100 * end:.0f}" for end in (min(least), max(least)))
        span = low if low == high else f"{low} to {high}"
        yield (
            f"Too few starts for more: two runs are not measured in turn, so differences of a speed under about "
            f"{span} % cannot be told ({found.noise}). `gpubox bench ab` tells finer ones."
        )
    tested = sum(row.p is not None for row in found.rows)
    if tested > 1:
        yield f"Each verdict is corrected for the {tested} rows (Holm); each interval is its row's alone."


def _table(found: RunComparison, width: int | None) -> Iterator[StyledRow]:
    header = ("", "", "FIRST", "SECOND", "", "RATIO", "95 % CI", "N")
    full, last = [header], ""
    for row in found.rows:
        group, last = (row.group if row.group != last else ""), row.group
        ratio = f"{row.ratio:.3f}" if row.ratio is not None else ""
        full.append(
            (
                group,
                row.name,
                format_number(row.first),
                format_number(row.second),
                row.unit,
                ratio,
                _ends(row),
                str(row.n),
            )
        )
    for columns in (range(8), (1, 2, 3, 5, 6), (1, 2, 3, 5)):
        fitted = list(table_rows([tuple(row[i] for i in columns) for row in full]))
        if width is None or max(len(row[0][0]) for row in fitted) + _WIDEST_OUTCOME <= width:
            break
    widest = max(len(row[0][0]) for row in fitted)
    yield fitted[0]
    last = ""
    for row, cells in zip(found.rows, fitted[1:], strict=True):
        if len(columns) < len(header) and row.group != last:
            last = row.group
            yield ((row.group, "quiet"),)
        yield ((cells[0][0].ljust(widest), ""), (f"  {row.outcome}", _MARKS[row.outcome]))


def _ends(row: ComparedRow) -> str:
    if row.low is not None and row.high is not None:
        return f"{row.low:.3f} – {row.high:.3f}"
    return f"p = {row.p:.3f}" if row.p is not None else ""


def comparison_charts(found: RunComparison) -> list[Chart]:
    """Every ratio with its interval around 1, the rows that decide first."""
    rows = [row for row in found.rows if row.ratio is not None and row.outcome != "changed"]
    rows.sort(key=lambda row: row.outcome in ("noise", "too few"))
    bars = tuple(
        ChartBar(", ".join(filter(None, (row.name, row.group))), row.ratio, row.low, row.high)
        for row in rows[:MOST_BARS]
        if row.ratio is not None
    )
    return [Chart(f"Second over first, 95 % CI{found.doubt}", "ratio", bars=bars, centre=1.0)] if bars else []
