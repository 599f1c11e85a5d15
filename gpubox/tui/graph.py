"""A history graph with a fixed axis; its columns stand still between steps. The row under it is ``axis``. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import groupby

from gpubox.tui.axis import AXIS_CELLS
from gpubox.tui.styled_lines import QUIET, StyledLine, styled_line

BLOCKS = " ▁▂▃▄▅▆▇█"
READ = "░"
"""A prompt was read in this column."""
NICE = (1, 2, 5)


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
) -> list[StyledLine]:
    """``height`` rows of an area under ``values``, with the axis at its left. ``reading``: columns in which a prompt
    was read and nothing generated; they have a foot of their own colour, so that a gap says why it is one."""
    rows: list[StyledLine] = []
    levels = [None if value is None else max(0.0, min(1.0, value / top)) * height * 8 for value in values]
    for row in range(height):
        floor = (height - 1 - row) * 8
        text = "".join(_cell(level, floor) for level in levels)
        label = f"{top:g}" if row == 0 else f"{top / 2:g}" if height >= 4 and row == height // 2 else ""
        axis = f"{_short(label):>{AXIS_CELLS - 2}} ┤" if label else " " * (AXIS_CELLS - 1) + "│"
        area = [(text, "$graph")] if row < height - 1 or not reading else _foot(text, reading)
        rows.append(styled_line((axis, QUIET), *area))
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
