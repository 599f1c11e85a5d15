"""Charts as rows of a terminal, with axes. A row is text with a role; the screen gives roles colours. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox.bench.report.chart import Chart, ChartBar, bar_range, line_ranges, tick_text, ticks
from gpubox.bench.report.formatting import format_number
from gpubox.bench.report.model import Series

StyledRow = tuple[tuple[str, str], ...]
"""Texts and their roles: ``""`` plain, ``quiet``, ``head``, ``good``, ``bad``, ``doubt``, ``s0`` to ``s5``."""

POINTS = "●○▲△■□"
COLOURS = len(POINTS)
HEIGHT = 12
MOST_MARKED = 40
"""A line of more points is drawn without a mark on each."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def plot(chart: Chart, width: int = 80, height: int = HEIGHT) -> list[StyledRow]:
    """The chart in ``width`` cells: title, picture, axes. Bars take a row each, lines ``height`` rows."""
    title: StyledRow = ((chart.title, "head"),)
    return [title, *(_bars(chart, width) if chart.bars else _lines(chart, width, height))]


def _bars(chart: Chart, width: int) -> list[StyledRow]:
    shown = [format_number(bar.value) for bar in chart.bars]
    at_right = max(map(len, shown)) + 1
    labels = min(max(len(bar.label) for bar in chart.bars), max(8, width // 3))
    room = max(10, width - labels - at_right - 2)
    marks = ticks(*bar_range(chart), max(2, room // 9))
    scale = (room - 1) / (marks[-1] - marks[0])
    rows: list[StyledRow] = []
    for bar, text in zip(chart.bars, shown, strict=True):
        label = f"{_cut(bar.label, labels):<{labels}} "
        rows.append(((label, ""), ("│", "quiet"), *_bar(chart, bar, room, marks[0], scale), (text.rjust(at_right), "")))
    return [*rows, *_x_axis(marks, room, labels + 1, marks[0], scale)]


def _bar(chart: Chart, bar: ChartBar, room: int, left: float, scale: float) -> StyledRow:
    """One bar, or one point beside the centre line, with its interval."""

    def at(value: float) -> int:
        return max(0, min(room - 1, round((value - left) * scale)))

    cells = [(" ", "")] * room
    if chart.centre is None:
        filled = max(1 if bar.value > 0 else 0, round((bar.value - left) * scale))
        cells[:filled] = [("━", "s0")] * filled
    else:
        cells[at(chart.centre)] = ("│", "quiet")
    if bar.low is not None and bar.high is not None:
        low, high = at(bar.low), at(bar.high)
        for place in range(low, high + 1):
            cells[place] = ("─", "s1")
        cells[low], cells[high] = (("├", "s1"), ("┤", "s1")) if high > low else (("┃", "s1"), ("┃", "s1"))
    if chart.centre is not None:
        cells[at(bar.value)] = ("●", "s0")
    return _runs(cells[:room])


def _lines(chart: Chart, width: int, height: int) -> list[StyledRow]:
    left, right, low, high = line_ranges(chart)
    y_marks = ticks(low, high, max(3, height // 2))
    low, high = y_marks[0], y_marks[-1]
    margin = max(len(tick_text(mark)) for mark in y_marks) + 1
    room = max(10, width - margin - 3)
    x_marks = ticks(left, right, max(2, room // 12))
    inside = [mark for mark in x_marks if left <= mark <= right] or [left, right]
    x_scale = (room - 1) / ((right - left) or 1.0)
    canvas = _Canvas(room, height)
    for who, series in enumerate(chart.series):
        dots = [((x - left) * x_scale * 2, (high - y) / (high - low) * (height * 4 - 1)) for x, y in series.points]
        canvas.draw(dots, who % COLOURS, marked=len(dots) <= MOST_MARKED)
    labels = {round((high - mark) / (high - low) * (height - 1)): tick_text(mark) for mark in y_marks}
    rows: list[StyledRow] = []
    if len(chart.series) > 1 or chart.series[0].name:
        rows.append(_legend(chart.series))
    if chart.y_label:
        rows.append(((f"{'':{margin}} {chart.y_label}", "quiet"),))
    for y in range(height):
        label = labels.get(y, "")
        axis = f"{label:>{margin}} {'┤' if label else '│'}"
        rows.append(((axis, "quiet"), *_runs(canvas.row(y))))
    return [*rows, *_x_axis(inside, room, margin + 1, left, x_scale), ((f"{'':{margin + 2}}{chart.x_label}", "quiet"),)]


def _x_axis(marks: Sequence[float], room: int, margin: int, left: float, scale: float) -> list[StyledRow]:
    line, text = ["─"] * room, [" "] * (room + 12)
    taken = -1
    for mark in marks:
        at = round((mark - left) * scale)
        word = tick_text(mark)
        begin = max(0, min(at - len(word) // 2, room + 1 - len(word)))
        if 0 <= at < room:
            line[at] = "┬"
        if begin > taken:
            text[begin : begin + len(word)] = word
            taken = begin + len(word)
    return [
        ((" " * margin + "└" + "".join(line), "quiet"),),
        ((" " * (margin + 1) + "".join(text).rstrip(), "quiet"),),
    ]


def _legend(series: Sequence[Series]) -> StyledRow:
    found: list[tuple[str, str]] = []
    for who, one in enumerate(series):
        found += [(f"{POINTS[who % COLOURS]} ", f"s{who % COLOURS}"), (f"{one.name}   ", "")]
    return tuple(found)


class _Canvas:
    """Braille dots, 2 x 4 to a cell; a cell has the colour of what was drawn there last."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._dots = [[0] * width for _ in range(height)]
        self._who = [[-1] * width for _ in range(height)]
        self._marks: dict[tuple[int, int], int] = {}

    def draw(self, dots: Sequence[tuple[float, float]], who: int, *, marked: bool) -> None:
        """Joins the dots by straight lines."""
        for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
            steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps + 1):
                self._dot(round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps), who)
        if marked:
            self._marks.update({(round(x) // 2, round(y) // 4): who for x, y in dots})

    def _dot(self, x: int, y: int, who: int) -> None:
        column, row = x // 2, y // 4
        if 0 <= column < self.width and 0 <= row < self.height:
            self._dots[row][column] |= _DOTS[y % 4][x % 2]
            self._who[row][column] = who

    def row(self, y: int) -> list[tuple[str, str]]:
        """Every cell of a row."""
        found = []
        for x in range(self.width):
            mark = self._marks.get((x, y))
            if mark is not None:
                found.append((POINTS[mark], f"s{mark}"))
            else:
                dots = self._dots[y][x]
                found.append((chr(0x2800 + dots), f"s{self._who[y][x]}") if dots else (" ", ""))
        return found


def _runs(cells: Sequence[tuple[str, str]]) -> StyledRow:
    """Neighbours of one role joined."""
    found: list[tuple[str, str]] = []
    for text, role in cells:
        if found and found[-1][1] == role:
            found[-1] = (found[-1][0] + text, role)
        else:
            found.append((text, role))
    return tuple(found)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
