"""What the one writer of the history changes in its file. Every method is a part of the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from gpubox.hardware.process import ProcessIdentity, is_alive
from gpubox.server.state import RunningServer
from gpubox.telemetry import history_rows
from gpubox.telemetry.history_days import close_day, day_begin, day_of, fold_readings
from gpubox.telemetry.history_launches import read_requests
from gpubox.telemetry.history_minutes import COLUMNS as READING_COLUMNS
from gpubox.telemetry.history_minutes import MinuteReadings
from gpubox.telemetry.history_rows import milliseconds, request_row
from gpubox.telemetry.history_speeds import judge, store_judgement, stored_judgement
from gpubox.telemetry.history_store import HOUR, MINUTE, TEN_MINUTES
from gpubox.telemetry.history_values import StoredRequest
from gpubox.telemetry.snapshot import Request

KEPT_DAYS = 90
LIMIT_BYTES = 45_000_000
"""Of the file itself; SQLite's journal beside it has up to 4 MB."""
PRUNED_ROWS = 500
"""Rows deleted at once: a few milliseconds."""
MAX_TEXT = 300
FULL_MINUTES_DAYS = 14
"""Minutes are put together to ten only if they are older, and only if the file is too large."""


@dataclass(frozen=True, slots=True)
class KnownLaunch:
    """A launch as the writer stores it."""

    identity: str
    """Boot id, pid and start time of the process."""
    profile: str
    started: float
    engine_path: str = ""
    engine_version: str = ""
    argv: tuple[str, ...] = ()
    measured: bool = False
    """A benchmark or a trial started it: its speed is not the profile's own."""

    @classmethod
    def of(cls, running: RunningServer) -> KnownLaunch | None:
        """None if its process is not on record."""
        process, launch = running.process, running.launch
        if process is None:
            return None
        started = milliseconds(running.started_at)
        return cls(
            identity=f"{process.boot_id}:{process.pid}:{process.start_ticks}",
            profile=launch.profile,
            started=(started or 0) / 1000,
            engine_path=launch.engine_path,
            engine_version=launch.engine_version,
            argv=launch.argv,
            measured=running.cold,
        )


