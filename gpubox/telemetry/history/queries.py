"""Reads the history: graph, marks, requests, sums, slowdowns. Never writes, and never waits for the writer."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from gpubox.errors import GpuboxError
from gpubox.telemetry.history.file import connect_reader, day_begin, day_name, day_of, read_launches, read_requests
from gpubox.telemetry.history.values import (
    HistoryBucket,
    Slowdown,
    StoredLaunch,
    StoredMark,
    StoredRequest,
    UsageKey,
    UsageSum,
)

MAX_REQUESTS = 500
SWITCH_SECONDS = 60.0
"""A server that was stopped so short before another started was replaced by it."""
_AnyResult = TypeVar("_AnyResult")


class HistoryQueries:
    """Answers from one history file. An absent file reads as empty.

    Every method raises GpuboxError if the file cannot be read. Threads take turns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None

    def buckets(self, since: float, until: float, count: int) -> list[HistoryBucket]:
        """``count`` equal stretches of [since, until), the oldest first."""
        if count <= 0 or until <= since:
            return []
        width = (until - since) / count
        buckets = [HistoryBucket(since + index * width) for index in range(count)]

        def read(connection: sqlite3.Connection) -> list[HistoryBucket]:
            rows = connection.execute(
                "SELECT CAST((minute + 30 - ?1) / ?3 AS INTEGER) AS bucket,"
                " SUM(tg_tokens) / NULLIF(SUM(tg_seconds), 0), SUM(pp_tokens) / NULLIF(SUM(pp_seconds), 0),"
                " SUM(busy_seconds) / NULLIF(SUM(observed_seconds), 0)"
                " FROM minutes WHERE minute >= ?1 AND minute < ?2 GROUP BY bucket",
                (since, until, width),
            )
            for index, *values in rows:
                if 0 <= index < count:
                    buckets[index] = HistoryBucket(buckets[index].at, *values)
            return buckets

        return self._read(read, buckets)

    def marks(self, since: float, until: float) -> list[StoredMark]:
        """Starts, switches, ends, and changes of engine or driver in [since, until), the oldest first."""
        marks = _marks_of(self.launches(0, until))
        return [mark for mark in marks if since <= mark.at < until]

    def launches(self, since: float, until: float) -> list[StoredLaunch]:
        """The launches that ran in [since, until), the oldest first."""
        return self._read(lambda connection: read_launches(connection, since, until), [])

    def requests(
        self,
        since: float,
        until: float,
        profile: str | None = None,
        client: str | None = None,
        limit: int = MAX_REQUESTS,
    ) -> list[StoredRequest]:
        """The last ``limit`` requests that began in [since, until), the newest first."""
        values: tuple[object, ...]
        where, values = "r.at >= ? AND r.at < ?", (since, until)
        for column, wanted in (("l.profile", profile), ("r.client", client)):
            if wanted is not None:
                where, values = f"{where} AND {column} = ?", (*values, wanted)
        where += " ORDER BY r.at DESC, r.task DESC LIMIT ?"
        return self._read(lambda connection: list(read_requests(connection, where, *values, max(0, limit))), [])

    def sums(self, since: float, until: float, by: UsageKey) -> list[UsageSum]:
        """What was used in [since, until): days oldest first, else the most requests first.

        A request belongs to the moment at which a slot began with it, and to its local day.
        """
        return self._read(lambda connection: _sums(connection, since, until, by), [])

    def clients(self, since: float, until: float) -> list[str]:
        """The names of the clients of the requests that began in [since, until)."""
        sql = "SELECT DISTINCT client FROM requests WHERE at >= ? AND at < ? AND client IS NOT NULL ORDER BY 1"
        return self._read(lambda connection: [name for (name,) in connection.execute(sql, (since, until))], [])

    def slowdowns(self, now: float) -> list[Slowdown]:
        """The profiles that have become slower and still are."""
        from gpubox.telemetry.history.slowdowns import judge, stored_judgement

        def read(connection: sqlite3.Connection) -> list[Slowdown]:
            stored = stored_judgement(connection, now)
            return judge(connection, now) if stored is None else stored

        return self._read(read, [])

    # -- one connection, taken in turns ---------------------------------------------------------------

    def _read(self, work: Callable[[sqlite3.Connection], _AnyResult], absent: _AnyResult) -> _AnyResult:
        with self._lock:
            try:
                connection = self._open()
                return absent if connection is None else _in_transaction(connection, work)
            except (sqlite3.Error, OSError, ValueError, TypeError, OverflowError) as error:
                self._drop()
                raise GpuboxError(f"The history {self.path} cannot be read: {error}.") from None

    def _open(self) -> sqlite3.Connection | None:
        """The connection to the file that has the name now: the writer may have set a damaged one aside."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._drop()
            return None
        inode = (status.st_dev, status.st_ino)
        if self._connection is None or inode != self._inode:
            self._drop()
            self._connection, self._inode = connect_reader(self.path), inode
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], _AnyResult]) -> _AnyResult:
    """All statements of ``work`` see the same moment."""
    connection.execute("BEGIN")
    try:
        return work(connection)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# -- marks ----------------------------------------------------------------------------------------------


def _marks_of(launches: list[StoredLaunch]) -> list[StoredMark]:
    """What the launches, oldest first, say happened."""
    marks = []
    before: StoredLaunch | None = None
    for launch in launches:
        switched = before is not None and _is_switch(before, launch)
        marks.append(StoredMark(launch.started, "switch" if switched else "start", launch.profile))
        if before is not None:
            same_engine = before.engine_path == launch.engine_path
            if same_engine and before.engine_version and before.engine_version != launch.engine_version:
                marks.append(
                    StoredMark(launch.started, "engine", f"{before.engine_version} -> {launch.engine_version}")
                )
            if before.driver and launch.driver and before.driver != launch.driver:
                marks.append(StoredMark(launch.started, "driver", f"{before.driver} -> {launch.driver}"))
            if before.ended is not None and before.how == "stop" and not switched:
                marks.append(StoredMark(before.ended, "stop", before.profile))
        if launch.ended is not None and launch.how == "crash":
            marks.append(StoredMark(launch.ended, "crash", launch.profile))
        before = launch
    if before is not None and before.ended is not None and before.how == "stop":
        marks.append(StoredMark(before.ended, "stop", before.profile))
    return sorted(marks, key=lambda mark: mark.at)


def _is_switch(before: StoredLaunch, launch: StoredLaunch) -> bool:
    """Whether ``launch`` took the place of the one ``before``: seen so, or one was stopped for the other."""
    if before.how != "stop" or before.ended is None:
        return before.how == "switch"
    return before.profile != launch.profile and launch.started - before.ended < SWITCH_SECONDS


# -- sums -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    """The running sums of one profile or day."""

    counts: list[int] = field(default_factory=lambda: [0] * 5)
    """Of UsageSum: requests, errors, prompt, cached and generated tokens."""
    speeds: tuple[list[float], list[float], list[float]] = field(default_factory=lambda: ([], [], []))
    """tg, pp and TTFT of each request."""
    up: float | None = None
    energy: float | None = None
    seconds: float = 0.0
    tokens: int = 0

    def sum(self, key: str) -> UsageSum:
        medians = (median(values) if values else None for values in self.speeds)
        values: tuple[Any, ...] = (*self.counts, self.up, *medians, self.energy, self.seconds, self.tokens)
        return UsageSum(key, *values)


def _sums(connection: sqlite3.Connection, since: float, until: float, by: UsageKey) -> list[UsageSum]:
    """One query for the counts, one pass for the medians, one query for the energy; for the days, so for each."""
    groups: dict[str, _Group] = defaultdict(_Group)
    launches = read_launches(connection, since, until)
    profiles: dict[int, str] = dict(connection.execute("SELECT id, profile FROM launches"))
    for day, *span in _days(connection, since, until) if by == "day" else [("", since, until)]:
        counts = connection.execute(
            "SELECT launch, COUNT(*), TOTAL(stop_reason = 'error'), TOTAL(prompt_tokens), TOTAL(cached_tokens),"
            " TOTAL(generated_tokens) FROM requests WHERE at >= ? AND at < ? GROUP BY launch",
            span,
        )
        for launch, *numbers in counts:
            group = groups[day or profiles[launch]]
            group.counts = [total + int(number) for total, number in zip(group.counts, numbers, strict=True)]
        speeds = connection.execute(
            "SELECT launch, tg_tokens_per_second, pp_tokens_per_second, ttft_seconds FROM requests"
            " WHERE at >= ? AND at < ?",
            span,
        )
        for launch, *own in speeds:
            for known, value in zip(groups[day or profiles[launch]].speeds, own, strict=True):
                if value is not None:
                    known.append(value)
        energy = connection.execute(
            "SELECT launch, SUM(joules), SUM(power_seconds), SUM(power_tokens) FROM minutes"
            " WHERE minute >= ? AND minute < ? GROUP BY launch",
            span,
        )
        for launch, joules, seconds, tokens in energy:
            if seconds and (day or launch in profiles):  # without a server only a day has any
                group = groups[day or profiles[launch]]
                group.energy = (group.energy or 0.0) + joules
                group.seconds += seconds
                group.tokens += tokens
        for stored in launches:
            up = min(span[1], stored.until) - max(span[0], stored.started)
            if up > 0:
                group = groups[day or stored.profile]
                group.up = (group.up or 0.0) + up
    sums = [group.sum(own) for own, group in groups.items()]
    return sorted(sums, key=lambda usage: usage.key if by == "day" else -usage.requests)


def _days(connection: sqlite3.Connection, since: float, until: float) -> list[tuple[str, float, float]]:
    """The local days of [since, until) of which anything is known: name, begin and end."""
    oldest = connection.execute(
        "SELECT MIN(at) FROM (SELECT MIN(started) AS at FROM launches UNION SELECT MIN(minute) FROM minutes)"
    ).fetchone()[0]
    since, until = max(since, until if oldest is None else oldest), min(until, time.time() + 3600)
    days = range(day_of(since), day_of(until) + 1) if since < until else ()
    spans = [(day_name(day), max(since, day_begin(day)), min(until, day_begin(day + 1))) for day in days]
    return [span for span in spans if span[1] < span[2]]
