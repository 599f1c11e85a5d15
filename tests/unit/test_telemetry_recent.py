"""The ring buffer behind the graph: columns, marks, and a clock that jumps."""

from __future__ import annotations

import pytest

from gpubox.hardware.gpu import DriverReading
from gpubox.server.status import ServerStatus
from gpubox.telemetry.recent import KEEP_SECONDS, MAX_POINTS, History
from gpubox.telemetry.snapshot import Offload, Snapshot, Throughput, Totals


def snapshot(
    at: float,
    tg: float | None = None,
    *,
    state: str = "answering",
    pp: float | None = None,
    server: str = "ready",
    profile: str | None = "a",
    pid: int | None = 1,
    message: str = "",
) -> Snapshot:
    return Snapshot(
        at=at,
        time="",
        server=ServerStatus("main", server, profile, pid, message=message),
        driver=DriverReading(()),
        host=None,
        process=None,
        memory=(),
        offload=Offload(),
        throughput=Throughput(state, tg_tokens_per_second=tg, pp_tokens_per_second=pp),
        slots=(),
        requests=(),
        totals=Totals(),
    )


def history(*snapshots: Snapshot) -> History:
    graph = History()
    for item in snapshots:
        graph.push(item)
    return graph


def test_columns_are_means_oldest_first() -> None:
    graph = history(snapshot(91, 10.0), snapshot(92, 20.0), snapshot(96, 40.0), snapshot(100, 50.0))

    assert graph.columns(2, 10.0, 100.0) == [15.0, 45.0]
    assert graph.columns(10, 10.0, 100.0) == [None, 10.0, 20.0, None, None, None, 40.0, None, None, 50.0]


def test_this_instant_is_in_the_last_column() -> None:
    assert history(snapshot(100, 7.0)).columns(4, 60.0, 100.0) == [None, None, None, 7.0]


def test_old_points_are_in_no_column() -> None:
    assert history(snapshot(39.9, 7.0)).columns(4, 60.0, 100.0) == [None] * 4
    assert history(snapshot(40.0, 7.0)).columns(4, 60.0, 100.0) == [7.0, None, None, None]


@pytest.mark.parametrize(("width", "seconds"), [(0, 60.0), (-1, 60.0), (3, 0.0), (3, -1.0)])
def test_no_room_no_columns(width: int, seconds: float) -> None:
    graph = history(snapshot(100, 7.0), snapshot(100, 7.0, server="crashed", pid=None))

    assert graph.columns(width, seconds, 100.0) == [None] * max(0, width)
    assert graph.mark_columns(width, seconds, 100.0) == {}


def test_unknown_is_no_point_of_the_curve() -> None:
    graph = history(snapshot(99, None), snapshot(100, 0.0))

    assert graph.columns(1, 10.0, 100.0) == [0.0]
    assert history(snapshot(99, None)).columns(1, 10.0, 100.0) == [None]


def test_the_peak_covers_the_kept_points() -> None:
    graph = history(snapshot(0, 99.0), snapshot(1, 20.0))
    assert graph.peak == 99.0

    graph.push(snapshot(KEEP_SECONDS + 0.5, 30.0))
    assert (graph.peak, len(graph.points)) == (30.0, 2)
    assert History().peak is None


def test_the_speed_of_reading_is_kept_only_while_it_reads() -> None:
    graph = history(snapshot(0, pp=900.0, state="prefill"), snapshot(1, pp=900.0, state="idle"))

    assert [point.pp for point in graph.points] == [900.0, None]


def test_it_never_grows_without_end() -> None:
    assert len(history(*(snapshot(n / 1000) for n in range(MAX_POINTS + 10))).points) == MAX_POINTS


def test_a_clock_that_jumps_back_begins_anew() -> None:
    graph = history(snapshot(1000, 50.0), snapshot(1001, server="crashed", pid=None), snapshot(5, 20.0))

    assert [point.at for point in graph.points] == [5]
    assert graph.peak == 20.0
    assert all(mark.at <= 5 for mark in graph.marks)
    assert graph.columns(2, 10.0, 5.0) == [None, 20.0]


# -- marks: the states as a switch, a stop, a crash make them ------------------------------------------


def stopped(at: float) -> Snapshot:
    return snapshot(at, server="stopped", profile=None, pid=None)


DEAD = snapshot(1, server="crashed", profile=None, pid=None, message="a died: SIGKILL.")
LOADING_B = (snapshot(2, server="loading", profile="b", pid=None), snapshot(3, server="loading", profile="b", pid=2))


@pytest.mark.parametrize(
    ("snapshots", "marks"),
    [
        ([snapshot(0), snapshot(1, server="stopping"), *LOADING_B, snapshot(4, profile="b", pid=2)], [("switch", "b")]),
        ([snapshot(0), snapshot(1, profile="b", pid=2)], [("switch", "b")]),  # between two looks
        ([stopped(0), *LOADING_B, snapshot(4, profile="b", pid=2)], [("start", "b")]),
        ([snapshot(0), snapshot(1, server="stopping"), snapshot(2, server="stopping", profile=None, pid=None),
          stopped(3), stopped(4)], [("stop", "a")]),
        ([snapshot(0), DEAD, DEAD, snapshot(3, server="loading", pid=None), snapshot(4, pid=9)],
         [("crash", "a died: SIGKILL."), ("start", "a")]),
        # the state of the first snapshot is no mark
        ([snapshot(0)], []),
        ([stopped(0)], []),
        ([DEAD], []),
        # nor is anything of a server that gpubox did not start
        ([snapshot(0, profile=None, pid=None), snapshot(1, server="unreachable", profile=None, pid=None),
          snapshot(2, profile=None, pid=None)], []),
    ],
)  # fmt: skip
def test_the_marks_of_what_happened(snapshots: list[Snapshot], marks: list[tuple[str, str]]) -> None:
    assert [(mark.kind, mark.text) for mark in history(*snapshots).marks] == marks


def test_marks_stand_in_their_columns() -> None:
    graph = history(snapshot(90), snapshot(95, pid=2), snapshot(100, pid=2))
    (mark,) = graph.marks

    assert graph.mark_columns(10, 10.0, 100.0) == {5: mark}
    assert graph.mark_columns(10, 4.0, 100.0) == {}
