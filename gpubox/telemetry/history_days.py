"""What the rows of one local day come to: sums, sorted speeds and the medians of comparable requests.

The same functions make the stored sums of a day that is over, and read a day that is not.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import accumulate
from statistics import median_low
from typing import TypeAlias

from gpubox.telemetry.history_store import HOUR, MINUTE, TEN_MINUTES

EPOCH = date(1970, 1, 1).toordinal()
MIN_GENERATED_TOKENS = 32
"""A shorter answer has no speed worth comparing."""
MIN_READ_TOKENS = 256
MAX_STRATA = 40
"""Of a launch and day, those with the most requests: the others say little."""
MAX_VALUE = 2**32 - 1
AT_ONCE_RATIO, AT_ONCE_CLASSES = 1.25, 16
"""Requests at once are comparable within this ratio."""
Sorted: TypeAlias = "array[int]"
"""Values of a day in ascending order, ``array("I")``."""


def day_of(at: float) -> int:
    """The local day of a unix time in seconds, counted since 1970."""
    return datetime.fromtimestamp(at).date().toordinal() - EPOCH


def day_begin(day: int) -> float:
    """When the local day begins, in unix seconds."""
    begin = datetime.combine(date.fromordinal(day + EPOCH), datetime.min.time())
    return begin.timestamp()


def day_name(day: int) -> str:
    """``2026-11-22``."""
    return date.fromordinal(day + EPOCH).isoformat()


@dataclass(slots=True)
class DaySums:
    """The requests of one profile and client on one day."""

    requests: int = 0
    errors: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    tg: Sorted = field(default_factory=lambda: array("I"))
    """In thousandths of a token per second; as ``pp``."""
    pp: Sorted = field(default_factory=lambda: array("I"))
    ttft: Sorted = field(default_factory=lambda: array("I"))
    """In microseconds."""


def read_day_sums(connection: sqlite3.Connection, begin: float, end: float) -> dict[tuple[int, int], DaySums]:
    """The sums by profile and client (0: unknown) of the requests that began in [begin, end)."""
    groups: dict[tuple[int, int], DaySums] = defaultdict(DaySums)
    rows = connection.execute(
        "SELECT l.profile, IFNULL(r.client, 0), COUNT(*), TOTAL(r.stop = (SELECT id FROM words WHERE text = 'error')),"
        " TOTAL(r.prompt), TOTAL(r.cached), TOTAL(r.generated) FROM requests r JOIN launches l ON l.id = r.launch"
        " WHERE r.at >= ? AND r.at < ? GROUP BY 1, 2",
        (begin * 1000, end * 1000),
    )
    for profile, client, requests, errors, prompt, cached, generated in rows:
        groups[profile, client] = DaySums(requests, int(errors), int(prompt), int(cached), int(generated))
    values = connection.execute(
        "SELECT l.profile, IFNULL(r.client, 0), r.tg, r.pp, r.queue + r.slot_ttft"
        " FROM requests r JOIN launches l ON l.id = r.launch WHERE r.at >= ? AND r.at < ?",
        (begin * 1000, end * 1000),
    )
    lists: dict[tuple[int, int], tuple[list[int], list[int], list[int]]] = defaultdict(lambda: ([], [], []))
    for profile, client, *speeds in values:
        for known, value in zip(lists[profile, client], speeds, strict=True):
            if value is not None and 0 <= value <= MAX_VALUE:
                known.append(value)
    for key, columns in lists.items():
        groups[key].tg, groups[key].pp, groups[key].ttft = (array("I", sorted(column)) for column in columns)
    return groups


def stored_day_sums(connection: sqlite3.Connection, day: int) -> dict[tuple[int, int], DaySums]:
    """What ``close_day`` stored of ``read_day_sums``."""
    rows = connection.execute(
        "SELECT profile, client, requests, errors, prompt, cached, generated, tg, pp, ttft FROM day_sums WHERE day = ?",
        (day,),
    )
    return {
        (profile, client): DaySums(*numbers, *map(unpacked, (tg, pp, ttft)))
        for profile, client, *numbers, tg, pp, ttft in rows
    }


def unpacked(blob: bytes) -> Sorted:
    """The values of a stored day."""
    values = array("I")
    values.frombytes(blob)
    return values


def median_of(parts: Sequence[Sorted], unit: float) -> float | None:
    """The median of all values of several sorted parts; exact, without putting them together."""
    count = sum(map(len, parts))
    if not count:
        return None
    low = _ranked(parts, (count - 1) // 2)
    high = low if count % 2 else _ranked(parts, count // 2)
    return (low + high) / 2 / unit


def _ranked(parts: Sequence[Sorted], rank: int) -> int:
    """The value that ``rank`` others precede: a search over the values, which are 32 bits wide."""
    low, high = min(part[0] for part in parts if part), max(part[-1] for part in parts if part)
    while low < high:
        middle = (low + high) // 2
        if sum(bisect_right(part, middle) for part in parts) > rank:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True, slots=True)
class DaySpeed:
    """The speeds of the comparable requests of one launch on one day."""

    launch: int
    rate: str
    """tg | pp"""
    strata: Sorted
    """Stratum, number of requests and their median speed in thousandths of a token per second, in turn.

    A stratum is what makes requests comparable: the context's depth, how many ran at once, how much was drafted.
    """


def read_day_speeds(connection: sqlite3.Connection, begin: float, end: float) -> list[DaySpeed]:
    """The speeds of the requests that began in [begin, end)."""
    rows = connection.execute(
        "SELECT launch, at, duration, prompt, cached, generated, pp, tg, drafted, accepted FROM requests"
        " WHERE at >= ? AND at < ? AND duration IS NOT NULL ORDER BY launch, at",
        (begin * 1000, end * 1000),
    ).fetchall()
    by_launch: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for launch, *values in rows:
        by_launch[launch].append(tuple(values))
    speeds = []
    for launch, requests in by_launch.items():
        groups: dict[tuple[str, int], list[int]] = defaultdict(list)
        for (_, _, prompt, cached, generated, pp, tg, drafted, accepted), at_once in zip(
            requests, _streams([(at, at + max(1, duration // 1000)) for at, duration, *_ in requests]), strict=True
        ):
            if (
                tg
                and tg <= MAX_VALUE
                and generated is not None
                and generated >= MIN_GENERATED_TOKENS
                and prompt is not None
            ):
                stratum = _stratum(prompt + generated // 2, at_once, _share(accepted, drafted))
                groups["tg", stratum].append(tg)
            read = prompt - (cached or 0) if prompt is not None else 0
            if pp and pp <= MAX_VALUE and read >= MIN_READ_TOKENS:
                groups["pp", _stratum(prompt, at_once, read.bit_length())].append(pp)
        for rate in ("tg", "pp"):
            strata = [(len(values), stratum, values) for (its, stratum), values in groups.items() if its == rate]
            most = sorted(strata, reverse=True)[:MAX_STRATA]
            packed = array("I", (n for count, stratum, values in most for n in (stratum, count, median_low(values))))
            if packed:
                speeds.append(DaySpeed(launch, rate, packed))
    return speeds


def _stratum(depth: int, at_once: float, other: int) -> int:
    """One number for depth, requests at once and another share."""
    streams = min(AT_ONCE_CLASSES - 1, round(math.log(max(1.0, at_once), AT_ONCE_RATIO)))
    return (_depth_class(depth) * AT_ONCE_CLASSES + streams) * 32 + min(other, 31)


def _depth_class(depth: int) -> int:
    """Powers of two; above 4096, where the depth costs most, half of that."""
    octave = max(depth, 0).bit_length()
    upper_half = octave > 12 and depth * depth >= 1 << 2 * octave - 1
    return 2 * octave + upper_half


def requests_at_once(stratum: int) -> float:
    """About how many requests ran at once, of a stratum."""
    return float(AT_ONCE_RATIO ** (stratum // 32 % AT_ONCE_CLASSES))


def coarse_stratum(stratum: int) -> int:
    """The stratum without its last part."""
    return stratum // 32


def _share(accepted: int | None, drafted: int | None) -> int:
    """Which fifth the acceptance is in, from 1; 0 without a draft."""
    return 0 if not drafted or accepted is None else min(4, 5 * accepted // drafted) + 1


def _streams(spans: Sequence[tuple[int, int]]) -> Iterator[float]:
    """For each span of time the mean number of spans, itself included, that ran during it."""
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    times = [at for at, _ in edges]
    running = list(accumulate(step for _, step in edges))
    areas = [0, *accumulate(running[i] * (times[i + 1] - times[i]) for i in range(len(times) - 1))]

    def area(at: int) -> int:
        index = bisect_right(times, at) - 1
        return areas[index] + running[index] * (at - times[index])

    for begin, end in spans:
        yield (area(end) - area(begin)) / (end - begin)


@dataclass(frozen=True, slots=True)
class DayReadings:
    """What was read while one launch ran (launch 0: none), on one day."""

    launch: int
    observed: int
    """Tenths of a second; as ``power_time``."""
    power_time: int
    millijoules: int
    generated: int
    temperature: int | None
    """The mean while it was busy, in tenths of a degree Celsius."""


def read_day_readings(connection: sqlite3.Connection, begin: float, end: float) -> list[DayReadings]:
    """The readings of [begin, end), by launch."""
    rows = connection.execute(
        "SELECT launch, SUM(observed), IFNULL(SUM(power_time), 0), IFNULL(SUM(power * power_time) / 10, 0),"
        " IFNULL(SUM(generated), 0), SUM(temperature * busy) / NULLIF(SUM(busy * (temperature IS NOT NULL)), 0)"
        " FROM readings WHERE span IN (?, ?) AND at >= ? AND at < ? GROUP BY launch",
        (MINUTE, TEN_MINUTES, begin, end),
    )
    return [DayReadings(*row) for row in rows]


def stored_day_readings(connection: sqlite3.Connection, day: int) -> list[DayReadings]:
    """What ``close_day`` stored of ``read_day_readings``."""
    rows = connection.execute(
        "SELECT launch, observed, power_time, millijoules, generated, temperature FROM day_readings WHERE day = ?",
        (day,),
    )
    return [DayReadings(*row) for row in rows]


def close_day(connection: sqlite3.Connection, day: int) -> None:
    """Stores the sums of a day and of its hours. Part of the caller's transaction."""
    begin, end = day_begin(day), day_begin(day + 1)
    for table in ("day_sums", "day_speeds", "day_readings"):
        connection.execute(f"DELETE FROM {table} WHERE day = ?", (day,))
    connection.executemany(
        f"INSERT INTO day_sums VALUES ({_marks(11)})",
        [
            (
                day, *key, sums.requests, sums.errors, sums.prompt, sums.cached, sums.generated,
                sums.tg.tobytes(), sums.pp.tobytes(), sums.ttft.tobytes(),
            )
            for key, sums in read_day_sums(connection, begin, end).items()
        ],
    )  # fmt: skip
    connection.executemany(
        f"INSERT INTO day_speeds VALUES ({_marks(4)})",
        [(day, s.launch, s.rate, s.strata.tobytes()) for s in read_day_speeds(connection, begin, end)],
    )
    connection.executemany(
        f"INSERT INTO day_readings VALUES ({_marks(7)})",
        [
            (day, r.launch, r.observed, r.power_time, r.millijoules, r.generated, r.temperature)
            for r in read_day_readings(connection, begin, end)
        ],
    )
    # Whole hours: local midnight is not everywhere at a full one.
    fold_readings(connection, HOUR, begin - begin % HOUR, end + -end % HOUR, (MINUTE, TEN_MINUTES))
    connection.execute("DELETE FROM open_days WHERE day = ?", (day,))
    connection.execute("DELETE FROM judged")


