"""Since when a profile is slower, and what changed then.

Speeds differ for harmless reasons: a deeper context, more requests at once, another share of accepted draft tokens.
Requests are compared within a stratum of all these, which gives each start of a server a level on each of its days.

A start can be slow by bad luck, and so can a day, so both are compared as wholes: the starts before a moment with those
after it, and the days before it with the days after. A profile is slower if nearly all later ones are below the middle
between both medians and so few earlier ones that chance does not explain it (Fisher's exact test, shared among all
moments and daily looks), if the drop is far outside the usual spread, and if it never was so slow for so long before.
"""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import attrgetter
from statistics import median, median_low
from typing import TypeVar

import msgspec

from gpubox.profiles.argv import given_flags
from gpubox.storage import DECODE_ERRORS
from gpubox.telemetry.history.file import day_begin, day_of, read_launches
from gpubox.telemetry.history.values import RateName, Slowdown, StoredLaunch

JUDGED_DAYS = 90
MIN_STARTS = (8, 2)
"""Before and after. One start after is told as such: see ``Slowdown.later_starts``."""
STARTS_BEFORE_ONE = 20
"""That a single start is slow says something only after so many of which none was: one in ten is slow by bad luck."""
MIN_DAYS = (14, 4)
MIN_CHANGE = 0.05
"""A smaller one is not worth a word."""
SPREADS = 3.25
"""So many times the usual spread is outside of it."""
HOLDS = 0.8
"""So many of the later ones are below the middle."""
STRETCH = 10
"""As many starts, and days, in a row as after the moment, but at most so many, were never so slow before."""
CHANCE = 0.1
"""Divided by the number of starts: so often chance may explain a drop. ``tests/perf/slower_since.py`` measures it."""
INTERVAL = 3.3
"""Standard errors on each side."""
MIN_NOISE = 0.006
"""The noise is not taken to be smaller: medians of few requests can agree by chance."""
MIN_REQUESTS = 4
"""Of a level."""
MIN_GENERATED_TOKENS, MIN_READ_TOKENS = 32, 256
"""Shorter answers and prompts have no speed worth comparing."""
MAX_WEIGHT = 25
AT_ONCE_RATIO = 1.1
"""Numbers of requests at once are comparable within this ratio."""
AROUND = 6
"""So many levels on each side of a moment say what changed."""
HOTTER_CELSIUS = 5.0
Stratum = tuple[int, int, int]
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class SpeedUnit:
    """The median speed of the comparable requests of one launch on one day."""

    day: int
    launch: int
    rate: RateName
    stratum: Hashable
    requests: int
    speed: float
    """Tokens per second."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The log speed of one launch on one day without the effects of its strata."""

    day: int
    launch: StoredLaunch
    value: float


# -- from the rows, once a day --------------------------------------------------------------------------


def judge(connection: sqlite3.Connection, now: float) -> list[Slowdown]:
    """The slowdowns of the last JUDGED_DAYS. Today does not count yet: it is half a day."""
    return list(chain.from_iterable(judging(connection, now)))


def judging(connection: sqlite3.Connection, now: float) -> Iterator[list[Slowdown]]:
    """``judge`` in steps of some milliseconds; the last one has the slowdowns."""
    launches = read_launches(connection, 0, now)
    begin, end = day_begin(day_of(now) - JUDGED_DAYS), day_begin(day_of(now))
    units: list[SpeedUnit] = []
    heat: dict[tuple[int, int], float] = {}
    for launch in launches:
        if not launch.measured and launch.until >= begin:
            units += _read_units(connection, launch.id, begin, end)
            yield []
    rows = connection.execute(
        "SELECT CAST(minute / 900 AS INTEGER) * 900 AS at, launch, SUM(heat) / SUM(heat_seconds) FROM minutes"
        " WHERE minute >= ? AND minute < ? AND heat_seconds > 0 GROUP BY 1, 2",
        (begin, end),
    )
    for at, launch_id, degrees in rows:
        key = (day_of(at), launch_id)
        heat[key] = max(degrees, heat.get(key, degrees))
    yield []
    yield find_slowdowns(units, launches, heat, day_begin)


def stored_judgement(connection: sqlite3.Connection, now: float | None = None) -> list[Slowdown] | None:
    """What the writer stored today, without ``now`` last; None if it has not come to it."""
    day = None if now is None else day_of(now)
    row = connection.execute("SELECT slowdowns FROM judged WHERE day = IFNULL(?, day)", (day,)).fetchone()
    try:
        return None if row is None else msgspec.json.decode(row[0], type=list[Slowdown])
    except DECODE_ERRORS:
        return None


