"""The charts of a report, their contents and axes; and how they are drawn as rows of text with roles. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpubox.bench.report.formatting import format_number
from gpubox.bench.report.model import Metric, Report, Series
from gpubox.bench.stats import Estimate
from gpubox.sanitize import sanitize_line

MAX_BARS, MAX_CHARTS = 24, 10
INTERVAL_ROOM = 0.5
"""How far the intervals of a line chart may widen its y axis, as a share of its highest point."""
METRIC_ORDER = ("tg", "pp", "TTFT", "acceptance", "energy", "read energy")
"""The metrics that a report draws first; all others follow."""
MEANINGS: Mapping[str, str] = {
    "tg": "token generation",
    "pp": "prompt processing",
    "TTFT": "time to first token",
    "effective": "generated tokens over wall time",
    "acceptance": "accepted of the drafted tokens",
    "mean accepted length": "tokens per verification step",
    "energy": "energy of the GPU for a generated token",
    "read energy": "energy of the GPU for a token of the prompt",
    "aggregate tg": "token generation of all streams together",
    "slowest TTFT": "time to first token of the slowest stream",
    "pass@1": "problems solved with the first program",
}
"""Metric -> what was measured, for the titles of charts."""
MAX_MEASURED_TICKS = 12
"""With more values of x, the axis has round numbers."""


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One estimate; ``low`` and ``high`` are the ends of its interval, if it has one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Either ``bars``, or ``series`` over x."""

    title: str
    y_label: str
    x_label: str = ""
    bars: tuple[ChartBar, ...] = ()
    series: tuple[Series, ...] = ()

    @property
    def legend(self) -> tuple[str, ...]:
        """The names of the lines; empty for a single line, which the title names."""
        return tuple(series.name for series in self.series) if len(self.series) > 1 else ()


def estimate_series(
    chart: str, name: str, x_label: str, y_label: str, points: Sequence[tuple[int, Estimate]],
    mark: tuple[float, str] | None = None,
) -> Iterator[Series]:  # fmt: skip
    """A line through estimates with their intervals; none for fewer than two points."""
    if len(points) < 2:
        return
    intervals = tuple((float(x), e.low, e.high) for x, e in points if e.low is not None and e.high is not None)
    y_label += ", 95 % CI" if intervals else ""
    values = tuple((float(x), estimate.value) for x, estimate in points)
    yield Series(chart, name, x_label, y_label, values, intervals=intervals, mark=mark)


def charts(report: Report) -> list[Chart]:
    """The line charts of the kind, then a bar chart for each metric that has several rows."""
    lines = []
    for title in dict.fromkeys(series.chart for series in report.series):
        if own := [series for series in report.series if series.chart == title and series.points]:
            named = f"{title}, {own[0].name}" if len(own) == 1 and own[0].name else title
            lines.append(Chart(named, own[0].y_label, own[0].x_label, series=tuple(own)))
    kinds = ", ".join(dict.fromkeys(doubt.kind for doubt in report.doubts))
    suffix = f"  ! {kinds}" if kinds else ""
    return [replace(chart, title=chart.title + suffix) for chart in [*lines, *_bar_charts(report.metrics)][:MAX_CHARTS]]


def _bar_charts(metrics: Sequence[Metric]) -> Iterable[Chart]:
    """One for each metric that has several rows and a better direction."""
    names = {metric.name: None for metric in metrics if metric.better}
    targets = dict.fromkeys(metric.target for metric in metrics)
    several = len(targets) > 1
    for name in sorted(names, key=lambda name: METRIC_ORDER.index(name) if name in METRIC_ORDER else len(METRIC_ORDER)):
        rows = [metric for metric in metrics if metric.name == name]
        if len(rows) > 1 and all(math.isfinite(row.estimate.value) and row.estimate.value >= 0 for row in rows):
            bars = []
            for row in rows[:MAX_BARS]:
                label = ", ".join(filter(None, (row.target if several else "", row.group))) or row.name
                bars.append(ChartBar(label, row.estimate.value, row.estimate.low, row.estimate.high))
            title = metric_title(name, rows[0].unit, "" if several else rows[0].target)
            yield Chart(interval_suffix(title, bars), rows[0].unit, bars=tuple(bars))


def metric_title(name: str, unit: str, target: str = "") -> str:
    """What was measured: ``tg, tok/s: token generation, qwen36``."""
    title = f"{name}, {unit}" if unit else name
    measured = ", ".join(filter(None, (MEANINGS.get(name, ""), target)))
    return f"{title}: {measured}" if measured else title


def interval_suffix(title: str, bars: Iterable[ChartBar]) -> str:
    """``title``, and what the whiskers of the bars are."""
    return f"{title}, 95 % CI" if any(bar.low is not None for bar in bars) else title


def ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """At most ``max_ticks`` round numbers that cover ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("an axis must be finite")
    if high <= low:
        high = low + (abs(low) or 1.0)
    max_ticks = max(2, max_ticks)
    power = 10.0 ** math.floor(math.log10((high - low) / max_ticks))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power, 50 * power):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first + 1 <= max_ticks:
            return [round(number * step, 12) for number in range(first, last + 1)]
    return [low, high]


def tick_text(value: float) -> str:
    """The label of a tick: ``0.05``, ``250``, ``16,384``."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:g}"


