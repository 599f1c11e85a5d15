"""The graph of the history: what a column shows, where marks and times stand, and that unknown is never drawn as 0."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from gpubox.telemetry.history.values import HistoryBucket, MarkKind, StoredMark
from gpubox.tui.dashboard import graph
from gpubox.tui.dashboard.graph import (
    ZOOMS,
    StoredGraph,
    Zoom,
    bucket_columns,
    legend,
    mark_columns,
    span_of,
    stored_lines,
    tick_columns,
)
from gpubox.tui.styled_lines import StyledLine, cell_width

HOUR_ZOOM, DAY_ZOOM, MONTH_ZOOM = ZOOMS[1:]
NOW = 1_795_266_120.0
"""2026-11-21 13:02 UTC."""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def stored(zoom: Zoom, columns: int, tg: dict[int, float | None], marks: tuple[StoredMark, ...] = ()) -> StoredGraph:
    """A graph in which the stretches of ``tg`` were observed, the others not."""
    span = span_of(zoom, columns, NOW)
    buckets = []
    for index in range(span.count):
        observed = index in tg
        at = span.since + index * span.bucket_seconds
        buckets.append(HistoryBucket(at, tg.get(index), busy_share=0.5 if observed else None))
    return StoredGraph(zoom, span, NOW, tuple(buckets), marks)


def texts(lines: list[StyledLine]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@pytest.mark.parametrize("zoom", ZOOMS[1:], ids=lambda zoom: zoom.name)
@pytest.mark.parametrize("columns", [10, 37, 55, 60, 73, 113, 190])
def test_a_stretch_is_whole_minutes_and_the_whole_time_is_covered(zoom: Zoom, columns: int) -> None:
    for moment in (NOW, NOW + 1, NOW + 59.9, NOW + 3601):
        span = span_of(zoom, columns, moment)
        assert span.bucket_seconds % 60 == 0 and span.since % 60 == 0
        assert span.bucket_seconds <= 3600 or span.bucket_seconds % 3600 == 0
        assert span.count <= columns
        assert span.since <= moment - zoom.seconds + span.bucket_seconds and moment <= span.until
        assert span.until - moment < span.bucket_seconds


def test_columns_stand_still_while_time_goes_on() -> None:
    first = span_of(DAY_ZOOM, 60, NOW)
    assert all(span_of(DAY_ZOOM, 60, first.until - late) == first for late in (0, 1, 700, 1400))


def test_idle_and_unobserved_are_not_the_same_and_neither_is_drawn_as_a_value() -> None:
    # 30 stretches of two minutes: generated, idle (observed), not observed, generated.
    tg: dict[int, float | None] = dict.fromkeys(range(10), 40.0) | dict.fromkeys(range(10, 20)) | {29: 40.0}
    view = stored(HOUR_ZOOM, 30, tg)
    lines = stored_lines(view, 30 + graph.AXIS_CELLS, 5)
    foot = texts(lines)[2][graph.AXIS_CELLS :]
    # The two newest minutes may still be written: they are no gap.
    assert foot.startswith("██████████          ········") and foot[29] == "█"
    assert legend(lines, 60) == "· not observed"
    observed = stored_lines(stored(HOUR_ZOOM, 30, dict.fromkeys(range(30))), 30 + graph.AXIS_CELLS, 5)
    assert not legend(observed, 60)


def test_nothing_at_all_is_a_sentence() -> None:
    assert texts(stored_lines(stored(DAY_ZOOM, 60, {}), 65, 6)) == [
        "Nothing is recorded of the last 1 day. gpubox records while it is open."
    ]


@pytest.mark.parametrize("zoom", ZOOMS[1:], ids=lambda zoom: zoom.name)
@pytest.mark.parametrize("width", [15, 44, 60, 78, 120, 195])
def test_every_row_fits(zoom: Zoom, width: int) -> None:
    kinds: tuple[MarkKind, ...] = ("start", "switch", "stop", "crash", "engine", "driver")
    marks = tuple(
        StoredMark(NOW - zoom.seconds * share / 40, kinds[share % 6], "語 a profile" * (share % 3))
        for share in range(41)
    )
    view = stored(zoom, width - graph.AXIS_CELLS, {0: 12.0, 3: None, 4: 99_999.0}, marks)
    for height in (3, 4, 5, 8, 12, 20):
        lines = stored_lines(view, width, height)
        assert len(lines) == height
        assert all(cell_width(line) <= width for line in lines)


def test_pp_has_a_graph_of_its_own_where_there_is_room() -> None:
    span = span_of(HOUR_ZOOM, 60, NOW)
    buckets = tuple(HistoryBucket(span.since + 60 * i, 50.0, 800.0, 1.0) for i in range(60))
    view = StoredGraph(HOUR_ZOOM, span, NOW, buckets, ())
    high, low = texts(stored_lines(view, 65, 14)), texts(stored_lines(view, 65, 8))
    assert any(row.startswith(" pp │") for row in high) and any(row.startswith(" 1k ┤") for row in high)
    assert not any(row.startswith(" pp │") for row in low)


def test_a_crash_is_not_hidden_by_what_happened_in_the_same_column() -> None:
    marks = (
        StoredMark(NOW - 3000, "crash", "a"), StoredMark(NOW - 2990, "start", "a"),
        StoredMark(NOW - 1000, "switch", "b"), StoredMark(NOW - 990, "switch", "c"),
    )  # fmt: skip
    chosen = mark_columns(stored(DAY_ZOOM, 40, {}, marks), 40)
    assert [(mark.kind, mark.text) for _, mark in chosen] == [("crash", "a"), ("switch", "c")]


def test_the_times_below_the_axis_are_round_local_times_under_their_ticks() -> None:
    view = stored(DAY_ZOOM, 70, {0: 1.0})
    axis, times = texts(stored_lines(view, 75, 8))[-2:]
    for column, text in tick_columns(view, 70).items():
        assert axis[graph.AXIS_CELLS + column] == "┬"
        middle = (column + 0.5) / 70 * (view.span.until - view.span.since) + view.span.since
        off = (middle % 86_400 - int(text.removesuffix(":00")) * 3600) % 86_400
        assert min(off, 86_400 - off) <= 86_400 / 70
    assert {"00:00", "12:00"} <= set(times.split())


def test_days_of_a_clock_change_have_their_tick_at_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    view = stored(MONTH_ZOOM, 60, {})  # the clocks went back on 25 October 2026
    total = view.span.until - view.span.since
    for column, text in tick_columns(view, 60).items():
        begins = datetime.strptime(f"{text} 2026", "%d %b %Y").timestamp()
        assert column == int((begins - view.span.since) / total * 60)


def test_a_bucket_is_spread_over_the_columns_of_its_time() -> None:
    view = stored(HOUR_ZOOM, 50, {0: 10.0, 29: 20.0})
    assert view.span.count == 30
    columns = bucket_columns(view, 50)
    assert [bucket.tg for bucket in columns[:2] if bucket] == [10.0, 10.0]
    assert columns[-1] is not None and columns[-1].tg == 20.0
