"""Charts as rows of text for a terminal, with axes. Each piece of a row has a role that the screen colours. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gpubox.bench.report.chart import Chart, ChartBar, bar_range, line_ranges, tick_text, ticks, x_ticks
from gpubox.bench.report.formatting import format_number
from gpubox.sanitize import sanitize_line

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
    tick_values = ticks(*bar_range(chart), max(2, columns // 9))
    scale = (columns - 1) / (tick_values[-1] - tick_values[0])
    rows: list[StyledRow] = []
    for bar, label, value in zip(chart.bars, labels, values, strict=True):
        label = label if len(label) <= label_width else label[: label_width - 1] + "…"
        drawing = _bar(chart, bar, columns, tick_values[0], scale)
        rows.append(((f"{label:<{label_width}} ", ""), ("│", "quiet"), *drawing, (value.rjust(value_width), "")))
    return [
        *rows,
        *x_axis_rows(
            [(tick, tick_text(tick)) for tick in tick_values], columns, label_width + 1, tick_values[0], scale
        ),
    ]


def _bar(chart: Chart, bar: ChartBar, columns: int, left: float, scale: float) -> StyledRow:
    """One bar, or one point next to the centre line, with its interval."""

    def column(value: float) -> int:
        return max(0, min(columns - 1, round((value - left) * scale)))

    cells = [(" ", "")] * columns
    if chart.centre is None:
        length = max(1 if bar.value > 0 else 0, round((bar.value - left) * scale))
        cells[:length] = [("━", "s0")] * length
    else:
        cells[column(chart.centre)] = ("│", "quiet")
    if bar.low is not None and bar.high is not None:
        low, high = column(bar.low), column(bar.high)
        cells[low : high + 1] = [("─", "s1")] * (high + 1 - low)
        cells[low], cells[high] = (("├", "s1"), ("┤", "s1")) if high > low else (("┃", "s1"), ("┃", "s1"))
    if chart.centre is not None:
        cells[column(bar.value)] = ("●", "s0")
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
            canvas.upright((x - left) * x_scale * 2, bottom, top, colour)
        canvas.draw(dots, colour, marked=len(dots) <= MAX_MARKED_POINTS)
        if series.mark:
            canvas.annotate(round((series.mark[0] - left) * x_scale * 2) // 2, series.mark[1])
    cells = [canvas.row(y) for y in range(height)]
    for point in chart.points:
        column, row = round((point.x - left) * x_scale), round((high - point.y) / (high - low) * (height - 1))
        column += cells[row][column][0].isalpha() and column + 1 < columns  # beside a letter that is there already
        cells[row][column] = (point.letter, "good" if point.stands_out else "quiet")
    rows = _legend([sanitize_line(name) for name in chart.legend], width)
    if chart.y_label:
        rows.append(((f"{'':{margin}} {chart.y_label}", "quiet"),))
    rows += y_axis_rows(cells, y_ticks, margin)
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

    def upright(self, x: float, bottom: float, top: float, colour: int) -> None:
        """A vertical line: the interval of a point."""
        self.draw([(x, bottom), (x, top)], colour, marked=False)

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
