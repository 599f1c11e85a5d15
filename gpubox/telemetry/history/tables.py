"""What the one writer of the history changes in its file. Every method is a part of the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from gpubox.hardware.process import ProcessIdentity, is_alive
from gpubox.server.state import RunningServer
from gpubox.telemetry.history.file import (
    MINUTE_COLUMNS,
    REQUEST_COLUMNS,
    MinuteReadings,
    day_begin,
    day_of,
    minute_row,
    read_requests,
    request_row,
    text_cell,
    unix_time,
)
from gpubox.telemetry.history.slowdowns import judging, store_judgement, stored_judgement
from gpubox.telemetry.history.values import Slowdown, StoredRequest
from gpubox.telemetry.snapshot import Request

KEPT_DAYS = 90
LIMIT_BYTES = 56_000_000
"""Of the file itself; SQLite's journal beside it has up to 4 MB."""
PRUNED_ROWS = 500
"""Rows deleted at once: a few milliseconds."""


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
        return cls(
            identity=f"{process.boot_id}:{process.pid}:{process.start_ticks}",
            profile=launch.profile,
            started=unix_time(running.started_at) or 0.0,
            engine_path=launch.engine_path,
            engine_version=launch.engine_version,
            argv=launch.argv,
            measured=running.cold,
        )


class HistoryTables:
    """Inserts, updates and prunes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    # -- launches -------------------------------------------------------------------------------------

    def launch_id(self, launch: KnownLaunch, seen: float) -> int:
        """The id of its row, which is made if it is new."""
        row = self.connection.execute("SELECT id FROM launches WHERE identity = ?", (launch.identity,)).fetchone()
        if row is not None:
            return int(row[0])
        cursor = self.connection.execute(
            "INSERT INTO launches (identity, profile, started, seen, engine_path, engine_version, argv, measured)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                launch.identity, text_cell(launch.profile), launch.started, seen,
                launch.engine_path, launch.engine_version, json.dumps(launch.argv), launch.measured,
            ),
        )  # fmt: skip
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def note_seen(self, launch: int, at: float, driver: str) -> None:
        """The launch runs at this time. An end that an earlier gpubox assumed did not happen."""
        self.connection.execute(
            "UPDATE launches SET seen = MAX(seen, ?), ended = NULL, how = '',"
            " driver = CASE WHEN driver = '' THEN ? ELSE driver END WHERE id = ?",
            (at, driver, launch),
        )

    def note_end(self, launch: int, at: float, how: str, message: str = "") -> None:
        """The launch has ended: stop, switch or crash; empty: nobody knows. A known end stays."""
        self.connection.execute(
            "UPDATE launches SET ended = MAX(started, ?), how = ?, message = ? WHERE id = ? AND how = ''",
            (at, how, text_cell(message), launch),
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
                gone.append((launch, seen))
        return gone

    def read_part(self, launch: int) -> tuple[int, int]:
        """How many bytes of the launch's log were read, and the requests in them; reading may go on there."""
        row = self.connection.execute("SELECT log_bytes, log_requests FROM launches WHERE id = ?", (launch,)).fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def note_read(self, launch: int, part: tuple[int, int]) -> None:
        self.connection.execute("UPDATE launches SET log_bytes = ?, log_requests = ? WHERE id = ?", (*part, launch))

    # -- requests and minutes -------------------------------------------------------------------------

    def add_requests(self, launch: int, requests: Iterable[Request]) -> int:
        """Stores the requests that are not stored yet; each task of a launch once. Returns how many were new."""
        columns = ", ".join(REQUEST_COLUMNS)
        sql = f"INSERT OR IGNORE INTO requests (launch, {columns}) VALUES (?{', ?' * len(REQUEST_COLUMNS)})"
        rows = [(launch, *request_row(r, at)) for r in requests if (at := unix_time(r.at)) is not None]
        return self.connection.executemany(sql, rows).rowcount if rows else 0

    def requests_of(self, since: float, until: float) -> list[StoredRequest]:
        """The requests that began in [since, until)."""
        return list(read_requests(self.connection, "r.at >= ? AND r.at < ? ORDER BY r.at", since, until))

    def name_client(self, stored: StoredRequest, client: str) -> None:
        """Notes whose a stored request is."""
        values = (text_cell(client), stored.launch, stored.request.task)
        self.connection.execute("UPDATE requests SET client = ? WHERE launch = ? AND task = ?", values)

    def minute(self, minute: int, launch: int) -> MinuteReadings:
        """What is stored of this minute and launch."""
        row = self.connection.execute(
            f"SELECT {', '.join(MINUTE_COLUMNS)} FROM minutes WHERE minute = ? AND launch = ?", (minute, launch)
        ).fetchone()
        return MinuteReadings(*(row or ()))

    def save_minute(self, minute: int, launch: int, readings: MinuteReadings) -> None:
        self.connection.execute(
            f"INSERT OR REPLACE INTO minutes (minute, launch, {', '.join(MINUTE_COLUMNS)})"
            f" VALUES (?, ?{', ?' * len(MINUTE_COLUMNS)})",
            (minute, launch, *minute_row(readings)),
        )

    # -- once a day -----------------------------------------------------------------------------------

    def judged(self, now: float) -> Generator[None, None, list[Slowdown]]:
        """Stores which profiles are slower, once a day, in small steps. Returns those that were not before."""
        if stored_judgement(self.connection, now) is not None:
            return []
        slowdowns: list[Slowdown] = []
        for part in judging(self.connection, now):
            slowdowns += part
            yield
        known = {(old.profile, old.rate) for old in stored_judgement(self.connection) or ()}
        store_judgement(self.connection, slowdowns, now)
        return [slowdown for slowdown in slowdowns if (slowdown.profile, slowdown.rate) not in known]

    def prune(self, now: float, limit: int = LIMIT_BYTES) -> bool:
        """Deletes a part of what is too old, or too much for the file. Returns whether there is more."""
        if self._prune_before(day_begin(day_of(now) - KEPT_DAYS + 1)):
            return True
        page, count, free = (
            int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_size", "page_count", "freelist_count")
        )
        if free:
            self.connection.execute("PRAGMA incremental_vacuum(100)").fetchall()
        oldest = self.connection.execute("SELECT MIN(at) FROM requests").fetchone()[0]
        if page * (count - free) <= limit or oldest is None:
            return False
        return self._prune_before(day_begin(day_of(oldest) + 1))

    def _prune_before(self, at: float) -> bool:
        count = 0
        for table, key, column in (("requests", "launch, task", "at"), ("minutes", "minute, launch", "minute")):
            old = f"SELECT {key} FROM {table} WHERE {column} < ? LIMIT ?"
            sql = f"DELETE FROM {table} WHERE ({key}) IN ({old})"
            count += self.connection.execute(sql, (at, PRUNED_ROWS)).rowcount
        self.connection.execute("DELETE FROM launches WHERE ended < ?", (at,))
        return count > 0
