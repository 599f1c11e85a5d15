"""The history file: its tables, and how it is opened. SQLite, so that a crash never leaves half a row."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.storage import open_private, private_folder
from gpubox.telemetry.history.rows import MINUTE_COLUMNS, REQUEST_COLUMNS

VERSION = 2
"""``user_version`` of the file. Another one is set aside: a column more or less is another version."""
BUSY_SECONDS = 2.0
"""How long a statement waits for another process."""

SCHEMA = f"""
CREATE TABLE launches (
    id INTEGER PRIMARY KEY,
    identity TEXT NOT NULL UNIQUE,
    profile TEXT NOT NULL,
    started REAL NOT NULL,
    seen REAL NOT NULL,
    ended REAL,
    how TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT '',
    engine_path TEXT NOT NULL DEFAULT '',
    engine_version TEXT NOT NULL DEFAULT '',
    driver TEXT NOT NULL DEFAULT '',
    argv TEXT NOT NULL DEFAULT '[]',
    measured INTEGER NOT NULL DEFAULT 0,
    log_bytes INTEGER NOT NULL DEFAULT 0,
    log_requests INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX launches_started ON launches (started);
CREATE TABLE requests (launch, client, {", ".join(REQUEST_COLUMNS)}, PRIMARY KEY (launch, task)) WITHOUT ROWID;
CREATE INDEX requests_at ON requests (at);
CREATE TABLE minutes (minute, launch, {", ".join(MINUTE_COLUMNS)}, PRIMARY KEY (minute, launch)) WITHOUT ROWID;
CREATE TABLE judged (day INTEGER NOT NULL, slowdowns TEXT NOT NULL);
"""
"""Times are unix seconds. ``requests`` has the fields of a Request, ``minutes`` those of MinuteReadings for each minute
and launch (launch 0: none ran). ``judged`` has one row, the slowdowns as they were found on that day."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """Opens the history for writing, and makes it if it is absent.

    Raises sqlite3.Error, OSError, and OtherVersion.
    """
    descriptor = open_private(private_folder(path.parent) / path.name, os.O_RDWR)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise _other_version(path, version)
        if version == 0:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # only before the first table
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint=400")
        connection.execute("PRAGMA journal_size_limit=4194304")
        connection.execute("PRAGMA cache_size=-4000")
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection | None:
    """Opens the history for reading alone; None while the writer is just making it.

    Raises as ``connect_writer``; an absent file is an error too.
    """
    uri = path.absolute().as_uri()
    try:
        return _opened_for_reading(path, f"{uri}?mode=ro")
    except sqlite3.OperationalError:  # a folder that cannot be written, and no writer: WAL needs a shared file
        return _opened_for_reading(path, f"{uri}?mode=ro&immutable=1")


def _opened_for_reading(path: Path, uri: str) -> sqlite3.Connection | None:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.close()
            return None
        if version != VERSION:
            raise _other_version(path, version)
        connection.execute("SELECT 1 FROM launches LIMIT 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


class OtherVersion(GpuboxError):
    """The file was written by another version of gpubox."""


def _other_version(path: Path, version: int) -> OtherVersion:
    return OtherVersion(f"The history {path} has version {version}; this gpubox knows version {VERSION}.")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the error says that the file is no sound history, and not that it cannot be reached just now."""
    if isinstance(error, sqlite3.OperationalError):
        return str(error).startswith(("no such table", "no such column"))
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.IntegrityError | sqlite3.ProgrammingError
    )


def set_aside(path: Path, why: str) -> Path:
    """Renames a history that this gpubox cannot use, and what belongs to it. Returns its new name. Raises OSError."""
    aside = path.with_name(f"{path.name}.{why}-{time.strftime('%Y%m%dT%H%M%S')}")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return aside