def line_ranges(chart: Chart) -> tuple[float, float, float, float]:
    """The least and the greatest x and y of a line chart; y begins at 0 if that costs less than half of the height."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    low, high = min(ys), max(ys)
    ends = [end for series in chart.series for _, *both in series.intervals for end in both]
    room = INTERVAL_ROOM * abs(high)  # the interval of two starts must not flatten a line: longer ones are cut off
    low, high = max(low - room, min([low, *ends])), min(high + room, max([high, *ends]))
    if 0 <= low < high / 2 or low == high >= 0:
        low = 0.0
    return min(xs), max(xs), low, high


def x_ticks(chart: Chart, max_ticks: int) -> list[tuple[float, str]]:
    """The places and labels of the x axis of a line chart: names, the few values that were measured, or round numbers.

    The labels may overlap: who draws them leaves some out.
    """
    if names := chart.series[0].x_names if chart.series else ():
        return [(float(place), name) for place, name in enumerate(names, 1)]
    xs = sorted({x for series in chart.series for x, _ in series.points})
    if len(xs) <= MAX_MEASURED_TICKS and all(x == round(x) for x in xs):
        return [(x, tick_text(x)) for x in xs]
    inside = [tick for tick in ticks(xs[0], xs[-1], max_ticks) if xs[0] <= tick <= xs[-1]]
    return [(tick, tick_text(tick)) for tick in inside or (xs[0], xs[-1])]


StyledRow = tuple[tuple[str, str], ...]
"""Texts and their roles: ``""`` plain, ``quiet``, ``head``, ``good``, ``bad``, ``doubt``, ``s0`` to ``s5``."""

POINTS = "●○▲△■□"
COLOURS = len(POINTS)
HEIGHT = 12
MAX_MARKED_POINTS = 40
"""A line of more points has no mark on each."""
_BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def plot(chart: Chart, width: int = 80, height: int = HEIGHT) -> list[StyledRow]:
    """The chart in ``width`` columns: title, drawing, axes. A bar takes one row, a line chart ``height`` rows."""
    titles: list[StyledRow] = [((line, "head"),) for line in textwrap.wrap(sanitize_line(chart.title), width)]
    return [*titles, *(_bars(chart, width) if chart.bars else _lines(chart, width, height))]


def _bars(chart: Chart, width: int) -> list[StyledRow]:
    values = [format_number(bar.value) for bar in chart.bars]
    value_width = max(map(len, values)) + 1
    labels = [sanitize_line(bar.label) for bar in chart.bars]
    label_width = min(max(map(len, labels)), max(8, width // 3))
    columns = max(10, width - label_width - value_width - 2)
    most = max(max(bar.value, bar.high or 0.0) for bar in chart.bars) or 1.0
    tick_values = ticks(0.0, most, max(2, columns // 9))
    scale = (columns - 1) / (tick_values[-1] - tick_values[0])
    rows: list[StyledRow] = []
    for bar, label, value in zip(chart.bars, labels, values, strict=True):
        label = label if len(label) <= label_width else label[: label_width - 1] + "…"
        drawing = _bar(bar, columns, tick_values[0], scale)
        rows.append(((f"{label:<{label_width}} ", ""), ("│", "quiet"), *drawing, (value.rjust(value_width), "")))
    return [
        *rows,
        *x_axis_rows(
            [(tick, tick_text(tick)) for tick in tick_values], columns, label_width + 1, tick_values[0], scale
        ),
    ]


def _bar(bar: ChartBar, columns: int, left: float, scale: float) -> StyledRow:
    """One bar with its interval."""

    def column(value: float) -> int:
        return max(0, min(columns - 1, round((value - left) * scale)))

    cells = [(" ", "")] * columns
    length = max(1 if bar.value > 0 else 0, round((bar.value - left) * scale))
    cells[:length] = [("━", "s0")] * length
    if bar.low is not None and bar.high is not None:
        low, high = column(bar.low), column(bar.high)
        cells[low : high + 1] = [("─", "s1")] * (high + 1 - low)
        cells[low], cells[high] = (("├", "s1"), ("┤", "s1")) if high > low else (("┃", "s1"), ("┃", "s1"))
    return join_cells(cells[:columns])


def _lines(chart: Chart, width: int, height: int) -> list[StyledRow]:
    left, right, low, high = line_ranges(chart)
    y_ticks = ticks(low, high, max(3, height // 2))
    low, high = y_ticks[0], y_ticks[-1]
    margin = max(len(tick_text(tick)) for tick in y_ticks) + 1
    columns = max(10, width - margin - 3)
    x_scale = (columns - 1) / ((right - left) or 1.0)
    canvas = Canvas(columns, height)
    for number, series in enumerate(chart.series):
        dots = [((x - left) * x_scale * 2, (high - y) / (high - low) * (height * 4 - 1)) for x, y in series.points]
        colour = number % COLOURS
        for x, least, most in series.intervals:
            bottom, top = ((high - y) / (high - low) * (height * 4 - 1) for y in (least, most))
            at = (x - left) * x_scale * 2
            canvas.draw([(at, bottom), (at, top)], colour, marked=False)
        canvas.draw(dots, colour, marked=len(dots) <= MAX_MARKED_POINTS)
        if series.mark:
            canvas.annotate(round((series.mark[0] - left) * x_scale * 2) // 2, series.mark[1])
    rows = _legend([sanitize_line(name) for name in chart.legend], width)
    if chart.y_label:
        rows.append(((f"{'':{margin}} {chart.y_label}", "quiet"),))
    rows += y_axis_rows([canvas.row(y) for y in range(height)], y_ticks, margin)
    x_label: StyledRow = ((f"{'':{margin + 2}}{chart.x_label}", "quiet"),)
    x_axis = x_axis_rows(x_ticks(chart, max(2, columns // 12)), columns, margin + 1, left, x_scale)
    return [*rows, *x_axis, *([x_label] if chart.x_label else [])]


def _legend(names: Sequence[str], width: int) -> list[StyledRow]:
    """A mark and a name for each line, on as many rows as ``width`` demands."""
    rows: list[list[tuple[str, str]]] = [[]]
    used = 0
    for number, name in enumerate(names):
        colour = number % COLOURS
        if used and used + len(name) + 2 > width:
            rows.append([])
            used = 0
        rows[-1] += [(f"{POINTS[colour]} ", f"s{colour}"), (f"{name}   ", "")]
        used += len(name) + 5
    return [tuple(row) for row in rows if row]


def y_axis_rows(rows: Sequence[Sequence[tuple[str, str]]], ticks: Sequence[float], margin: int) -> Iterator[StyledRow]:
    """The rows of cells behind their axis, which goes from the last tick down to the first one."""
    low, high = ticks[0], ticks[-1]
    labels = {round((high - tick) / (high - low) * (len(rows) - 1)): tick_text(tick) for tick in ticks}
    for number, cells in enumerate(rows):
        label = labels.get(number, "")
        yield ((f"{label:>{margin}} {'┤' if label else '│'}", "quiet"), *join_cells(cells))


def x_axis_rows(
    ticks: Sequence[tuple[float, str]], columns: int, margin: int, left: float, scale: float
) -> list[StyledRow]:
    """The axis with its ticks and below it their labels; a label that would touch the one before it is left out."""
    line, labels = ["─"] * columns, [" "] * (columns + 12)
    last_end = -1
    for tick, text in ticks:
        column = round((tick - left) * scale)
        label = text[:columns]
        begin = max(0, min(column - len(label) // 2, columns + 1 - len(label)))
        if 0 <= column < columns:
            line[column] = "┬"
        if begin > last_end:
            last_end = begin + len(label)
            labels[begin:last_end] = label
    return [
        ((" " * margin + "└" + "".join(line), "quiet"),),
        ((" " * (margin + 1) + "".join(labels).rstrip(), "quiet"),),
    ]


class Canvas:
    """Braille dots, 2 x 4 per cell. A cell has the colour of the last line that crosses it."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._dots = [[0] * width for _ in range(height)]
        self._colours = [[-1] * width for _ in range(height)]
        self._marks: dict[tuple[int, int], int] = {}
        self._words: dict[tuple[int, int], str] = {}

    def annotate(self, column: int, text: str) -> None:
        """A dotted line at ``column`` from top to bottom, with ``text`` beside its upper end."""
        self._words |= {(column, row): "┊" for row in range(self.height)}
        begin = column + 2 if column + 2 + len(text) <= self.width else column - 1 - len(text)
        self._words |= {(begin + i, 0): letter for i, letter in enumerate(text)}

    def draw(self, dots: Sequence[tuple[float, float]], colour: int, *, marked: bool) -> None:
        """Joins the dots by straight lines."""
        for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
            steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps + 1):
                x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
                column, row = x // 2, y // 4
                if 0 <= column < self.width and 0 <= row < self.height:
                    self._dots[row][column] |= _BRAILLE_DOTS[y % 4][x % 2]
                    self._colours[row][column] = colour
        if marked:
            self._marks.update({(round(x) // 2, round(y) // 4): colour for x, y in dots})

    def row(self, y: int) -> list[tuple[str, str]]:
        """Every cell of a row."""
        cells = []
        for x in range(self.width):
            mark = self._marks.get((x, y))
            if mark is not None:
                cells.append((POINTS[mark], f"s{mark}"))
            else:
                dots = self._dots[y][x]
                empty = (self._words.get((x, y), " "), "quiet" if (x, y) in self._words else "")
                cells.append((chr(0x2800 + dots), f"s{self._colours[y][x]}") if dots else empty)
        return cells


def join_cells(cells: Sequence[tuple[str, str]]) -> StyledRow:
    """Joins neighbouring cells of one role."""
    row: list[tuple[str, str]] = []
    for text, role in cells:
        if row and row[-1][1] == role:
            row[-1] = (row[-1][0] + text, role)
        else:
            row.append((text, role))
    return tuple(row)
