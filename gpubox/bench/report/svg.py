"""Charts as one SVG file with axes, in plain shapes and text. Pure.

Written by hand, because every plotting library brings an array library that nothing else here needs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from xml.sax.saxutils import escape

from gpubox.bench.report.chart import Chart, bar_range, line_ranges, tick_text, ticks, x_ticks
from gpubox.bench.report.formatting import format_number
from gpubox.bench.report.plot import MAX_MARKED_POINTS
from gpubox.sanitize import sanitize_line

WIDTH, LEFT, RIGHT, LINE, PLOT = 860, 70, 30, 26, 260
MAX_NOTE_LETTERS, MAX_HEADING_LETTERS, MAX_TITLE_LETTERS = 120, 76, 94
"""Per line of a note, of the heading and of the title of a chart, which is what fits the width in a wide font."""
LETTER, MAX_LABEL_LETTERS = 7.8, 46
"""The width of a letter in a wide font, and the longest label beside a bar."""
COLOURS = ("#2f7f93", "#c0703a", "#7a5ea8", "#4f8a3c", "#b0433b", "#6b7480")
_TEXT_COLOUR, _QUIET_COLOUR, _GRID_COLOUR = "#24292f", "#57606a", "#e3e6ea"
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
    f'font-family="system-ui, sans-serif" font-size="13" fill="{_TEXT_COLOUR}">'
)


def svg(charts: Sequence[Chart], title: str = "", notes: Sequence[str] = ()) -> str:
    """The charts one below the other, ``title`` above them, ``notes`` below."""
    parts: list[str] = []
    y = 20.0
    for line in textwrap.wrap(sanitize_line(title), MAX_HEADING_LETTERS):
        parts.append(_text(LEFT - 50, y + 8, line, font_size=17, font_weight="600"))
        y += 24
    y += 12 if title else 0
    for chart in charts:
        for line in textwrap.wrap(sanitize_line(chart.title), MAX_TITLE_LETTERS):
            parts.append(_text(LEFT - 50, y + 8, line, font_size=14, font_weight="600"))
            y += 20
        shapes, height = _bars(chart, y + 6) if chart.bars else _lines(chart, y + 6)
        parts += shapes
        y += height + 36
    lines = [line for note in notes for line in textwrap.wrap(sanitize_line(note), MAX_NOTE_LETTERS)]
    for line in lines if charts or notes else ["There is nothing to draw."]:
        parts.append(_text(LEFT - 50, y, line, fill=_QUIET_COLOUR))
        y += 20
    head = _HEAD.format(w=WIDTH, h=round(y + 10))
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])


def _bars(chart: Chart, top: float) -> tuple[list[str], float]:
    labels = [textwrap.shorten(bar.label, MAX_LABEL_LETTERS, placeholder=" …") for bar in chart.bars]
    labels = [label[:MAX_LABEL_LETTERS] for label in labels]
    left = LEFT - 40 + LETTER * max(map(len, labels))
    tick_values = ticks(*bar_range(chart), 9)
    width, height = WIDTH - RIGHT - 60 - left, len(chart.bars) * LINE
    bottom = top + height
    scale = width / (tick_values[-1] - tick_values[0])

    def x_of(value: float) -> float:
        return left + (value - tick_values[0]) * scale

    parts = []
    for tick in tick_values:
        parts.append(_line(x_of(tick), top, x_of(tick), bottom, _GRID_COLOUR))
        parts.append(_text(x_of(tick), bottom + 17, tick_text(tick), text_anchor="middle", fill=_QUIET_COLOUR))
    for number, bar in enumerate(chart.bars):
        y = top + number * LINE
        parts.append(_text(left - 8, y + 17, labels[number], text_anchor="end"))
        if chart.centre is None:
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 5:.1f}" width="{max(0.0, x_of(bar.value) - left):.1f}" '
                f'height="{LINE - 10}" fill="{COLOURS[0]}" fill-opacity="0.75"/>'
            )
        end = bar.value
        if bar.low is not None and bar.high is not None:
            low, high, middle = x_of(bar.low), x_of(bar.high), y + LINE / 2
            parts.append(_line(low, middle, high, middle, _TEXT_COLOUR))
            parts += [_line(x, middle - 4, x, middle + 4, _TEXT_COLOUR) for x in (low, high)]
            end = max(end, bar.high)
        if chart.centre is not None:
            parts.append(_circle(x_of(bar.value), y + LINE / 2, 4, COLOURS[0]))
        parts.append(_text(x_of(end) + 8, y + 17, format_number(bar.value)))
    if chart.centre is not None:
        parts.append(_line(x_of(chart.centre), top, x_of(chart.centre), bottom, COLOURS[1]))
    parts.append(_line(left, top, left, bottom, _QUIET_COLOUR))
    parts.append(_line(left, bottom, left + width, bottom, _QUIET_COLOUR))
    parts.append(_text(left + width, bottom + 34, chart.y_label, text_anchor="end", fill=_QUIET_COLOUR))
    return parts, height + (28.0 if chart.y_label else 10.0)


def _lines(chart: Chart, top: float) -> tuple[list[str], float]:
    x_min, x_max, y_min, y_max = line_ranges(chart)
    y_ticks = ticks(y_min, y_max, 7)
    y_min, y_max = y_ticks[0], y_ticks[-1]
    width = WIDTH - LEFT - RIGHT
    start = top
    parts, top = _legend(chart.legend, top)
    parts.append(_text(LEFT - 50, top + 10, chart.y_label, fill=_QUIET_COLOUR))
    top += 24
    bottom = top + PLOT

    def point(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - x_min) / ((x_max - x_min) or 1.0) * width, bottom - (y - y_min) / (y_max - y_min) * PLOT

    for tick in y_ticks:
        y = point(x_min, tick)[1]
        parts.append(_line(LEFT, y, LEFT + width, y, _GRID_COLOUR))
        parts.append(_text(LEFT - 8, y + 4, tick_text(tick), text_anchor="end", fill=_QUIET_COLOUR))
    label_end = 0.0
    for tick, name in x_ticks(chart, 10):
        x = point(tick, y_min)[0]
        parts.append(_line(x, bottom, x, bottom + 5, _QUIET_COLOUR))
        half = LETTER * len(name) / 2
        if x - half > label_end:  # a label that would touch the one before it is left out
            label_end = x + half
            x = max(half, min(x, WIDTH - half))
            parts.append(_text(x, bottom + 20, name, text_anchor="middle", fill=_QUIET_COLOUR))
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        points = [point(x, y) for x, y in series.points]
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{coordinates}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) <= MAX_MARKED_POINTS:
            parts += [_circle(x, y, 3.5, colour) for x, y in points]
    parts.append(_line(LEFT, top, LEFT, bottom, _QUIET_COLOUR))
    parts.append(_line(LEFT, bottom, LEFT + width, bottom, _QUIET_COLOUR))
    parts.append(_text(LEFT + width, bottom + 38, chart.x_label, text_anchor="end", fill=_QUIET_COLOUR))
    return parts, bottom - start + 40.0


def _legend(names: Sequence[str], top: float) -> tuple[list[str], float]:
    """A dot and a name for each line, on as many rows as they need; and where they end."""
    parts, x, y = [], float(LEFT), top
    for number, name in enumerate(names):
        width = 40 + LETTER * len(name)
        if x > LEFT and x + width > WIDTH:
            x, y = float(LEFT), y + LINE - 6
        parts.append(_circle(x + 5, y + 6, 5, COLOURS[number % len(COLOURS)]))
        parts.append(_text(x + 15, y + 10, name))
        x += width
    return parts, y + LINE - 4 if names else y


def _circle(x: float, y: float, radius: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def _line(x0: float, y0: float, x1: float, y1: float, colour: str) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, **attributes: str | int) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(sanitize_line(text))}</text>'