def store_judgement(connection: sqlite3.Connection, slowdowns: Sequence[Slowdown], now: float) -> None:
    """Keeps today's slowdowns for all who ask."""
    connection.execute("DELETE FROM judged")
    values = (day_of(now), msgspec.json.encode(slowdowns).decode())
    connection.execute("INSERT INTO judged VALUES (?, ?)", values)


def _read_units(connection: sqlite3.Connection, launch: int, begin: float, end: float) -> Iterator[SpeedUnit]:
    """The speeds of the requests of one launch that began in [begin, end)."""
    requests = connection.execute(
        "SELECT at, duration_seconds, prompt_tokens, IFNULL(cached_tokens, 0), generated_tokens,"
        " pp_tokens_per_second, tg_tokens_per_second, draft_tokens, draft_tokens_accepted FROM requests"
        " WHERE launch = ? AND at >= ? AND at < ? AND duration_seconds IS NOT NULL AND prompt_tokens IS NOT NULL"
        " ORDER BY at",
        (launch, begin, end),
    ).fetchall()
    groups: dict[tuple[int, RateName, Stratum], list[float]] = defaultdict(list)
    streams = _streams([(at, at + max(0.001, seconds)) for at, seconds, *_ in requests])
    day, until = 0, begin
    for (at, _, prompt, cached, generated, pp, tg, drafted, accepted), at_once in zip(requests, streams, strict=True):
        if at >= until:
            day, until = day_of(at), day_begin(day_of(at) + 1)
        many, read = round(math.log(max(1.0, at_once), AT_ONCE_RATIO)), int(prompt - cached)
        if tg and (generated or 0) >= MIN_GENERATED_TOKENS:
            share = 0 if not drafted or accepted is None else 1 + min(4, int(5 * accepted / drafted))
            groups[day, "tg", (_depth_class(prompt + generated / 2), many, share)].append(tg)
        if pp and read >= MIN_READ_TOKENS:
            groups[day, "pp", (_depth_class(prompt), many, read.bit_length())].append(pp)
    for (day, rate, stratum), speeds in groups.items():
        yield SpeedUnit(day, launch, rate, stratum, len(speeds), median_low(speeds))


def _depth_class(depth: float) -> int:
    """Powers of two; above 4096, where the depth costs most, half of that."""
    octave = int(depth).bit_length()
    return 2 * octave + (octave > 12 and depth * depth >= 1 << 2 * octave - 1)


def _streams(spans: Sequence[tuple[float, float]]) -> Iterator[float]:
    """For each span of time the mean number of spans, itself included, that ran during it."""
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    times = [at for at, _ in edges]
    running = list(accumulate(step for _, step in edges))
    areas = [0.0, *accumulate(running[i] * (times[i + 1] - times[i]) for i in range(len(times) - 1))]

    def area(at: float) -> float:
        index = bisect_right(times, at) - 1
        return areas[index] + running[index] * (at - times[index])

    for begin, end in spans:
        yield (area(end) - area(begin)) / (end - begin)


# -- the rule -------------------------------------------------------------------------------------------


def find_slowdowns(
    units: Iterable[SpeedUnit],
    launches: Sequence[StoredLaunch],
    temperatures: Mapping[tuple[int, int], float],
    begin_of: Callable[[int], float],
) -> list[Slowdown]:
    """The profiles that have become slower and still are. Pure.

    ``launches``: all of them, also those of other profiles. ``temperatures``: of the hottest card while it worked, in
    degrees Celsius, by day and id of the launch. ``begin_of`` a day, in unix seconds.
    """
    by_id = {launch.id: launch for launch in launches}
    series: dict[tuple[str, RateName], list[SpeedUnit]] = defaultdict(list)
    for unit in units:
        if unit.launch in by_id and unit.speed > 0:
            series[by_id[unit.launch].profile, unit.rate].append(unit)
    slowdowns = []
    for (profile, rate), own in sorted(series.items()):
        levels = _levels(own, by_id)
        if not (at := _drop(levels)):
            continue
        before, after = levels[:at], levels[at:]
        change, error = _change(before, after)
        old, new = before[-1].launch, after[0].launch
        since = new.started if new.id != old.id else begin_of(after[0].day)
        speed = _typical(own, before)
        slowdowns.append(
            Slowdown(
                profile, rate, since, speed, speed * math.exp(change),
                math.exp(change - error) - 1, math.exp(change + error) - 1,
                tuple(_causes(before, after, launches, temperatures, since)), _later_starts(before, after),
            )
        )  # fmt: skip
    return slowdowns


