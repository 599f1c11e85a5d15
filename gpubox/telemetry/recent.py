"""Ring buffers of recent readings, for the graph. Pure: the clock is in the values."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from gpubox.telemetry.snapshot import HistoryMark, Snapshot

KEEP_SECONDS = 900.0
MAX_POINTS = 4096


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One moment of the graph. ``at`` is monotonic; speeds in tokens per second."""

    at: float
    tg: float | None
    pp: float | None
    state: str


class History:
    """The last KEEP_SECONDS of readings, and the events in them (``marks``)."""

    def __init__(self) -> None:
        self.points: deque[HistoryPoint] = deque(maxlen=MAX_POINTS)
        self.marks: deque[HistoryMark] = deque(maxlen=64)
        self._profile: str | None = None
        """Of the server that was last seen running, until it stops or dies; empty for one without a profile."""
        self._pid: int | None = None
        self._state = ""

    def push(self, snapshot: Snapshot) -> None:
        """Adds one snapshot. Detects when the server changed, started, stopped or died."""
        speeds = snapshot.throughput
        if self.points and snapshot.at < self.points[-1].at:
            self.points.clear()  # the clock went back: old and new points are not comparable
            self.marks.clear()
        pp = speeds.pp_tokens_per_second if speeds.state == "prefill" else None
        self.points.append(HistoryPoint(snapshot.at, speeds.tg_tokens_per_second, pp, speeds.state))
        while self.points and snapshot.at - self.points[0].at > KEEP_SECONDS:
            self.points.popleft()
        self._add_mark(snapshot)

    def _add_mark(self, snapshot: Snapshot) -> None:
        server = snapshot.server
        kind: Literal["switch", "crash", "start", "stop"] | None = None
        text = server.profile or ""
        if server.pid and server.pid != self._pid:
            kind = "start" if self._profile is None else "switch"
        elif server.state == "crashed" and self._state != "crashed":
            kind, text = "crash", server.message
        elif server.state == "stopped" and self._profile is not None:
            kind, text = "stop", self._profile
        if kind and self._state:  # not for the state at the first snapshot
            self.marks.append(HistoryMark(snapshot.at, kind, text))
        if server.pid:
            self._profile, self._pid = server.profile or "", server.pid
        elif server.state in ("crashed", "stopped"):
            self._profile = self._pid = None
        self._state = server.state

    def columns(self, width: int, seconds: float, now: float) -> list[float | None]:
        """The mean tg in each of ``width`` equal parts of the last ``seconds``, oldest first."""
        width = max(0, width)
        sums, counts = [0.0] * width, [0] * width
        for point in self.points:
            if point.tg is None:
                continue
            column = _column(point.at, width, seconds, now)
            if column is not None:
                sums[column] += point.tg
                counts[column] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    def reading_columns(self, width: int, seconds: float, now: float) -> frozenset[int]:
        """The columns in which a prompt was processed and nothing was generated."""
        reading: set[int | None] = set()
        generating: set[int | None] = set()
        for point in self.points:
            if point.state == "prefill" or point.tg is not None:
                (generating if point.tg is not None else reading).add(_column(point.at, width, seconds, now))
        return frozenset(column for column in reading - generating if column is not None)

    def mark_columns(self, width: int, seconds: float, now: float) -> dict[int, HistoryMark]:
        """The marks of the last ``seconds``, by column."""
        columns = ((_column(mark.at, width, seconds, now), mark) for mark in self.marks)
        return {column: mark for column, mark in columns if column is not None}

    @property
    def peak(self) -> float | None:
        """The highest tg of all points."""
        return max((p.tg for p in self.points if p.tg is not None), default=None)


def _column(at: float, width: int, seconds: float, now: float) -> int | None:
    """The column of ``at``: the last one for ``now``, None before the last ``seconds``."""
    if width <= 0 or seconds <= 0:
        return None
    position = width - (now - at) * width / seconds
    return min(int(position), width - 1) if 0 <= position <= width else None
