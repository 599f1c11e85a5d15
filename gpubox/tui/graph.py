"""A history graph with a fixed axis, time marks and events; its columns stand still between steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from gpubox.tui.cells import QUIET, Line, line, safe

BLOCKS = " ▁▂▃▄▅▆▇█"
READ = "░"
"""A prompt was read in this column."""
NICE = (1, 2, 5)
AXIS_CELLS = 5
"""The numbers of the axis and its line."""
MARKS = {"switch": ("▲", "$primary"), "start": ("▲", "$primary"), "stop": ("▽", "$quiet"), "crash": ("✗", "$error"),
         "oom": ("✗", "$error")}  # fmt: skip


def nice_top(peak: float | None) -> int:
    """The top of the axis: 10, 20, 50, 100, 200 ..., never below the highest value."""
    if not peak or peak <= 10 or not math.isfinite(peak):
        return 10
    power = 10 ** math.floor(math.log10(peak))
    return next(int(step * power) for step in (*NICE, 10) if step * power >= peak)


def step_now(now: float, seconds: float, width: int) -> float:
    """The right edge of the graph: it moves by whole columns, so that what was drawn is not drawn again and again."""
    step = seconds / max(1, width)
    return math.ceil(now / step) * step


def graph(
    values: Sequence[float | None], top: float, height: int, reading: Collection[int] = frozenset[int]()
) -> list[Line]:
    """``height`` rows of an area under ``values``, with the axis at its left. ``reading``: columns in which a prompt
    was read and nothing generated; they have a foot of their own colour, so that a gap says why it is one."""
    rows: list[Line] = []
    levels = [None if value is None else max(0.0, min(1.0, value / top)) * height * 8 for value in values]
    for row in range(height):
        floor = (height - 1 - row) * 8
        text = "".join(_cell(level, floor) for level in levels)
        label = f"{top:g}" if row == 0 else f"{top / 2:g}" if height >= 4 and row == height // 2 else ""
        axis = f"{_short(label):>{AXIS_CELLS - 2}} ┤" if label else " " * (AXIS_CELLS - 1) + "│"
        area = [(text, "$graph")] if row < height - 1 or not reading else _foot(text, reading)
        rows.append(line((axis, QUIET), *area))
    return rows


def _foot(text: str, reading: Collection[int]) -> list[tuple[str, str]]:
    """The lowest row, with the columns that read a prompt in their own colour."""
    marked = ((READ, "$accent") if at in reading and char == " " else (char, "$graph") for at, char in enumerate(text))
    runs = groupby(marked, key=lambda cell: cell[1])
    return [("".join(char for char, _ in run), style) for style, run in runs]


def _short(label: str) -> str:
    return f"{int(label) // 1000}k" if len(label) > AXIS_CELLS - 2 and label.isdigit() else label


def _cell(level: float | None, floor: int) -> str:
    if level is None:
        return " "
    eighths = round(level - floor)
    if floor == 0 and level > 0:
        eighths = max(1, eighths)  # little is not nothing
    return BLOCKS[max(0, min(8, eighths))]


def time_axis(width: int, seconds: float, marks: Mapping[int, tuple[str, str]]) -> Line:
    """The row under the graph: when it was, and what happened. ``marks``: column -> kind and words."""
    cells = ["─"] * width
    styles = [QUIET] * width
    for minute in range(1, int(seconds // 60) + 1):
        at = round((1 - minute * 60 / seconds) * width)
        if 0 <= at < width:
            cells[at] = "┬"
    _write(cells, styles, 0, f"{seconds / 60:g} min ago ", QUIET)
    _write(cells, styles, width - 4, " now", QUIET)
    for column, (kind, words) in sorted(marks.items()):
        glyph, colour = MARKS[kind]
        room = max(1, width // 4)
        text = safe(words or kind, room)
        if column + len(text) + 2 <= width:
            _write(cells, styles, column, f"{glyph} {text}", colour)
        else:  # at the right edge its words stand before it
            _write(cells, styles, column - len(text) - 1, f"{text} {glyph}" + " " * (width - column - 1), colour)
    found: list[tuple[str, str]] = [("0".rjust(AXIS_CELLS - 2) + " └", QUIET)]
    for char, style in zip(cells, styles, strict=True):
        if found[-1][1] == style:
            found[-1] = (found[-1][0] + char, style)
        else:
            found.append((char, style))
    return line(*found)


def _write(cells: list[str], styles: list[str], at: int, text: str, style: str) -> None:
    for offset, char in enumerate(text):
        if 0 <= at + offset < len(cells):
            cells[at + offset], styles[at + offset] = char, style
