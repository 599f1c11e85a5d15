"""Charts as one SVG file with axes: shapes and text only, drawn on any background that is light. Pure.

Own lines, because every plotting library brings an array library that nothing else here needs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from gpubox.bench.report.chart import Chart, bar_range, line_ranges, tick_text, ticks
from gpubox.bench.report.formatting import format_number
from gpubox.bench.report.plot import MOST_MARKED
from gpubox.sanitize import sanitize_line

WIDTH, LEFT, RIGHT, LINE, PLOT = 860, 70, 30, 26, 260
NOTE_LETTERS = 120
"""Of a note on one line: what the width has room for."""
COLOURS = ("#2f7f93", "#c0703a", "#7a5ea8", "#4f8a3c", "#b0433b", "#6b7480")
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
    'font-family="system-ui, sans-serif" font-size="13" fill="#24292f">'
)


def svg(charts: Sequence[Chart], title: str = "", notes: Sequence[str] = ()) -> str:
    """The charts below each other, ``title`` above them, ``notes`` at the foot."""
    parts: list[str] = []
    y = 20.0
    if title:
        parts.append(_text(LEFT - 50, y + 8, title, size=17, weight="600"))
        y += 36
    for chart in charts:
        parts.append(_text(LEFT - 50, y + 8, chart.title, size=14, weight="600"))
        drawn, height = _bars(chart, y + 26) if chart.bars else _lines(chart, y + 26)
        parts += drawn
        y += height + 56
    for line in (line for note in notes for line in textwrap.wrap(sanitize_line(note), NOTE_LETTERS)):
        parts.append(_text(LEFT - 50, y, line, fill="#57606a"))
        y += 20
    if not charts and not notes:
        parts.append(_text(LEFT - 50, y, "There is nothing to draw.", fill="#57606a"))
        y += 20
    head = _HEAD.format(w=WIDTH, h=round(y + 10))
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])


def _bars(chart: Chart, top: float) -> tuple[list[str], float]:
    left = LEFT - 40 + min(300, max(7 * len(bar.label) for bar in chart.bars))
    marks = ticks(*bar_range(chart), 9)
    room, height = WIDTH - RIGHT - 60 - left, len(chart.bars) * LINE
    scale, least = room / (marks[-1] - marks[0]), marks[0]
    parts = []
    for mark in marks:
        x = left + (mark - least) * scale
        parts.append(_line(x, top, x, top + height, "#e3e6ea"))
        parts.append(_text(x, top + height + 17, tick_text(mark), anchor="middle", fill="#57606a"))
    for at, bar in enumerate(chart.bars):
        y = top + at * LINE
        parts.append(_text(left - 8, y + 17, bar.label, anchor="end"))
        here = left + (bar.value - least) * scale
        if chart.centre is None:
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 5:.1f}" width="{max(0.0, here - left):.1f}" height="{LINE - 10}" '
                f'fill="{COLOURS[0]}" fill-opacity="0.75"/>'
            )
        end = bar.value
        if bar.low is not None and bar.high is not None:
            parts += _whisker(left + (bar.low - least) * scale, left + (bar.high - least) * scale, y + LINE / 2)
            end = max(end, bar.high)
        if chart.centre is not None:
            parts.append(f'<circle cx="{here:.1f}" cy="{y + LINE / 2:.1f}" r="4" fill="{COLOURS[0]}"/>')
        parts.append(_text(left + (end - least) * scale + 8, y + 17, format_number(bar.value)))
    if chart.centre is not None:
        x = left + (chart.centre - least) * scale
        parts.append(_line(x, top, x, top + height, COLOURS[1]))
    parts.append(_line(left, top, left, top + height, "#57606a"))
    parts.append(_line(left, top + height, left + room, top + height, "#57606a"))
    parts.append(_text(left + room + 8, top + height + 17, chart.y_label, fill="#57606a"))
    return parts, height + 10.0


def _lines(chart: Chart, top: float) -> tuple[list[str], float]:
    x_least, x_most, y_least, y_most = line_ranges(chart)
    y_marks = ticks(y_least, y_most, 7)
    y_least, y_most = y_marks[0], y_marks[-1]
    room = WIDTH - LEFT - RIGHT
    legend = LINE if len(chart.series) > 1 or chart.series[0].name else 0
    top += legend

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_least) / ((x_most - x_least) or 1.0)
        return LEFT + across * room, top + PLOT - (y - y_least) / (y_most - y_least) * PLOT

    parts = [_text(LEFT - 50, top - 8, chart.y_label, fill="#57606a")] if not legend else []
    for mark in y_marks:
        y = at(x_least, mark)[1]
        parts.append(_line(LEFT, y, LEFT + room, y, "#e3e6ea"))
        parts.append(_text(LEFT - 8, y + 4, tick_text(mark), anchor="end", fill="#57606a"))
    for mark in ticks(x_least, x_most, 10):
        if x_least <= mark <= x_most:
            x = at(mark, y_least)[0]
            parts.append(_line(x, top + PLOT, x, top + PLOT + 5, "#57606a"))
            parts.append(_text(x, top + PLOT + 20, tick_text(mark), anchor="middle", fill="#57606a"))
    place = float(LEFT)
    for number_, series in enumerate(chart.series):
        colour = COLOURS[number_ % len(COLOURS)]
        points = [at(x, y) for x, y in series.points]
        if series.low and series.high and len(series.low) == len(series.high) == len(points):
            edge = [at(x, y) for (x, _), y in zip(series.points, series.high, strict=True)]
            edge += [at(x, y) for (x, _), y in reversed(list(zip(series.points, series.low, strict=True)))]
            parts.append(f'<polygon points="{_points(edge)}" fill="{colour}" fill-opacity="0.15"/>')
        parts.append(f'<polyline points="{_points(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) <= MOST_MARKED:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        if legend:
            parts.append(f'<circle cx="{place + 5:.1f}" cy="{top - 14:.1f}" r="5" fill="{colour}"/>')
            parts.append(_text(place + 15, top - 10, series.name))
            place += 40 + 7 * len(series.name)
    parts.append(_line(LEFT, top, LEFT, top + PLOT, "#57606a"))
    parts.append(_line(LEFT, top + PLOT, LEFT + room, top + PLOT, "#57606a"))
    words = f"{chart.x_label}  (y: {chart.y_label})" if legend else chart.x_label
    parts.append(_text(LEFT + room, top + PLOT + 38, words, anchor="end", fill="#57606a"))
    return parts, PLOT + legend + 30.0


def _whisker(low: float, high: float, y: float) -> Iterator[str]:
    yield _line(low, y, high, y, "#24292f")
    for x in (low, high):
        yield _line(x, y - 4, x, y + 4, "#24292f")


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(x0: float, y0: float, x1: float, y1: float, colour: str) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = "", size: int = 0, weight: str = ""
) -> str:
    given = {"text-anchor": anchor if anchor != "start" else "", "fill": fill, "font-size": size, "font-weight": weight}
    extra = "".join(f' {name}="{value}"' for name, value in given.items() if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(sanitize_line(text))}</text>'
