"""Reads the history: graph, marks, requests, sums, slowdowns. Never writes, and never waits for the writer."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpubox.errors import GpuboxError
from gpubox.telemetry.history_days import (
    DayReadings,
    DaySums,
    Sorted,
    day_begin,
    day_name,
    day_of,
    median_of,
    read_day_readings,
    read_day_sums,
    stored_day_readings,
    stored_day_sums,
)
from gpubox.telemetry.history_launches import NO_PROFILE, read_launches, read_requests
from gpubox.telemetry.history_rows import unscaled
from gpubox.telemetry.history_store import HOUR, connect_reader
from gpubox.telemetry.history_values import (
    HistoryBucket,
    Slowdown,
    StoredLaunch,
    StoredMark,
    StoredRequest,
    UsageKey,
    UsageSum,
)

MAX_REQUESTS = 500
UNKNOWN_CLIENT = ""
"""The key of the requests of no known client."""
SWITCH_SECONDS = 60.0
"""A server that was stopped so short before another started was replaced by it."""
_AnyResult = TypeVar("_AnyResult")
_BUCKETS = """
SELECT CAST((at + span / 2 - ?1) / ?2 AS INTEGER) AS bucket,
    SUM(tg * tg_time) * 1.0 / NULLIF(SUM(tg_time * (tg IS NOT NULL)), 0),
    SUM(pp * pp_time) * 1.0 / NULLIF(SUM(pp_time * (pp IS NOT NULL)), 0),
    SUM(busy) * 1.0 / SUM(observed),
    SUM(vram * observed) / NULLIF(SUM(observed * (vram IS NOT NULL)), 0),
    SUM(power * power_time) * 1.0 / NULLIF(SUM(power_time * (power IS NOT NULL)), 0),
    SUM(temperature * observed) * 1.0 / NULLIF(SUM(observed * (temperature IS NOT NULL)), 0),
    SUM(accepted) * 1.0 / NULLIF(SUM(drafted), 0)
FROM readings
WHERE (span = 3600 AND at >= ?3 AND at < ?5) OR (span IN (60, 600) AND at >= ?5 AND at < ?4)
GROUP BY bucket
"""


class HistoryQueries:
    """Answers from one history file. An absent file reads as empty.

    Every method raises GpuboxError if the file cannot be read. Threads take turns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._words: dict[int, str] = {}

    def buckets(self, since: float, until: float, count: int) -> list[HistoryBucket]:
        """``count`` equal stretches of [since, until), the oldest first."""
        if count <= 0 or until <= since:
            return []
        width = (until - since) / count
        empty = [HistoryBucket(since + index * width) for index in range(count)]
        return self._read(lambda connection: _with_readings(connection, empty, since, until, width), empty)

    def marks(self, since: float, until: float) -> list[StoredMark]:
        """Starts, switches, ends, and changes of engine or driver in [since, until), the oldest first."""
        marks = _marks_of(self.launches(0, until))
        return [mark for mark in marks if since <= mark.at < until]

    def launches(self, since: float, until: float) -> list[StoredLaunch]:
        """The launches that ran in [since, until), the oldest first."""
        return self._read(lambda connection: read_launches(connection, self._texts(connection), since, until), [])

    def requests(
        self,
        since: float,
        until: float,
        profile: str | None = None,
        client: str | None = None,
        limit: int = MAX_REQUESTS,
    ) -> list[StoredRequest]:
        """The last ``limit`` requests that began in [since, until), the newest first."""
        return self._read(lambda connection: self._requests(connection, since, until, profile, client, limit), [])

    def sums(self, since: float, until: float, by: UsageKey) -> list[UsageSum]:
        """What was used in [since, until): days oldest first, else the most requests first.

        A request belongs to the moment at which a slot began with it, and to its local day.
        """
        return self._read(lambda connection: self._sums(connection, since, until, by), [])

    def slowdowns(self, now: float) -> list[Slowdown]:
        """The profiles that have become slower and still are."""
        return self._read(lambda connection: self._slowdowns(connection, now), [])

    # -- one connection, taken in turns ---------------------------------------------------------------

    def _read(self, work: Callable[[sqlite3.Connection], _AnyResult], absent: _AnyResult) -> _AnyResult:
        with self._lock:
            try:
                connection = self._open()
                return absent if connection is None else _in_transaction(connection, work)
            except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
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
        self._connection, self._words = None, {}

    def _texts(self, connection: sqlite3.Connection) -> dict[int, str]:
        last = max(self._words, default=0)
        self._words.update(connection.execute("SELECT id, text FROM words WHERE id > ?", (last,)).fetchall())
        return self._words

    # -- one query each -------------------------------------------------------------------------------

    def _requests(
        self,
        connection: sqlite3.Connection,
        since: float,
        until: float,
        profile: str | None,
        client: str | None,
        limit: int,
    ) -> list[StoredRequest]:
        texts = self._texts(connection)
        ids = {text: word for word, text in texts.items()}
        where, values = ["r.at >= ?", "r.at < ?"], [since * 1000, until * 1000]
        for text, column in ((profile, "l.profile"), (client, "r.client")):
            if text is not None:
                where.append(f"{column} IS ?")
                values.append(ids.get(text, -1))
        condition = f"{' AND '.join(where)} ORDER BY r.at DESC, r.task DESC LIMIT ?"
        return [stored for _, stored in read_requests(connection, texts, condition, *values, max(0, limit))]

    def _sums(self, connection: sqlite3.Connection, since: float, until: float, by: UsageKey) -> list[UsageSum]:
        texts = self._texts(connection)
        until = min(until, time.time() + HOUR)  # no day after today has rows
        launches = {launch.id: launch for launch in read_launches(connection, texts, since, until)}
        oldest = connection.execute("SELECT MIN(at) / 1000.0 FROM requests").fetchone()[0]
        first = connection.execute("SELECT MIN(at) FROM readings").fetchone()[0]
        since = max(since, min((at for at in (oldest, first) if at is not None), default=until))
        groups: dict[str, _Group] = defaultdict(_Group)
        for day, begin, end, closed in _days(connection, since, until):
            sums_of_day = stored_day_sums(connection, day) if closed else read_day_sums(connection, begin, end)
            for (profile, client), sums in sums_of_day.items():
                key = {"profile": profile, "client": client}.get(by)
                groups[day_name(day) if key is None else texts.get(key, UNKNOWN_CLIENT)].add(sums)
            if by == "client":
                continue
            readings = stored_day_readings(connection, day) if closed else read_day_readings(connection, begin, end)
            for reading in readings:
                profile_name = launches[reading.launch].profile if reading.launch in launches else None
                if by == "day" or profile_name is not None:
                    groups[day_name(day) if by == "day" else profile_name or NO_PROFILE].add_readings(reading)
        if by != "client":
            for launch in launches.values():
                _add_up_time(groups, launch, since, until, by)
        sums_of = [group.sum(key, up=by != "client") for key, group in groups.items()]
        return sorted(sums_of, key=lambda s: s.key) if by == "day" else sorted(sums_of, key=lambda s: -s.requests)

    def _slowdowns(self, connection: sqlite3.Connection, now: float) -> list[Slowdown]:
        from gpubox.telemetry.history_speeds import judge, stored_judgement

        stored = stored_judgement(connection)
        return judge(connection, self._texts(connection), now) if stored is None else stored


