"""The throughput graph: an area over time with a fixed value axis, and a time axis with event marks below it.

Used for the last minutes (``throughput``) and for the history (``stored_graph``). Columns stand still between steps, so
that a repaint changes only the newest one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from rich.cells import cell_len

from gpubox.tui.styled_lines import QUIET, StyledLine, merge_neighbours, sanitize_to_width, styled_line

AXIS_CELLS = 5
"""Width of the value axis at the left: number, space and line."""
BLOCKS = " ▁▂▃▄▅▆▇█"
PREFILL_GLYPH = "░"
"""Drawn in columns in which a prompt was read and no token generated."""
EVENT_STYLES = {
    "switch": ("▲", "$primary"), "start": ("▲", "$primary"), "stop": ("▽", "$quiet"), "crash": ("✗", "$error"),
    "engine": ("◆", "$secondary"), "driver": ("◇", "$secondary"),
}  # fmt: skip
UNOBSERVED_GLYPH = "·"
"""Drawn in columns of the time in which nothing was observed: unknown, not 0."""
NOW = " now"
MIN_LABEL_CELLS = 4
"""With less room an event is drawn as its glyph alone."""
LABEL_GAP = 3
"""Free cells between an event and a label that belongs to the glyph at its right."""

PlacedText = tuple[int, str]
"""Column and text."""


def axis_top(peak: float | None) -> int:
    """The top of the value axis: 10, 20, 50, 100, 200 ..., at least ``peak``."""
    if not peak or peak <= 10 or not math.isfinite(peak):
        return 10
    power = 10 ** math.floor(math.log10(peak))
    return next(int(step * power) for step in (1, 2, 5, 10) if step * power >= peak)


def right_edge(now: float, seconds: float, columns: int) -> float:
    """The time at the right edge of the graph: ``now``, rounded up to a whole column."""
    step = seconds / max(1, columns)
    return math.ceil(now / step) * step


def area_graph(
    values: Sequence[float | None],
    top: float,
    height: int,
    prefill_columns: Collection[int],
    *,
    unobserved: Collection[int] = (),
    name: str = "",
    style: str = "$graph",
) -> list[StyledLine]:
    """``height`` rows of an area under ``values``, with the value axis at the left, and there ``name``.

    The lowest row marks ``prefill_columns`` and ``unobserved`` ones, so that a gap explains itself.
    """
    rows: list[StyledLine] = []
    levels = [None if value is None else max(0.0, min(1.0, value / top)) * height * 8 for value in values]
    for row in range(height):
        floor = (height - 1 - row) * 8
        text = "".join(_block(level, floor) for level in levels)
        label = f"{top:.0f}" if row == 0 else f"{top / 2:.0f}" if height >= 4 and row == height // 2 else ""
        if len(label) > AXIS_CELLS - 2 and label.isdigit():
            label = f"{int(label) // 1000}k" if len(label) <= 6 else f"{int(label) // 1_000_000}M"
        label = label or (name if row == 1 else "")
        is_value = label != name or not name
        axis = f"{f'{label:>{AXIS_CELLS - 2}} '[: AXIS_CELLS - 1]}{'┤' if label and is_value else '│'}"
        area: StyledLine = ((text, style),)
        if row == height - 1 and (prefill_columns or unobserved):
            area = merge_neighbours(
                (char, style) if char != " "
                else (PREFILL_GLYPH, "$accent") if column in prefill_columns
                else (UNOBSERVED_GLYPH, QUIET) if column in unobserved
                else (char, style)
                for column, char in enumerate(text)
            )  # fmt: skip
        rows.append(styled_line((axis, QUIET), *area))
    return rows


def _block(level: float | None, floor: int) -> str:
    if level is None:
        return " "
    eighths = round(level - floor)
    if floor == 0 and level > 0:
        eighths = max(1, eighths)  # a small value must not look like zero
    return BLOCKS[max(0, min(8, eighths))]


def time_axis(width: int, seconds: float, events: Mapping[int, tuple[str, str]]) -> StyledLine:
    """A tick per minute, the ends of the range, and the events. ``events``: column -> (kind, label)."""
    ticks = {round((1 - minute * 60 / seconds) * width) for minute in range(1, int(seconds // 60) + 1)}
    return marked_axis(width, ticks, f"{seconds / 60:g} min", events)


def marked_axis(
    width: int,
    ticks: Collection[int],
    duration: str,
    events: Mapping[int, tuple[str, str]],
) -> StyledLine:
    """The axis with its ticks and events. The ends of the range say ``duration``; empty: they say nothing."""
    cells = ["─"] * width
    styles = [QUIET] * width
    for column in ticks:
        if 0 <= column < width:
            cells[column] = "┬"
    for start, text in _range_labels(width, duration, sorted(events)):
        _write(cells, styles, start, text, QUIET)
    for column, (start, text) in place_events(width, duration, events).items():
        _write(cells, styles, start, text, EVENT_STYLES[events[column][0]][1])
    axis = merge_neighbours(zip(cells, styles, strict=True))
    return styled_line(("0".rjust(AXIS_CELLS - 2) + " └", QUIET), *axis)


def tick_labels(width: int, ticks: Mapping[int, str]) -> StyledLine:
    """The row below the axis: the text of each tick, centred under it; one without room is left out."""
    cells, free_from = [" "] * width, 0
    for column, text in sorted(ticks.items()):
        start = min(column - len(text) // 2, width - len(text))
        if start >= free_from:
            cells[start : start + len(text)] = text
            free_from = start + len(text) + 1
    return styled_line((" " * AXIS_CELLS + "".join(cells).rstrip(), QUIET))


def place_events(width: int, duration: str, events: Mapping[int, tuple[str, str]]) -> dict[int, PlacedText]:
    """Where the glyph and label of each event stand, by event column. Newer events choose first; none overlap."""
    occupied = [False] * width
    for start, text in [*_range_labels(width, duration, sorted(events)), *((column, " ") for column in events)]:
        occupied[start : start + len(text)] = [True] * len(text)
    placed: dict[int, PlacedText] = {}
    for column, (kind, label) in sorted(events.items(), reverse=True):
        glyph = EVENT_STYLES[kind][0]
        label = sanitize_to_width(label or kind, max(2 * MIN_LABEL_CELLS, width // 2))
        right, left = _room_right(occupied, column), _room_left(occupied, column)
        at_right = cell_len(label) <= right or (cell_len(label) > left and right >= left)
        if (room := right if at_right else left) >= min(MIN_LABEL_CELLS, cell_len(label)):
            label = sanitize_to_width(label, room)
            text = f"{glyph} {label}" if at_right else f"{label} {glyph}"
        else:
            text = glyph
        start = column if at_right else column - cell_len(text) + 1
        occupied[start : start + cell_len(text)] = [True] * cell_len(text)
        placed[column] = (start, text)
    return placed


def _range_labels(width: int, duration: str, columns: Sequence[int]) -> list[PlacedText]:
    """The labels of both ends, as far as the events in ``columns`` leave room for them."""
    if not duration:
        return []
    first, last = (columns[0], columns[-1]) if columns else (width, -1)
    room = min(first, width - len(NOW))
    start = next((text for text in (f"{duration} ago ", f"{duration} ") if len(text) <= room), "")
    labels = [(0, start)] if start else []
    if last < width - len(NOW) - 1 and len(start) <= width - len(NOW):
        labels.append((width - len(NOW), NOW))
    return labels


def _room_right(occupied: Sequence[bool], column: int) -> int:
    """Cells for a label at the right of its glyph, with a space before it and one after it."""
    end = next((at for at in range(column + 1, len(occupied)) if occupied[at]), len(occupied))
    return end - column - 2 - (end < len(occupied))


def _room_left(occupied: Sequence[bool], column: int) -> int:
    """Cells for a label at the left of its glyph, with a space between them."""
    start = next((at for at in range(column - 1, -1, -1) if occupied[at]), -1)
    return column - 1 - (start + 1) - (LABEL_GAP if start >= 0 else 0)


def _write(cells: list[str], styles: list[str], start: int, text: str, style: str) -> None:
    for char in text:
        size = cell_len(char)
        if start + size <= len(cells):
            cells[start : start + size], styles[start : start + size] = [char, ""][:size], [style] * size
        start += size