def fold_readings(connection: sqlite3.Connection, span: int, begin: float, end: float, of: Iterable[int]) -> None:
    """Makes the rows of ``span`` seconds anew from the shorter rows ``of`` that lie in [begin, end)."""
    spans = ",".join(str(int(shorter)) for shorter in of)
    connection.execute(
        "INSERT OR REPLACE INTO readings SELECT ?1, at - at % ?1 AS start, launch, SUM(observed), SUM(busy),"
        " SUM(tg * tg_time) / NULLIF(SUM(tg_time * (tg IS NOT NULL)), 0), SUM(tg_time), MAX(tg_max),"
        " SUM(pp * pp_time) / NULLIF(SUM(pp_time * (pp IS NOT NULL)), 0), SUM(pp_time), MAX(pp_max),"
        " SUM(vram * observed) / NULLIF(SUM(observed * (vram IS NOT NULL)), 0),"
        " SUM(ram * observed) / NULLIF(SUM(observed * (ram IS NOT NULL)), 0),"
        " SUM(power * power_time) / NULLIF(SUM(power_time * (power IS NOT NULL)), 0), SUM(power_time), MAX(power_max),"
        " SUM(temperature * observed) / NULLIF(SUM(observed * (temperature IS NOT NULL)), 0), MAX(temperature_max),"
        " SUM(drafted), SUM(accepted), SUM(generated), MAX(context)"
        f" FROM readings WHERE span IN ({spans}) AND at >= ?2 AND at < ?3 GROUP BY start, launch",
        (span, begin, end),
    )


def _marks(count: int) -> str:
    return ",".join("?" * count)