@dataclass(slots=True)
class _Group:
    """The running sums of one key."""

    sums: DaySums = field(default_factory=DaySums)
    tg: list[Sorted] = field(default_factory=list)
    pp: list[Sorted] = field(default_factory=list)
    ttft: list[Sorted] = field(default_factory=list)
    up: float = 0.0
    power_time: int = 0
    millijoules: int = 0
    observed_tokens: int = 0

    def add(self, day: DaySums) -> None:
        total = self.sums
        total.requests += day.requests
        total.errors += day.errors
        total.prompt += day.prompt
        total.cached += day.cached
        total.generated += day.generated
        self.tg.append(day.tg)
        self.pp.append(day.pp)
        self.ttft.append(day.ttft)

    def add_readings(self, day: DayReadings) -> None:
        self.power_time += day.power_time
        self.millijoules += day.millijoules
        self.observed_tokens += day.generated

    def sum(self, key: str, *, up: bool) -> UsageSum:
        total = self.sums
        return UsageSum(
            key=key,
            requests=total.requests,
            errors=total.errors,
            prompt_tokens=total.prompt,
            cached_tokens=total.cached,
            generated_tokens=total.generated,
            up_seconds=self.up if up else None,
            tg_median=median_of(self.tg, 1e3),
            pp_median=median_of(self.pp, 1e3),
            ttft_median=median_of(self.ttft, 1e6),
            energy_joules=self.millijoules / 1e3 if self.power_time else None,
            observed_seconds=self.power_time / 10,
            observed_tokens=self.observed_tokens,
        )


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], _AnyResult]) -> _AnyResult:
    """All statements of ``work`` see the same moment."""
    connection.execute("BEGIN")
    try:
        return work(connection)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _with_readings(
    connection: sqlite3.Connection, empty: list[HistoryBucket], since: float, until: float, width: float
) -> list[HistoryBucket]:
    """``empty`` with what the readings say."""
    hours_end = since
    if width >= HOUR:  # hours are made of a day that is over: what is newer has only minutes
        row = connection.execute("SELECT MAX(at) + 3600 FROM readings WHERE span = 3600").fetchone()
        hours_end = since if row[0] is None else min(max(since, row[0]), until)
    buckets = list(empty)
    for index, tg, pp, busy, vram, power, temperature, acceptance in connection.execute(
        _BUCKETS, (since, width, since - since % HOUR if hours_end > since else since, until, hours_end)
    ):
        if 0 <= index < len(buckets):
            buckets[index] = HistoryBucket(
                buckets[index].at,
                unscaled(tg, 1e3),
                unscaled(pp, 1e3),
                busy,
                vram,
                unscaled(power, 1e3),
                unscaled(temperature, 10),
                acceptance,
            )
    return buckets


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


def _days(connection: sqlite3.Connection, since: float, until: float) -> list[tuple[int, float, float, bool]]:
    """The local days of [since, until): day, begin, end, and whether its stored sums hold for it."""
    if until <= since:
        return []
    open_days = {day for (day,) in connection.execute("SELECT day FROM open_days")}
    days = []
    for day in range(day_of(since), day_of(until) + 1):
        begin, end = max(since, day_begin(day)), min(until, day_begin(day + 1))
        whole = begin == day_begin(day) and end == day_begin(day + 1)
        if begin < end:
            days.append((day, begin, end, whole and day not in open_days))
    return days


def _add_up_time(groups: dict[str, _Group], launch: StoredLaunch, since: float, until: float, by: UsageKey) -> None:
    """Adds how long the launch ran in [since, until) to its profile, or to each of its days."""
    begin, end = max(since, launch.started), min(until, launch.until)
    if end <= begin:
        return
    if by == "profile":
        groups[launch.profile].up += end - begin
        return
    for day in range(day_of(begin), day_of(end) + 1):
        up = min(end, day_begin(day + 1)) - max(begin, day_begin(day))
        if up > 0:
            groups[day_name(day)].up += up