def _levels(units: list[SpeedUnit], launches: Mapping[int, StoredLaunch]) -> list[_Level]:
    """The levels in order of time: medians in turn, so that no odd stratum or day pulls them."""
    rows = [((u.day, u.launch), u.stratum, math.log(u.speed), min(u.requests, MAX_WEIGHT)) for u in units]
    effects = _medians((stratum, value, 1) for _, stratum, value, _ in rows)
    levels: dict[tuple[int, int], float] = {}
    for _ in range(3):
        levels = _medians((key, value - effects[stratum], weight) for key, stratum, value, weight in rows)
        effects = _medians((stratum, value - levels[key], weight) for key, stratum, value, weight in rows)
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for unit in units:
        counts[unit.day, unit.launch] += unit.requests
    enough = [key for key in levels if counts[key] >= MIN_REQUESTS]
    ordered = sorted(enough, key=lambda key: (key[0], launches[key[1]].started))
    return [_Level(day, launches[launch], levels[day, launch]) for day, launch in ordered]


def _medians(rows: Iterable[tuple[_Key, float, int]]) -> dict[_Key, float]:
    """The weighted median of each key: (key, value, weight)."""
    groups: dict[_Key, list[tuple[float, int]]] = defaultdict(list)
    for key, value, weight in rows:
        groups[key].append((value, weight))
    medians = {}
    for key, values in groups.items():
        values.sort()
        half, passed = sum(weight for _, weight in values) / 2, 0
        for value, weight in values:
            passed += weight
            if passed >= half:
                medians[key] = value
                break
    return medians


def _drop(levels: list[_Level]) -> int | None:
    """Where the drop begins that chance explains least, if it does not explain it."""
    chances = [(_chance(levels[:at], levels[at:]), -at) for at in range(1, len(levels))]
    chance, at = min(chances, default=(1.0, 0))
    starts = len({level.launch.id for level in levels})
    return -at if starts and chance <= CHANCE / starts else None


def _chance(before: list[_Level], after: list[_Level]) -> float:
    """How likely the drop between both is if nothing has changed; 1 if it is no clear drop."""
    old, new = (median(level.value for level in levels) for levels in (before, after))
    if old - new < MIN_CHANGE / 2:
        return 1.0  # most moments are dismissed with this, quickly
    starts = _parts(before, _start), _parts(after, _start)
    days = _parts(before, _day), _parts(after, _day)
    later = _later_starts(before, after)
    if later < MIN_STARTS[1] and len(starts[1]) > 1:
        return 1.0  # it was slower in the course of a start, and there was no second one since
    if len(starts[0]) < MIN_STARTS[0] or len(days[0]) < MIN_DAYS[0] or len(days[1]) < MIN_DAYS[1] or not later:
        return 1.0
    chances = [_chance_of(*days)]
    if later >= MIN_STARTS[1]:
        chances.append(_chance_of(*starts))
    elif len(starts[0]) < STARTS_BEFORE_ONE or min(starts[0]) < (median(starts[0]) + starts[1][0]) / 2:
        return 1.0
    return max(chances)


def _chance_of(before: list[float], after: list[float]) -> float:
    """Of starts, or of days: the chance that those after are so much slower."""
    old, new = median(before), median(after)
    spread = 1.4826 * median(abs(value - old) for value in before)
    middle = (old + new) / 2
    slow_after, slow_before = (sum(value < middle for value in values) for values in (after, before))
    if old - new < max(-math.log(1 - MIN_CHANGE), SPREADS * spread) or slow_after < HOLDS * len(after):
        return 1.0
    length = min(len(after), STRETCH)
    if any(median(before[at : at + length]) < middle for at in range(len(before) - length + 1)):
        return 1.0
    slow, count, later = slow_after + slow_before, len(before) + len(after), len(after)
    ways = sum(math.comb(slow, i) * math.comb(count - slow, later - i) for i in range(slow_after, min(later, slow) + 1))
    return ways / math.comb(count, later)


_start, _day = attrgetter("launch.id"), attrgetter("day")


def _parts(levels: Iterable[_Level], of: Callable[[_Level], int]) -> list[float]:
    """The median level of each start, or of each day, in order of time."""
    parts: dict[int, list[float]] = defaultdict(list)
    for level in levels:
        parts[of(level)].append(level.value)
    return [median(values) for values in parts.values()]


