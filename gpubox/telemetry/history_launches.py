"""The launches of the history, and their requests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from gpubox.storage import read_json
from gpubox.telemetry.history_rows import COLUMNS, request_of
from gpubox.telemetry.history_values import StoredLaunch, StoredRequest

NO_PROFILE = ""


def read_launches(
    connection: sqlite3.Connection, texts: Mapping[int, str], since: float, until: float
) -> list[StoredLaunch]:
    """The launches that ran in [since, until), the oldest first. ``texts``: the words of the file by their id."""
    rows = connection.execute(
        "SELECT id, profile, started, ended, seen, how, engine_path, engine_version, driver, argv, measured"
        " FROM launches WHERE started < ? AND IFNULL(ended, seen) >= ? ORDER BY started, id",
        (until * 1000, since * 1000),
    )
    return [
        StoredLaunch(
            launch, texts.get(profile, NO_PROFILE), started / 1000, None if ended is None else ended / 1000,
            seen / 1000, how, engine_path, engine_version, driver, tuple(map(str, read_json(argv))), bool(measured),
        )
        for launch, profile, started, ended, seen, how, engine_path, engine_version, driver, argv, measured in rows
    ]  # fmt: skip


def read_requests(
    connection: sqlite3.Connection, texts: Mapping[int, str], condition: str, *values: float
) -> Iterator[tuple[int, StoredRequest]]:
    """The requests of a condition on ``requests r`` and ``launches l``, each with the id of its launch."""
    columns = ", ".join(f"r.{column}" for column in COLUMNS)
    rows = connection.execute(
        f"SELECT r.launch, l.profile, r.client, {columns} FROM requests r JOIN launches l ON l.id = r.launch"
        f" WHERE {condition}",
        values,
    )
    for launch, profile, client, *row in rows:
        request, at = request_of(tuple(row), texts), row[COLUMNS.index("at")] / 1000
        yield launch, StoredRequest(at, texts.get(profile, NO_PROFILE), texts.get(client), request, launch)
