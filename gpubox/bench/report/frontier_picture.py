"""The frontier as a chart: tg to the right, quality upwards (less is lower), a letter for each point. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubox import units
from gpubox.bench.report.chart import tick_text, ticks
from gpubox.bench.report.formatting import DOUBTFUL
from gpubox.bench.report.frontier import Frontier, FrontierPoint, frontier_cells, frontier_notes
from gpubox.bench.report.plot import Canvas, StyledRow, x_axis_rows, y_axis_rows
from gpubox.bench.report.report_rows import table_rows, wrapped_rows
from gpubox.bench.report.svg import (
    COLOURS,
    GRID_COLOUR,
    QUIET_COLOUR,
    TEXT_COLOUR,
    circle_element,
    line_element,
    svg_document,
    text_element,
)

HEIGHT = 14
_WIDTH, _LEFT, _RIGHT, _TOP, _PLOT = 860, 80, 40, 86, 360
_TEXT_ROW = 20


def frontier_rows(frontier: Frontier, width: int | None, *, plots: bool = True) -> Iterator[StyledRow]:
    """Title, chart, table and notes for a terminal."""
    yield ((frontier_title(frontier), "head"),)
    if plots and len(frontier.drawn) > 1:
        yield from _plot(frontier, min(width or 100, 110))
    yield ()
    header, *rows = frontier_cells(frontier)
    if width is not None and width < 100:  # the interval of the quality and the file are in the other forms
        header, rows = _narrow(header), [_narrow(row) for row in rows]
    yield from table_rows([header, *rows])
    yield ()
    for note in frontier_notes(frontier):
        yield from wrapped_rows(note, "doubt" if DOUBTFUL in note else "", width)


def frontier_svg(frontier: Frontier) -> str:
    """The same as an SVG file."""
    parts = [text_element(30, 32, frontier_title(frontier), font_size=17, font_weight="600")]
    y = 60.0
    if len(frontier.drawn) > 1:
        parts += _svg_plot(frontier)
        y = _TOP + _PLOT + 76.0
    columns = (30, 56, 290, 385, 520, 600, 680, 765)
    for number, cells in enumerate(frontier_cells(frontier)):
        for x, cell in zip(columns, cells, strict=True):
            text = cell if len(cell) <= 34 else f"{cell[:33]}…"
            parts.append(text_element(x, y, text, fill=QUIET_COLOUR if number == 0 else TEXT_COLOUR, font_size=12))
        y += _TEXT_ROW
    y += 8
    for row in (row for note in frontier_notes(frontier) for row in wrapped_rows(note, "", 120)):
        parts.append(text_element(30, y, "".join(text for text, _ in row), fill=QUIET_COLOUR))
        y += _TEXT_ROW
    return svg_document(_WIDTH, y + 10, parts)


def frontier_title(frontier: Frontier) -> str:
    """``Quality against speed: KL from q8``."""
    return f"Quality against speed: {frontier.measure} from {frontier.reference}"


def _narrow(cells: Sequence[str]) -> tuple[str, ...]:
    return (*cells[:3], *cells[4:6], cells[7])


def _ranges(frontier: Frontier) -> tuple[list[float], list[float]]:
    """The ticks of both axes: they cover all points with some room."""
    speeds = [point.tg.value for _, point in frontier.drawn if point.tg]
    qualities = [point.quality.value for _, point in frontier.drawn]
    spread = (max(speeds) - min(speeds)) or max(speeds) or 1.0
    low = 0.0 if min(speeds) < max(speeds) / 2 else max(0.0, min(speeds) - spread / 8)
    least = min(qualities)
    bottom = 0.0 if least < max(qualities) / 2 else least * 0.98
    top = max(qualities)
    return ticks(low, max(speeds) + spread / 8, 8), ticks(bottom, top + (top - bottom or 1.0) / 10, 7)


def _path(frontier: Frontier) -> list[FrontierPoint]:
    """The points of the frontier by speed."""
    own = [point for _, point in frontier.drawn if point.on_frontier]
    return sorted(own, key=lambda point: (point.tg.value if point.tg else math.nan, point.quality.value))


def _plot(frontier: Frontier, width: int) -> Iterator[StyledRow]:
    x_ticks, y_ticks = _ranges(frontier)
    margin = max(len(tick_text(tick)) for tick in y_ticks) + 1
    columns = max(10, width - margin - 3)
    left, right, low, high = x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1]
    scale = (columns - 1) / (right - left)

    def place(point: FrontierPoint) -> tuple[float, float]:
        assert point.tg is not None
        return (point.tg.value - left) * scale, (high - point.quality.value) / (high - low) * (HEIGHT - 1)

    canvas = Canvas(columns, HEIGHT)
    path = [(2 * x, 4 * y + 1) for x, y in map(place, _path(frontier))]
    if len(path) > 1:
        canvas.draw(path, 0, marked=False)
    cells = [canvas.row(y) for y in range(HEIGHT)]
    for letter, point in frontier.drawn:
        x, y = (round(value) for value in place(point))
        taken = cells[y][x][0].isalpha()
        cells[y][min(columns - 1, x + 1) if taken else x] = (letter, "good" if point.on_frontier else "quiet")
    unit = f", {frontier.unit}" if frontier.unit else ""
    yield ((f"{'':{margin}} {frontier.measure}{unit} (lower is better)", "quiet"),)
    yield from y_axis_rows(cells, y_ticks, margin)
    yield from x_axis_rows([(tick, tick_text(tick)) for tick in x_ticks], columns, margin + 1, left, scale)
    yield ((f"{'':{margin + 2}}tg, tok/s", "quiet"),)


def _svg_plot(frontier: Frontier) -> list[str]:
    x_ticks, y_ticks = _ranges(frontier)
    bottom, width = _TOP + _PLOT, _WIDTH - _LEFT - _RIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * width,
            bottom - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * _PLOT,
        )

    unit = f", {frontier.unit}" if frontier.unit else ""
    label = f"{frontier.measure}{unit} (lower is better)"
    parts = [text_element(30, _TOP - 18, label, fill=QUIET_COLOUR)]
    for tick in y_ticks:
        y = place(x_ticks[0], tick)[1]
        parts.append(line_element(_LEFT, y, _LEFT + width, y, GRID_COLOUR))
        parts.append(text_element(_LEFT - 8, y + 4, tick_text(tick), text_anchor="end", fill=QUIET_COLOUR))
    for tick in x_ticks:
        x = place(tick, y_ticks[0])[0]
        parts.append(line_element(x, bottom, x, bottom + 5, QUIET_COLOUR))
        parts.append(text_element(x, bottom + 20, tick_text(tick), text_anchor="middle", fill=QUIET_COLOUR))
    parts.append(text_element(_LEFT + width, bottom + 40, "tg, tok/s", text_anchor="end", fill=QUIET_COLOUR))
    path = [place(point.tg.value, point.quality.value) for point in _path(frontier) if point.tg]
    if len(path) > 1:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
    sizes = [point.vram_bytes for _, point in frontier.drawn if point.vram_bytes]
    for letter, point in frontier.drawn:
        assert point.tg is not None
        x, y = place(point.tg.value, point.quality.value)
        colour = COLOURS[0] if point.on_frontier else COLOURS[5]
        if point.quality.low is not None and point.quality.high is not None:
            low, high = (place(point.tg.value, end)[1] for end in (point.quality.low, point.quality.high))
            parts.append(line_element(x, max(_TOP, high), x, min(bottom, low), colour))
        radius = 4 + 8 * math.sqrt((point.vram_bytes or 0) / max(sizes)) if sizes and point.vram_bytes else 5
        parts.append(circle_element(x, y, round(radius, 1), colour))
        vram = f", {units.memory(point.vram_bytes)}" if point.vram_bytes else ""
        end = x > _LEFT + width * 0.7
        side: dict[str, str | int] = {"paint_order": "stroke", "stroke": "#ffffff", "stroke_width": 4}
        if end:
            side["text_anchor"] = "end"
        offset = -(radius + 6) if end else radius + 6
        parts.append(text_element(x + offset, y - 8, f"{letter} {point.name}{vram}", **side))
    parts.append(line_element(_LEFT, _TOP, _LEFT, bottom, QUIET_COLOUR))
    parts.append(line_element(_LEFT, bottom, _LEFT + width, bottom, QUIET_COLOUR))
    if sizes:
        parts.append(text_element(_LEFT, bottom + 40, "the larger a point, the more VRAM", fill=QUIET_COLOUR))
    return parts
