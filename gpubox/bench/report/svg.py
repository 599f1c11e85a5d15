"""Charts as one SVG file with axes, in plain shapes and text. Pure.

Written by hand, because every plotting library brings an array library that nothing else here needs.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
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
TEXT_COLOUR, QUIET_COLOUR, GRID_COLOUR = "#24292f", "#57606a", "#e3e6ea"


def svg(charts: Sequence[Chart], title: str = "", notes: Sequence[str] = ()) -> str:
    """The charts one below the other, ``title`` above them, ``notes`` below."""
    parts: list[str] = []
    y = 20.0
    for line in textwrap.wrap(sanitize_line(title), MAX_HEADING_LETTERS):
        parts.append(text_element(LEFT - 50, y + 8, line, font_size=17, font_weight="600"))
        y += 24
    y += 12 if title else 0
    for chart in charts:
        for line in textwrap.wrap(sanitize_line(chart.title), MAX_TITLE_LETTERS):
            parts.append(text_element(LEFT - 50, y + 8, line, font_size=14, font_weight="600"))
            y += 20
        shapes, height = _bars(chart, y + 6) if chart.bars else _lines(chart, y + 6)
        parts += shapes
        y += height + 36
    lines = [line for note in notes for line in textwrap.wrap(sanitize_line(note), MAX_NOTE_LETTERS)]
    for line in lines if charts or notes else ["There is nothing to draw."]:
        parts.append(text_element(LEFT - 50, y, line, fill=QUIET_COLOUR))
        y += 20
    return svg_document(WIDTH, y + 10, parts)


def svg_document(width: int, height: float, parts: Sequence[str]) -> str:
    """The file: ``parts`` on white."""
    h = round(height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{h}" viewBox="0 0 {width} {h}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{TEXT_COLOUR}">'
    )
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
        parts.append(line_element(x_of(tick), top, x_of(tick), bottom, GRID_COLOUR))
        parts.append(text_element(x_of(tick), bottom + 17, tick_text(tick), text_anchor="middle", fill=QUIET_COLOUR))
    for number, bar in enumerate(chart.bars):
        y = top + number * LINE
        parts.append(text_element(left - 8, y + 17, labels[number], text_anchor="end"))
        if chart.centre is None:
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 5:.1f}" width="{max(0.0, x_of(bar.value) - left):.1f}" '
                f'height="{LINE - 10}" fill="{COLOURS[0]}" fill-opacity="0.75"/>'
            )
        end = bar.value
        if bar.low is not None and bar.high is not None:
            low, high, middle = x_of(bar.low), x_of(bar.high), y + LINE / 2
            parts.append(line_element(low, middle, high, middle, TEXT_COLOUR))
            parts += [line_element(x, middle - 4, x, middle + 4, TEXT_COLOUR) for x in (low, high)]
            end = max(end, bar.high)
        if chart.centre is not None:
            parts.append(circle_element(x_of(bar.value), y + LINE / 2, 4, COLOURS[0]))
        parts.append(text_element(x_of(end) + 8, y + 17, format_number(bar.value)))
    if chart.centre is not None:
        parts.append(line_element(x_of(chart.centre), top, x_of(chart.centre), bottom, COLOURS[1]))
    parts.append(line_element(left, top, left, bottom, QUIET_COLOUR))
    parts.append(line_element(left, bottom, left + width, bottom, QUIET_COLOUR))
    parts.append(text_element(left + width, bottom + 34, chart.y_label, text_anchor="end", fill=QUIET_COLOUR))
    return parts, height + (28.0 if chart.y_label else 10.0)


def _lines(chart: Chart, top: float) -> tuple[list[str], float]:
    x_min, x_max, y_min, y_max = line_ranges(chart)
    y_ticks = ticks(y_min, y_max, 7)
    y_min, y_max = y_ticks[0], y_ticks[-1]
    width = WIDTH - LEFT - RIGHT
    start = top
    parts, top = _legend(chart.legend, top)
    parts.append(text_element(LEFT - 50, top + 10, chart.y_label, fill=QUIET_COLOUR))
    top += 24
    bottom = top + PLOT

    def point(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - x_min) / ((x_max - x_min) or 1.0) * width, bottom - (y - y_min) / (y_max - y_min) * PLOT

    for tick in y_ticks:
        y = point(x_min, tick)[1]
        parts.append(line_element(LEFT, y, LEFT + width, y, GRID_COLOUR))
        parts.append(text_element(LEFT - 8, y + 4, tick_text(tick), text_anchor="end", fill=QUIET_COLOUR))
    label_end = 0.0
    for tick, name in x_ticks(chart, 10):
        x = point(tick, y_min)[0]
        parts.append(line_element(x, bottom, x, bottom + 5, QUIET_COLOUR))
        half = LETTER * len(name) / 2
        if x - half > label_end:  # a label that would touch the one before it is left out
            label_end = x + half
            x = max(half, min(x, WIDTH - half))
            parts.append(text_element(x, bottom + 20, name, text_anchor="middle", fill=QUIET_COLOUR))
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        points = [point(x, y) for x, y in series.points]
        if series.mark:
            x = point(series.mark[0], y_min)[0]
            parts.append(line_element(x, top, x, bottom, QUIET_COLOUR, stroke_dasharray="4 4"))
            right_half = x > LEFT + width / 2
            parts.append(text_element(x + (-6 if right_half else 6), top + 12, series.mark[1], fill=QUIET_COLOUR,
                               text_anchor="end" if right_half else "start"))  # fmt: skip
        for x_value, low, high in series.intervals:
            x, *ends = point(x_value, low)[0], point(x_value, low)[1], point(x_value, high)[1]
            parts.append(line_element(x, min(ends[0], bottom), x, max(ends[1], top), colour))
            parts += [
                line_element(x - 4, y, x + 4, y, colour) for y in ends if top <= y <= bottom
            ]  # else it is cut off
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{coordinates}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) <= MAX_MARKED_POINTS:
            parts += [circle_element(x, y, 3.5, colour) for x, y in points]
    for mark in chart.points:
        x, y = point(mark.x, mark.y)
        colour = COLOURS[0] if mark.stands_out else COLOURS[5]
        if mark.low is not None and mark.high is not None:
            low, high = (point(mark.x, end)[1] for end in (mark.low, mark.high))
            parts.append(line_element(x, max(top, high), x, min(bottom, low), colour))
        parts.append(circle_element(x, y, 4 + 8 * math.sqrt(mark.size), colour))
        at_end = x > LEFT + width * 0.7
        name = f"{mark.letter} {mark.name}"
        parts.append(text_element(x - 14 if at_end else x + 14, y - 8, name, text_anchor="end" if at_end else "start",
                                  paint_order="stroke", stroke="#ffffff", stroke_width=4))  # fmt: skip
    parts.append(line_element(LEFT, top, LEFT, bottom, QUIET_COLOUR))
    parts.append(line_element(LEFT, bottom, LEFT + width, bottom, QUIET_COLOUR))
    parts.append(text_element(LEFT + width, bottom + 38, chart.x_label, text_anchor="end", fill=QUIET_COLOUR))
    return parts, bottom - start + 40.0


def _legend(names: Sequence[str], top: float) -> tuple[list[str], float]:
    """A dot and a name for each line, on as many rows as they need; and where they end."""
    parts, x, y = [], float(LEFT), top
    for number, name in enumerate(names):
        width = 40 + LETTER * len(name)
        if x > LEFT and x + width > WIDTH:
            x, y = float(LEFT), y + LINE - 6
        parts.append(circle_element(x + 5, y + 6, 5, COLOURS[number % len(COLOURS)]))
        parts.append(text_element(x + 15, y + 10, name))
        x += width
    return parts, y + LINE - 4 if names else y


def circle_element(x: float, y: float, radius: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def line_element(x0: float, y0: float, x1: float, y1: float, colour: str, **attributes: str) -> str:
    extra = _attributes(attributes)
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"{extra}/>'


def text_element(x: float, y: float, text: str, **attributes: str | int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{_attributes(attributes)}>{escape(sanitize_line(text))}</text>'


def _attributes(values: Mapping[str, str | int]) -> str:
    return "".join(f' {name.replace("_", "-")}="{value}"' for name, value in values.items())
