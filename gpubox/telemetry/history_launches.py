"""The launches of the history."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from gpubox.telemetry.history_values import StoredLaunch

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
            seen / 1000, how, engine_path, engine_version, driver, tuple(map(str, json.loads(argv))), bool(measured),
        )
        for launch, profile, started, ended, seen, how, engine_path, engine_version, driver, argv, measured in rows
    ]  # fmt: skip