class HistoryTables:
    """Inserts, updates and prunes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._words: dict[str, int] = {}
        self._open_days: set[int] = set()

    # -- launches -------------------------------------------------------------------------------------

    def launch_id(self, launch: KnownLaunch, seen: float) -> int:
        """The id of its row, which is made if it is new."""
        row = self.connection.execute("SELECT id FROM launches WHERE identity = ?", (launch.identity,)).fetchone()
        if row is None:
            cursor = self.connection.execute(
                "INSERT INTO launches (identity, profile, started, seen, engine_path, engine_version, argv, measured)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    launch.identity, self.word(launch.profile), round(launch.started * 1000), round(seen * 1000),
                    launch.engine_path, launch.engine_version, json.dumps(launch.argv), launch.measured,
                ),
            )  # fmt: skip
            assert cursor.lastrowid is not None
            return cursor.lastrowid
        return int(row[0])

    def note_seen(self, launch: int, at: float, driver: str) -> None:
        """The launch runs at this time. An end that an earlier gpubox assumed did not happen."""
        self.connection.execute(
            "UPDATE launches SET seen = MAX(seen, ?), ended = NULL, how = '',"
            " driver = CASE WHEN driver = '' THEN ? ELSE driver END WHERE id = ?",
            (round(at * 1000), driver, launch),
        )

    def note_end(self, launch: int, at: float, how: str, message: str = "") -> None:
        """The launch has ended: stop, switch or crash; empty: nobody knows. A known end stays."""
        self.connection.execute(
            "UPDATE launches SET ended = MAX(started, ?), how = ?, message = ? WHERE id = ? AND how = ''",
            (round(at * 1000), how, message[:MAX_TEXT], launch),
        )

    def unended(self) -> list[tuple[int, float]]:
        """The launches that have no end in the file and whose process is gone: id, and when it was last seen."""
        gone = []
        for launch, identity, seen in self.connection.execute(
            "SELECT id, identity, seen FROM launches WHERE ended IS NULL"
        ).fetchall():
            boot, _, rest = identity.partition(":")
            pid, _, ticks = rest.partition(":")
            try:
                process = ProcessIdentity(int(pid), int(ticks), boot)
            except ValueError:
                process = None
            if not is_alive(process):
                gone.append((launch, seen / 1000))
        return gone

    def read_part(self, launch: int) -> tuple[int, int]:
        """How many bytes of the launch's log were read, and the requests in them; reading may go on there."""
        row = self.connection.execute("SELECT log_bytes, log_requests FROM launches WHERE id = ?", (launch,)).fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def note_read(self, launch: int, part: tuple[int, int]) -> None:
        self.connection.execute("UPDATE launches SET log_bytes = ?, log_requests = ? WHERE id = ?", (*part, launch))

    # -- requests -------------------------------------------------------------------------------------

    def add_requests(self, launch: int, requests: Iterable[Request]) -> int:
        """Stores the requests that are not stored yet; each task of a launch once. Returns how many were new."""
        added = 0
        columns = history_rows.COLUMNS
        sql = f"INSERT OR IGNORE INTO requests (launch, {', '.join(columns)}) VALUES (?{', ?' * len(columns)})"
        for request in requests:
            at = milliseconds(request.at)
            if at is None:
                continue
            row = request_row(request, at, self.word)
            if self.connection.execute(sql, (launch, *row)).rowcount > 0:
                added += 1
                self.open_day(day_of(at / 1000))
        return added

    def requests_of(self, since: float, until: float) -> list[tuple[int, StoredRequest]]:
        """The requests that began in [since, until), with the id of their launch."""
        condition = "r.at >= ? AND r.at < ? ORDER BY r.at"
        return list(read_requests(self.connection, self.texts(), condition, since * 1000, until * 1000))

    def name_client(self, launch: int, request: Request, client: str) -> None:
        """Notes whose a stored request is."""
        at = milliseconds(request.at)
        values = (self.word(client), launch, request.task)
        changed = self.connection.execute(
            "UPDATE requests SET client = ? WHERE launch = ? AND task = ?", values
        ).rowcount
        if changed and at is not None:
            self.open_day(day_of(at / 1000))

    # -- readings -------------------------------------------------------------------------------------

    def minute(self, minute: int, launch: int) -> MinuteReadings:
        """What is stored of this minute and launch."""
        row = self.connection.execute(
            f"SELECT {', '.join(READING_COLUMNS)} FROM readings WHERE span = ? AND at = ? AND launch = ?",
            (MINUTE, minute, launch),
        ).fetchone()
        return MinuteReadings() if row is None else MinuteReadings.stored(row)

    def save_minute(self, minute: int, launch: int, readings: MinuteReadings) -> None:
        self.connection.execute(
            f"INSERT OR REPLACE INTO readings (span, at, launch, {', '.join(READING_COLUMNS)})"
            f" VALUES (?, ?, ?{', ?' * len(READING_COLUMNS)})",
            (MINUTE, minute, launch, *readings.row()),
        )
        self.open_day(day_of(minute))

    # -- days -----------------------------------------------------------------------------------------

    def open_day(self, day: int) -> None:
        """The stored sums of this day hold no longer."""
        if day not in self._open_days:
            self.connection.execute("INSERT OR IGNORE INTO open_days VALUES (?)", (day,))
            self._open_days.add(day)

    def close_one_day(self, now: float) -> bool:
        """Sums up the oldest day that is over and open. Returns whether there was one."""
        row = self.connection.execute("SELECT MIN(day) FROM open_days WHERE day < ?", (day_of(now),)).fetchone()
        if row[0] is None:
            return False
        close_day(self.connection, row[0])
        self._open_days.discard(row[0])
        return True

    def judge(self, now: float) -> bool:
        """Stores which profiles are slower, if a day was closed since. Returns whether it did."""
        if stored_judgement(self.connection) is not None:
            return False
        store_judgement(self.connection, judge(self.connection, self.texts(), now))
        return True

    def prune(self, now: float, limit: int = LIMIT_BYTES) -> bool:
        """Deletes a part of what is too old, or too much for the file. Returns whether there is more."""
        oldest = day_begin(day_of(now) - KEPT_DAYS + 1)
        if self._prune_before(oldest):
            return True
        size, pages_free = self._size()
        if pages_free:
            self.connection.execute("PRAGMA incremental_vacuum(100)").fetchall()
        if size <= limit:
            return False
        return self._fold_minutes(now) or self._prune_before(self._oldest_day_end())

    def _prune_before(self, at: float) -> bool:
        execute = self.connection.execute
        ended = "SELECT launch, task FROM requests WHERE at < ? LIMIT ?"
        count = execute(f"DELETE FROM requests WHERE (launch, task) IN ({ended})", (at * 1000, PRUNED_ROWS)).rowcount
        old = "SELECT span, at, launch FROM readings WHERE span = {} AND at < ? LIMIT ?"
        for span in (MINUTE, TEN_MINUTES, HOUR):
            if count < PRUNED_ROWS:
                keys = old.format(span)
                count += execute(
                    f"DELETE FROM readings WHERE (span, at, launch) IN ({keys})", (at, PRUNED_ROWS)
                ).rowcount
        if count >= PRUNED_ROWS:
            return True
        for table in ("day_sums", "day_speeds", "day_readings", "open_days"):
            execute(f"DELETE FROM {table} WHERE day < ?", (day_of(at),))
        execute("DELETE FROM launches WHERE ended < ?", (at * 1000,))
        return False

    def _fold_minutes(self, now: float) -> bool:
        """Puts the minutes of the oldest day that has any together to ten. False if none is old enough."""
        row = self.connection.execute("SELECT MIN(at) FROM readings WHERE span = ?", (MINUTE,)).fetchone()
        limit = day_begin(day_of(now) - FULL_MINUTES_DAYS)
        if row[0] is None or row[0] >= limit:
            return False
        begin = row[0] - row[0] % 86400
        end = min(begin + 86400, limit - limit % TEN_MINUTES)
        fold_readings(self.connection, TEN_MINUTES, begin, end, (MINUTE,))
        self.connection.execute("DELETE FROM readings WHERE span = ? AND at >= ? AND at < ?", (MINUTE, begin, end))
        return True

    def _oldest_day_end(self) -> float:
        row = self.connection.execute("SELECT MIN(at) FROM requests").fetchone()
        return 0.0 if row[0] is None else day_begin(day_of(row[0] / 1000) + 1)

    def _size(self) -> tuple[int, int]:
        """The bytes of the pages in use, and the pages that are free."""
        page, count, free = (
            int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_size", "page_count", "freelist_count")
        )
        return page * (count - free), free

    # -- words ----------------------------------------------------------------------------------------

    def texts(self) -> dict[int, str]:
        """Every text by its id."""
        return dict(self.connection.execute("SELECT id, text FROM words").fetchall())

    def word(self, text: str | None) -> int | None:
        """The id of a text, which is stored once."""
        if not text:
            return None
        text = text[:MAX_TEXT].encode(errors="replace").decode()  # SQLite refuses lone surrogates
        if text not in self._words:
            self.connection.execute("INSERT OR IGNORE INTO words (text) VALUES (?)", (text,))
            self._words[text] = self.connection.execute("SELECT id FROM words WHERE text = ?", (text,)).fetchone()[0]
        return self._words[text]