def _later_starts(before: Iterable[_Level], after: Iterable[_Level]) -> int:
    return len({level.launch.id for level in after} - {level.launch.id for level in before})


def _change(before: Sequence[_Level], after: Sequence[_Level]) -> tuple[float, float]:
    """The change in log speed, and half the width of its interval: by the starts or the days, whichever differ more."""
    changes, errors = [], []
    for of in (_start, _day):
        old, new = _parts(before, of), _parts(after, of)
        residuals = [abs(value - median(values)) for values in (old, new) for value in values]
        noise = max(1.4826 * median(residuals), sum(residuals) / len(residuals), MIN_NOISE)
        changes.append(median(new) - median(old))
        errors.append(INTERVAL * 1.25 * noise * math.sqrt(1 / len(old) + 1 / len(new)))
    return sum(changes) / 2, max(errors)


def _typical(units: list[SpeedUnit], levels: Sequence[_Level]) -> float:
    """The median speed, before the drop, of the requests that there were most of."""
    wanted = {(level.day, level.launch.id) for level in levels}
    speeds: dict[Hashable, list[SpeedUnit]] = defaultdict(list)
    for unit in units:
        if (unit.day, unit.launch) in wanted:
            speeds[unit.stratum].append(unit)
    most = max(speeds.values(), key=lambda own: sum(unit.requests for unit in own))
    return median(unit.speed for unit in most)


# -- what changed ---------------------------------------------------------------------------------------


def _causes(
    before: Sequence[_Level],
    after: Sequence[_Level],
    launches: Sequence[StoredLaunch],
    temperatures: Mapping[tuple[int, int], float],
    since: float,
) -> Iterator[str]:
    # The moment may be a start or two off, on a bad day: what most launches on each side were tells more.
    old, new = _usual([level.launch for level in before[-AROUND:]]), _usual([level.launch for level in after[:AROUND]])
    if old.engine_path != new.engine_path:
        yield f"engine {old.engine_path or 'unknown'} -> {new.engine_path or 'unknown'}"
    if old.engine_version != new.engine_version:
        yield f"engine version {old.engine_version or 'unknown'} -> {new.engine_version or 'unknown'}"
    if old.driver and new.driver and old.driver != new.driver:
        yield f"driver {old.driver} -> {new.driver}"
    yield from changed_flags(old.argv, new.argv)
    cool, hot = (
        [temperatures[key] for level in levels if (key := (level.day, level.launch.id)) in temperatures]
        for levels in (before, after)
    )
    if cool and hot and median(hot) - median(cool) >= HOTTER_CELSIUS:
        yield f"the card is hotter: {median(cool):.0f} -> {median(hot):.0f} °C"
    now, own = max(launch.until for launch in launches), new.profile
    for name in dict.fromkeys(launch.profile for launch in launches if launch.profile != own):
        earlier = _share_beside(launches, own, name, before[0].launch.started, since)
        if _share_beside(launches, own, name, since, now) - earlier >= 0.5:
            yield f"{name} runs beside it"


def _usual(launches: Sequence[StoredLaunch]) -> StoredLaunch:
    """A launch like most of them."""
    kinds = [(launch.engine_path, launch.engine_version, launch.driver, launch.argv) for launch in launches]
    return launches[kinds.index(max(kinds, key=kinds.count))]


def changed_flags(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The flags that two command lines do not share, as ``--ctx-size 4096 -> 8192``. The binary is no flag."""
    before, after = given_flags(old), given_flags(new)
    texts = []
    for name in dict.fromkeys((*before, *after)):
        was, now = before.get(name), after.get(name)
        if was == now or name in ("--port", "--host", "--alias", "-a"):
            continue
        if was is None:
            texts.append(f"{name} {now}".rstrip() + " is new")
        elif now is None:
            texts.append(f"{name} {was}".rstrip() + " is gone")
        else:
            texts.append(f"{name} {was} -> {now}")
    return texts


def _share_beside(launches: Sequence[StoredLaunch], own: str, other: str, begin: float, end: float) -> float:
    """How much of the time in which the profile ``own`` ran, ``other`` ran beside it."""
    spans = {
        name: [(max(begin, launch.started), min(end, launch.until)) for launch in launches if launch.profile == name]
        for name in (own, other)
    }
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in spans[own] for b in spans[other])
    return both / max(1.0, sum(max(0.0, span[1] - span[0]) for span in spans[own]))
