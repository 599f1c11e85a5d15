"""Ring buffers of what was read, for the graph. Pure; the clock is in the values."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gpubox.telemetry.model import Mark, Snapshot

KEEP_SECONDS = 900.0
MAX_POINTS = 4096


@dataclass(frozen=True, slots=True)
class Point:
    """One instant of the graph."""

    at: float
    tg: float | None
    pp: float | None
    state: str


class History:
    """The last KEEP_SECONDS. ``marks`` are what happened in them."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=MAX_POINTS)
        self.marks: deque[Mark] = deque(maxlen=64)
        self._server: tuple[str | None, int | None, str] = (None, None, "")

    def push(self, snapshot: Snapshot) -> None:
        """Takes in one snapshot; notices by itself when the server changed, came or died."""
        through = snapshot.throughput
        if self.points and snapshot.at < self.points[-1].at:
            self.points.clear()  # the clock went backwards: what was, cannot be set beside what comes
        reading = through.pp_tokens_per_second if through.state == "prefill" else None
        self.points.append(Point(snapshot.at, through.tg_tokens_per_second, reading, through.state))
        while self.points and snapshot.at - self.points[0].at > KEEP_SECONDS:
            self.points.popleft()
        self._notice(snapshot)

    def _notice(self, snapshot: Snapshot) -> None:
        server = snapshot.server
        now = (server.profile, server.pid, server.state)
        before_profile, before_pid, before_state = self._server
        if self.points and len(self.points) > 1:
            if server.pid and server.pid != before_pid:
                kind = "switch" if before_pid or before_state == "loading" else "start"
                self.marks.append(Mark(snapshot.at, "switch" if kind == "switch" else "start", server.profile or ""))
            elif server.state == "crashed" and before_state != "crashed":
                oom = "out of" in server.message
                self.marks.append(Mark(snapshot.at, "oom" if oom else "crash", server.message))
            elif before_pid and not server.pid and server.state == "stopped":
                self.marks.append(Mark(snapshot.at, "stop", before_profile or ""))
        self._server = now

    def columns(self, width: int, seconds: float, now: float) -> list[float | None]:
        """The mean tg of each of ``width`` equal stretches of the last ``seconds``, oldest first."""
        if width <= 0:
            return []
        sums, counts = [0.0] * width, [0] * width
        for point in self.points:
            if point.tg is None:
                continue
            column = int((1 - (now - point.at) / seconds) * width)
            if 0 <= column < width:
                sums[column] += point.tg
                counts[column] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    def mark_columns(self, width: int, seconds: float, now: float) -> dict[int, Mark]:
        """The marks of the last ``seconds`` by column."""
        found = {int((1 - (now - mark.at) / seconds) * width): mark for mark in self.marks}
        return {column: mark for column, mark in found.items() if 0 <= column < width}

    @property
    def peak(self) -> float | None:
        """The highest tg kept."""
        return max((p.tg for p in self.points if p.tg is not None), default=None)
