"""The throughput graph of longer times, from the history: its zooms, its columns, its time axis. Pure.

The history has one row for each minute, so a column of the graph never shows less than a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gpubox.tui.dashboard import graph
from gpubox.tui.styled_lines import QUIET, StyledLine, sanitize_to_width, styled_line

if TYPE_CHECKING:
    from gpubox.telemetry.history.values import HistoryBucket, StoredMark

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


@dataclass(frozen=True, slots=True)
class Zoom:
    """A span of the graph. ``poll_seconds``: how often it is read while it is on the screen."""

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
    columns = width - graph.AXIS_CELLS
    buckets = bucket_columns(stored, columns)
    if not any(bucket and is_observed(bucket) for bucket in buckets) and not stored.marks:
        return [styled_line((NOTHING_RECORDED.format(stored.zoom.name), QUIET))]
    has_times = height >= TIMES_FROM_ROWS and columns >= TIMES_FROM_COLUMNS
    rows = height - 1 - has_times
    pp_rows = max(2, rows // 3) if rows >= PP_FROM_ROWS else 0
    tg, pp = [b.tg if b else None for b in buckets], [b.pp if b else None for b in buckets]
    reading = {c for c in range(columns) if tg[c] is None and pp[c] is not None} if not pp_rows else set()
    gaps = gap_columns(stored, buckets)
    lines = graph.area_graph(tg, graph.axis_top(_peak(tg)), rows - pp_rows, reading, unobserved=gaps, name="tg")
    if pp_rows:
        top = graph.axis_top(_peak(pp))
        lines += graph.area_graph(pp, top, pp_rows, (), unobserved=gaps, name="pp", style="$graph-pp")
    ticks = tick_columns(stored, columns)
    events = {column: (m.kind, sanitize_to_width(m.text, LABEL_CELLS)) for column, m in mark_columns(stored, columns)}
    lines.append(graph.marked_axis(columns, ticks, "" if has_times else stored.zoom.name, events))
    if has_times:
        lines.append(graph.tick_labels(columns, ticks))
    return lines


def has_gaps(stored: StoredGraph) -> bool:
    """Whether there was time in which nothing was observed."""
    return bool(gap_columns(stored, bucket_columns(stored, stored.span.count)))


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
