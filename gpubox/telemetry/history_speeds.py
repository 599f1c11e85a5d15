"""The slowdowns that the file's closed days show. Once a day the writer stores them, because they take a while."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from gpubox.storage import DECODE_ERRORS
from gpubox.telemetry.history_days import coarse_stratum, day_begin, day_of, requests_at_once, unpacked
from gpubox.telemetry.history_launches import read_launches
from gpubox.telemetry.history_values import Slowdown
from gpubox.telemetry.slowdowns import SpeedUnit, find_slowdowns

JUDGED_DAYS = 90


def judge(connection: sqlite3.Connection, texts: Mapping[int, str], now: float) -> list[Slowdown]:
    """The slowdowns of the last JUDGED_DAYS. The days in ``open_days`` do not count yet: today is half a day.

    ``texts``: the words of the file by their id.
    """
    launches = read_launches(connection, texts, 0, now)
    measured = {launch.id for launch in launches if launch.measured}
    rows = connection.execute(
        "SELECT day, launch, rate, strata FROM day_speeds WHERE day >= ? AND day NOT IN (SELECT day FROM open_days)",
        (day_of(now) - JUDGED_DAYS,),
    )
    units = []
    for day, launch, rate, blob in rows:
        if launch not in measured:
            strata = unpacked(blob)
            for i in range(0, len(strata), 3):
                stratum, requests, speed = strata[i : i + 3]
                at_once, coarse = requests_at_once(stratum), coarse_stratum(stratum)
                units.append(SpeedUnit(day, launch, rate, stratum, requests, speed / 1e3, at_once, coarse))
    heat = connection.execute("SELECT day, launch, temperature / 10.0 FROM day_readings WHERE temperature IS NOT NULL")
    return find_slowdowns(units, launches, {(day, launch): degrees for day, launch, degrees in heat}, day_begin)


def stored_judgement(connection: sqlite3.Connection) -> list[Slowdown] | None:
    """What the writer stored; None if a day was closed since, or it has not come to it."""
    row = connection.execute("SELECT slowdowns FROM judged").fetchone()
    try:
        return None if row is None else msgspec.json.decode(row[0], type=list[Slowdown])
    except DECODE_ERRORS:
        return None


def store_judgement(connection: sqlite3.Connection, slowdowns: Sequence[Slowdown]) -> None:
    connection.execute("DELETE FROM judged")
    connection.execute("INSERT INTO judged VALUES (?)", (msgspec.json.encode(slowdowns).decode(),))
