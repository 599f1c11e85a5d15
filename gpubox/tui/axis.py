"""The row under the graph: when it was, and what happened then. Labels are whole, cut with …, or left out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.cells import cell_len

from gpubox.tui.styled_lines import QUIET, StyledLine, sanitize_to_width, styled_line

AXIS_CELLS = 5
"""The numbers of the axis and its line, at the left."""
MARKS = {"switch": ("▲", "$primary"), "start": ("▲", "$primary"), "stop": ("▽", "$quiet"), "crash": ("✗", "$error"),
         "oom": ("✗", "$error")}  # fmt: skip
NOW = " now"
LEAST = 4
"""Cells of a label that is worth being read; with less room the glyph stands alone."""
APART = 3
"""Cells between words that stand before their glyph and the mark before them: whose they are must be plain."""

Placed = tuple[int, str]
"""Column and text."""


def time_axis(width: int, seconds: float, marks: Mapping[int, tuple[str, str]]) -> StyledLine:
    """``marks``: column -> kind and words."""
    cells = ["─"] * width
    styles = [QUIET] * width
    for minute in range(1, int(seconds // 60) + 1):
        at = round((1 - minute * 60 / seconds) * width)
        if 0 <= at < width:
            cells[at] = "┬"
    for at, text in _ends(width, f"{seconds / 60:g} min", sorted(marks)):
        _write(cells, styles, at, text, QUIET)
    for column, (at, text) in place(width, f"{seconds / 60:g} min", marks).items():
        _write(cells, styles, at, text, MARKS[marks[column][0]][1])
    runs = groupby(zip(cells, styles, strict=True), key=lambda cell: cell[1])
    axis = [("".join(char for char, _ in run), style) for style, run in runs]
    return styled_line(("0".rjust(AXIS_CELLS - 2) + " └", QUIET), *axis)


def place(width: int, ago: str, marks: Mapping[int, tuple[str, str]]) -> dict[int, Placed]:
    """Where each mark's glyph and words stand, by its column: the newest choose first, and none touches another."""
    taken = [False] * width
    for at, text in [*_ends(width, ago, sorted(marks)), *((column, " ") for column in marks)]:
        taken[at : at + len(text)] = [True] * len(text)
    placed: dict[int, Placed] = {}
    for column, (kind, words) in sorted(marks.items(), reverse=True):
        glyph = MARKS[kind][0]
        said = sanitize_to_width(words or kind, max(2 * LEAST, width // 2))
        after, before = _room_after(taken, column), _room_before(taken, column)
        at_right = cell_len(said) <= after or (cell_len(said) > before and after >= before)
        if (room := after if at_right else before) >= min(LEAST, cell_len(said)):
            said = sanitize_to_width(said, room)
            text = f"{glyph} {said}" if at_right else f"{said} {glyph}"
        else:
            text = glyph
        at = column if at_right else column - cell_len(text) + 1
        taken[at : at + cell_len(text)] = [True] * cell_len(text)
        placed[column] = (at, text)
    return placed


def _ends(width: int, ago: str, columns: Sequence[int]) -> list[Placed]:
    """What stands at both ends: as much as no mark has the place of."""
    first, last = (columns[0], columns[-1]) if columns else (width, -1)
    left = next((text for text in (f"{ago} ago ", f"{ago} ") if len(text) <= min(first, width - len(NOW))), "")
    found = [(0, left)] if left else []
    if last < width - len(NOW) - 1 and len(left) <= width - len(NOW):
        found.append((width - len(NOW), NOW))
    return found


def _room_after(taken: Sequence[bool], column: int) -> int:
    """Cells for words behind the glyph, a space before them and one after them."""
    end = next((at for at in range(column + 1, len(taken)) if taken[at]), len(taken))
    return end - column - 2 - (end < len(taken))


def _room_before(taken: Sequence[bool], column: int) -> int:
    """Cells for words before the glyph, a space between them."""
    start = next((at for at in range(column - 1, -1, -1) if taken[at]), -1)
    return column - 1 - (start + 1) - (APART if start >= 0 else 0)


def _write(cells: list[str], styles: list[str], at: int, text: str, style: str) -> None:
    for char in text:
        size = cell_len(char)
        if at + size <= len(cells):
            cells[at : at + size], styles[at : at + size] = [char, ""][:size], [style] * size
        at += size
