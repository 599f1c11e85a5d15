"""The history file: its tables, and how it is opened. SQLite, so that a crash never leaves half a row.

Numbers are small integers, because a quarter of a year must stay below 50 MB: times in milliseconds, durations in
microseconds, rates and watts in thousandths, observed time in tenths of a second. NULL is unknown.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.storage import open_private, private_folder

VERSION = 1
"""``user_version`` of the file."""
MINUTE, TEN_MINUTES, HOUR = 60, 600, 3600
BUSY_SECONDS = 2.0
"""How long a statement waits for another process."""

SCHEMA = """
CREATE TABLE words (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);

CREATE TABLE launches (
    id INTEGER PRIMARY KEY,
    identity TEXT NOT NULL UNIQUE,
    profile INTEGER NOT NULL,
    started INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    ended INTEGER,
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

CREATE TABLE requests (
    launch INTEGER NOT NULL,
    task INTEGER NOT NULL,
    at INTEGER NOT NULL,
    number INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    prompt INTEGER, cached INTEGER, generated INTEGER,
    queue INTEGER, slot_ttft INTEGER, reading INTEGER, generation INTEGER, duration INTEGER,
    pp INTEGER, tg INTEGER,
    drafted INTEGER, accepted INTEGER, accepted_length INTEGER, positions BLOB,
    stop INTEGER, miss INTEGER, restored INTEGER, client INTEGER,
    PRIMARY KEY (launch, task)
) WITHOUT ROWID;
CREATE INDEX requests_at ON requests (at);

CREATE TABLE readings (
    span INTEGER NOT NULL,
    at INTEGER NOT NULL,
    launch INTEGER NOT NULL,
    observed INTEGER NOT NULL,
    busy INTEGER NOT NULL,
    tg INTEGER, tg_time INTEGER, tg_max INTEGER,
    pp INTEGER, pp_time INTEGER, pp_max INTEGER,
    vram INTEGER, ram INTEGER,
    power INTEGER, power_time INTEGER, power_max INTEGER,
    temperature INTEGER, temperature_max INTEGER,
    drafted INTEGER, accepted INTEGER, generated INTEGER, context INTEGER,
    PRIMARY KEY (span, at, launch)
) WITHOUT ROWID;

CREATE TABLE day_sums (
    day INTEGER NOT NULL,
    profile INTEGER NOT NULL,
    client INTEGER NOT NULL,
    requests INTEGER NOT NULL, errors INTEGER NOT NULL,
    prompt INTEGER NOT NULL, cached INTEGER NOT NULL, generated INTEGER NOT NULL,
    tg BLOB NOT NULL, pp BLOB NOT NULL, ttft BLOB NOT NULL,
    PRIMARY KEY (day, profile, client)
) WITHOUT ROWID;

CREATE TABLE day_speeds (
    day INTEGER NOT NULL,
    launch INTEGER NOT NULL,
    rate TEXT NOT NULL,
    strata BLOB NOT NULL,
    PRIMARY KEY (day, launch, rate)
) WITHOUT ROWID;

CREATE TABLE day_readings (
    day INTEGER NOT NULL,
    launch INTEGER NOT NULL,
    observed INTEGER NOT NULL, power_time INTEGER NOT NULL, millijoules INTEGER NOT NULL, generated INTEGER NOT NULL,
    temperature INTEGER,
    PRIMARY KEY (day, launch)
) WITHOUT ROWID;

CREATE TABLE open_days (day INTEGER PRIMARY KEY);

CREATE TABLE judged (slowdowns TEXT NOT NULL);
"""
"""``readings``: a row for each minute and launch (launch 0: none ran), and for each hour, made of the minutes.
``tg``, ``pp`` and ``power`` are means over ``tg_time``, ``pp_time`` and ``power_time``.

``day_*``: made of a local day's rows by ``history_days``, so that a quarter of a year can be summed up at once. ``day``
counts days since 1970, and the blobs hold all values of the day, sorted. Days in ``open_days`` have changed since, and
are read from the rows themselves. ``judged`` has one row, the slowdowns of all closed days, until a day is closed."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """Opens the history for writing, and makes it if it is absent.

    Raises sqlite3.Error, OSError, and GpuboxError if another version of gpubox wrote it.
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


def _other_version(path: Path, version: int) -> GpuboxError:
    return GpuboxError(f"The history {path} has version {version}; this gpubox knows version {VERSION}.")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the error says that the file is no sound history, and not that it cannot be reached just now."""
    if isinstance(error, sqlite3.OperationalError):
        return str(error).startswith(("no such table", "no such column"))
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.IntegrityError | sqlite3.ProgrammingError
    )


def set_aside(path: Path) -> Path:
    """Renames a damaged history, and what belongs to it. Returns its new name. Raises OSError."""
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    return aside
