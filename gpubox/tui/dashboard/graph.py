"""The throughput graph: an area over time with a fixed value axis, and a time axis with event marks below it. Pure.

First the graph itself, as it is for the last minutes: columns stand still between steps, so that a repaint changes only
the newest one. Then longer times from the history, whose rows are minutes: no column shows less than one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len

from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    fit_by_priority,
    merge_neighbours,
    sanitize_to_width,
    styled_line,
)

if TYPE_CHECKING:
    from gpubox.telemetry.history.values import HistoryBucket, StoredMark

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
LEGEND = {UNOBSERVED_GLYPH: "not observed", PREFILL_GLYPH: "reading a prompt", "▲": "start, switch", "✗": "crash",
          "◆": "other engine", "◇": "other driver", "▽": "stop"}  # fmt: skip
NOW = " now"
MIN_LABEL_CELLS = 4
"""With less room an event is drawn as its glyph alone."""
LABEL_GAP = 3
"""Free cells between an event and the label of the next one."""
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
PP_FROM_ROWS = 9
"""With so many rows the graph of pp stands below that of tg."""
TIMES_FROM_ROWS, TIMES_FROM_COLUMNS = 5, 30
"""With so much room the axis has a row of times."""
LATE_SECONDS = 150.0
"""A minute is written when it is over, so the newest ones are not known yet: that is no gap."""
LABEL_CELLS = 24
RANK = ("crash", "engine", "driver", "switch", "start", "stop")
"""Which mark is drawn where several are in one column: the first of these."""
NOTHING_RECORDED = "Nothing is recorded of the last {}. gpubox records while it is open."

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
    values: Sequence[float | None], top: float, height: int, prefill_columns: Collection[int], *,
    unobserved: Collection[int] = (), name: str = "", style: str = "$graph",
) -> list[StyledLine]:  # fmt: skip
    """``height`` rows of an area under ``values``, with the value axis at the left, and there ``name``.

    The lowest row marks ``prefill_columns`` and ``unobserved`` ones, so that a gap explains itself.
    """
    rows: list[StyledLine] = []
    columns = [_column_text(None if value is None else value / top, height) for value in values]
    for row in range(height):
        text = "".join([column[row] for column in columns])
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


@lru_cache(maxsize=1024)  # between two repaints one column changes
def _column_text(share: float | None, height: int) -> str:
    """The blocks of one column, from its top."""
    if share is None:
        return " " * height
    level = max(0.0, min(1.0, share)) * height * 8
    eighths = [round(level - floor) for floor in range((height - 1) * 8, -1, -8)]
    if level > 0:
        eighths[-1] = max(1, eighths[-1])  # a small value must not look like zero
    return "".join(BLOCKS[max(0, min(8, each))] for each in eighths)


def time_axis(width: int, seconds: float, events: Mapping[int, tuple[str, str]]) -> StyledLine:
    """A tick per minute, the ends of the range, and the events. ``events``: column -> (kind, label)."""
    ticks = {round((1 - minute * 60 / seconds) * width) for minute in range(1, int(seconds // 60) + 1)}
    return marked_axis(width, ticks, f"{seconds / 60:g} min", events)


def marked_axis(width: int, ticks: Collection[int], duration: str, events: Mapping[int, tuple[str, str]]) -> StyledLine:
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
    """Where the label of each event and its glyph stand, by event column. Newer events choose first; none overlap.

    A label stands before its glyph: there is room for the newest one, which is at the right edge.
    """
    occupied = [False] * width
    for start, text in [*_range_labels(width, duration, sorted(events)), *((column, " ") for column in events)]:
        occupied[start : start + len(text)] = [True] * len(text)
    placed: dict[int, PlacedText] = {}
    for column, (kind, label) in sorted(events.items(), reverse=True):
        glyph = EVENT_STYLES[kind][0]
        label = sanitize_to_width(label or kind, max(2 * MIN_LABEL_CELLS, width // 2))
        room = _room_left(occupied, column)
        has_room = room >= min(MIN_LABEL_CELLS, cell_len(label))
        text = f"{sanitize_to_width(label, room)} {glyph}" if has_room else glyph
        start = column - cell_len(text) + 1
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


# -- from the history -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Zoom:
    """A span of the  ``poll_seconds``: how often it is read while it is on the screen."""

    name: str
    seconds: float
    poll_seconds: float
    tick_seconds: tuple[float, ...]
    """Distances of the ticks that may be used, the smallest first."""
    tick_form: str
    """For ``strftime``."""


LIVE = 0
"""Index of the zoom that is drawn from the readings of this screen, and never from the history."""
ZOOMS = (
    Zoom("5 min", 300.0, math.inf, (), ""),
    Zoom("1 h", HOUR, 5.0, (5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE), "%H:%M"),
    Zoom("1 day", DAY, 20.0, (HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR), "%H:%M"),
    Zoom("30 days", 30 * DAY, 60.0, (DAY, 2 * DAY, 5 * DAY, 10 * DAY, 15 * DAY), "%d %b"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """What is read for a zoom: ``count`` equal stretches from ``since`` on. Unix seconds."""

    since: float
    bucket_seconds: float
    count: int

    @property
    def until(self) -> float:
        return self.since + self.bucket_seconds * self.count


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """What the history has for one zoom."""

    zoom: Zoom
    span: Span
    read_at: float
    buckets: tuple[HistoryBucket, ...]
    marks: tuple[StoredMark, ...]


def span_of(zoom: Zoom, columns: int, now: float) -> Span:
    """The stretches for ``columns``: whole minutes, above an hour whole hours. They stand still while time goes on."""
    seconds = math.ceil(zoom.seconds / MINUTE / max(1, columns)) * MINUTE
    if seconds > HOUR:
        seconds = math.ceil(seconds / HOUR) * HOUR
    until = math.ceil(now / seconds) * seconds
    count = math.ceil(zoom.seconds / seconds)
    return Span(until - count * seconds, seconds, count)


def stored_lines(stored: StoredGraph, width: int, height: int) -> list[StyledLine]:
    """tg, pp if there is room, and the time axis: ``height`` rows in all, ``width`` cells wide."""
    columns = width - AXIS_CELLS
    buckets = bucket_columns(stored, columns)
    if not any(bucket and is_observed(bucket) for bucket in buckets) and not stored.marks:
        return [styled_line((NOTHING_RECORDED.format(stored.zoom.name), QUIET))]
    has_times = height >= TIMES_FROM_ROWS and columns >= TIMES_FROM_COLUMNS
    rows = height - 1 - has_times
    pp_rows = max(2, rows // 3) if rows >= PP_FROM_ROWS else 0
    tg, pp = [b.tg if b else None for b in buckets], [b.pp if b else None for b in buckets]
    reading = {c for c in range(columns) if tg[c] is None and pp[c] is not None} if not pp_rows else set()
    gaps = gap_columns(stored, buckets)
    lines = area_graph(tg, axis_top(_peak(tg)), rows - pp_rows, reading, unobserved=gaps, name="tg")
    if pp_rows:
        top = axis_top(_peak(pp))
        lines += area_graph(pp, top, pp_rows, (), unobserved=gaps, name="pp", style="$graph-pp")
    ticks = tick_columns(stored, columns)
    events = {column: (m.kind, sanitize_to_width(m.text, LABEL_CELLS)) for column, m in mark_columns(stored, columns)}
    lines.append(marked_axis(columns, ticks, "" if has_times else stored.zoom.name, events))
    if has_times:
        lines.append(tick_labels(columns, ticks))
    return lines


def legend(lines: Sequence[StyledLine], width: int) -> str:
    """What the marks mean that are drawn in ``lines``, as far as there is room."""
    drawn = "".join(text for line in lines for text, _ in line)
    parts = [styled_line(f"{glyph} {words}") for glyph, words in LEGEND.items() if glyph in drawn]
    line = fit_by_priority([(-at, part) for at, part in enumerate(parts)], width, "  ")
    return "".join(text for text, _ in line)


def is_observed(bucket: HistoryBucket) -> bool:
    """Whether gpubox looked in that time. A server that idled was observed, too."""
    return bucket.busy_share is not None


def bucket_columns(stored: StoredGraph, columns: int) -> list[HistoryBucket | None]:
    """The bucket that each column shows; None where the history has none."""
    span = stored.span
    by_place = {round((bucket.at - span.since) / span.bucket_seconds): bucket for bucket in stored.buckets}
    return [by_place.get(int((column + 0.5) * span.count / columns)) for column in range(columns)]


def gap_columns(stored: StoredGraph, buckets: Sequence[HistoryBucket | None]) -> frozenset[int]:
    """The columns of the time in which nothing was observed."""
    step = (stored.span.until - stored.span.since) / max(1, len(buckets))
    return frozenset(
        column
        for column, bucket in enumerate(buckets)
        if not (bucket and is_observed(bucket))
        and stored.span.since + (column + 1) * step < stored.read_at - max(LATE_SECONDS, stored.span.bucket_seconds)
    )


def mark_columns(stored: StoredGraph, columns: int) -> list[tuple[int, StoredMark]]:
    """A mark for each column that has any: the most important one, and the newest of these."""
    chosen: dict[int, StoredMark] = {}
    for mark in sorted(stored.marks, key=lambda mark: mark.at):
        column = _column(mark.at, stored.span, columns)
        if column is None or mark.kind not in RANK:
            continue
        other = chosen.get(column)
        if other is None or RANK.index(mark.kind) <= RANK.index(other.kind):
            chosen[column] = mark
    return sorted(chosen.items())


def tick_columns(stored: StoredGraph, columns: int) -> dict[int, str]:
    """Column and text of each tick, as close to each other as their texts allow. In the owner's time zone."""
    zoom, span = stored.zoom, stored.span
    cells = len(f"{datetime(2026, 11, 22):{zoom.tick_form}}") + 3
    total = span.until - span.since
    step = next((s for s in zoom.tick_seconds if s * columns / total >= cells), zoom.tick_seconds[-1])
    ticks: dict[int, str] = {}
    for moment in _tick_moments(span, step):
        column = _column(moment.timestamp(), span, columns)
        if column is not None:
            ticks[column] = f"{moment:{zoom.tick_form}}"
    return ticks


def _tick_moments(span: Span, step: float) -> Iterator[datetime]:
    """Round local times within the span, the newest first."""
    newest = datetime.fromtimestamp(span.until)
    midnight = newest.replace(hour=0, minute=0, second=0, microsecond=0)
    if step >= DAY:  # by the calendar: a day may have 23 hours
        for days in range(0, math.ceil((span.until - span.since) / DAY) + 1, int(step // DAY)):
            yield midnight - timedelta(days=days)
        return
    at = midnight.timestamp() + (span.until - midnight.timestamp()) // step * step
    while at >= span.since:
        yield datetime.fromtimestamp(at)
        at -= step


def _column(at: float, span: Span, columns: int) -> int | None:
    if not span.since <= at <= span.until or columns <= 0:
        return None
    return min(columns - 1, int((at - span.since) / (span.until - span.since) * columns))


def _peak(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
