"""Since when a profile is slower, and what changed then. Pure.

Speeds differ for harmless reasons: a deeper context, more requests at once, another share of accepted draft tokens.
Requests are therefore compared within a stratum of all these. Requests of one launch on one day share whatever made
them fast or slow, so a launch's day is one observation, however many requests it has:

    log(median speed) of a stratum in a unit  =  level of the unit + effect of the stratum

The levels are then searched for the step that stands out most. It counts if it is far outside the noise between units
(which is measured, with the correlation between neighbours), large enough to matter, and has not gone since.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import median

from gpubox.telemetry.history_values import RateName, Slowdown, StoredLaunch

MIN_BEFORE, MIN_AFTER = 6, 3
"""Units. Fewer before do not show the usual noise; fewer after may be one bad day."""
MIN_WINDOW = 16
"""Units of the shortest stretch in which a step is looked for."""
MIN_REQUESTS = 4
"""Of a unit."""
MIN_CHANGE = 0.05
"""A smaller one is not worth a word."""
THRESHOLD = 5.5
"""How many standard errors. The search takes the largest of hundreds, over months and several profiles."""
MIN_NOISE = 0.006
"""The noise between units is not taken to be smaller: medians of few requests can agree by chance."""
HOLDS = 0.75
"""So many of the units after the step are below the middle between both levels."""
MAX_WEIGHT = 25
AROUND = 6
"""So many units on each side of a step say what changed."""
INTERVAL = 3.3
"""Standard errors on each side: with 2.6, six of about a hundred simulated intervals missed the truth by a little."""
HOTTER_CELSIUS = 5.0
MORE_AT_ONCE = 0.7
LOAD_WEIGHT = 0.4


@dataclass(frozen=True, slots=True)
class SpeedUnit:
    """The median speed of the comparable requests of one launch on one day."""

    day: int
    launch: int
    rate: RateName
    stratum: int
    requests: int
    speed: float
    """Tokens per second."""
    at_once: float = 1.0
    """How many requests ran at once."""
    coarse_stratum: int = 0
    """The stratum without the share of accepted draft tokens, or the length of what was read."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The log speed of one unit without the effects of its strata."""

    day: int
    launch: StoredLaunch
    value: float
    at_once: float


def find_slowdowns(
    units: Iterable[SpeedUnit],
    launches: Sequence[StoredLaunch],
    temperatures: Mapping[tuple[int, int], float],
    day_begin: Callable[[int], float],
) -> list[Slowdown]:
    """The profiles that have become slower and still are.

    ``launches``: all of them, also those of other profiles. ``temperatures``: of the hottest card while it worked, in
    degrees Celsius, by day and id of the launch.
    """
    by_id = {launch.id: launch for launch in launches}
    series: dict[tuple[str, RateName], list[SpeedUnit]] = defaultdict(list)
    for unit in units:
        if unit.launch in by_id and unit.speed > 0:
            series[by_id[unit.launch].profile, unit.rate].append(unit)
    slowdowns = []
    for (profile, rate), its_units in sorted(series.items()):
        if _is_parted(its_units):  # such as before and after a draft model: no two requests are comparable
            its_units = [replace(unit, stratum=unit.coarse_stratum) for unit in its_units]
        levels = _levels(its_units, by_id)
        if step := _last_drop([level.value for level in levels]):
            before, after = levels[step.begin : step.at], levels[step.at :]
            if step.change + _load_effect(before, after) > math.log(1 - MIN_CHANGE):
                continue
            since = _since(before[-1], after[0], day_begin)
            speed = _typical(its_units, before)
            slowdowns.append(
                Slowdown(
                    profile, rate, since, speed, speed * math.exp(step.change),
                    math.exp(step.change - step.error) - 1, math.exp(step.change + step.error) - 1,
                    tuple(_changes(before, after, launches, temperatures, since)),
                )
            )  # fmt: skip
    return slowdowns


def _is_parted(units: Iterable[SpeedUnit]) -> bool:
    """Whether enough units to make a step share no stratum with the others, not even through third ones."""
    by_unit: dict[tuple[int, int], set[int]] = defaultdict(set)
    for unit in units:
        by_unit[unit.day, unit.launch].add(unit.stratum)
    parts: list[tuple[int, set[int]]] = []
    for strata in by_unit.values():
        touched = [part for part in parts if part[1] & strata]
        parts = [part for part in parts if part not in touched]
        parts.append((1 + sum(count for count, _ in touched), strata.union(*(own for _, own in touched))))
    return sorted(count for count, _ in parts)[-2:-1] >= [MIN_AFTER]


def _levels(units: list[SpeedUnit], launches: Mapping[int, StoredLaunch]) -> list[_Level]:
    """The level of each unit, in order of time: medians in turn, so that no odd stratum or unit pulls them."""
    by_unit: dict[tuple[int, int], list[tuple[int, int, float]]] = defaultdict(list)
    by_stratum: dict[int, list[tuple[tuple[int, int], int, float]]] = defaultdict(list)
    for unit in units:
        key, weight, value = (unit.day, unit.launch), min(unit.requests, MAX_WEIGHT), math.log(unit.speed)
        by_unit[key].append((unit.stratum, weight, value))
        by_stratum[unit.stratum].append((key, weight, value))
    effects = {stratum: median([value for _, _, value in rows]) for stratum, rows in by_stratum.items()}
    levels: dict[tuple[int, int], float] = {}
    for _ in range(3):
        levels = {
            key: _weighted_median([(value - effects[stratum], weight) for stratum, weight, value in rows])
            for key, rows in by_unit.items()
        }
        effects = {
            stratum: _weighted_median([(value - levels[key], weight) for key, weight, value in rows])
            for stratum, rows in by_stratum.items()
        }
    at_once: dict[tuple[int, int], tuple[float, int]] = {}
    for unit in units:
        total, count = at_once.get((unit.day, unit.launch), (0.0, 0))
        at_once[unit.day, unit.launch] = (total + unit.at_once * unit.requests, count + unit.requests)
    return [
        _Level(day, launches[launch], levels[day, launch], at_once[day, launch][0] / at_once[day, launch][1])
        for day, launch in sorted(levels, key=lambda unit: (unit[0], launches[unit[1]].started))
        if at_once[day, launch][1] >= MIN_REQUESTS
    ]


def _weighted_median(values: list[tuple[float, int]]) -> float:
    values.sort()
    half, passed = sum(weight for _, weight in values) / 2, 0
    for value, weight in values:
        passed += weight
        if passed >= half:
            return value
    return values[-1][0]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step from the levels of [begin, at) to those from ``at`` on, in log speed."""

    begin: int
    at: int
    change: float
    error: float
    """Half the width of its interval."""


def _last_drop(values: list[float]) -> _Step | None:
    """The newest step down that still holds."""
    begin, end = 0, len(values)
    steps = sorted(_steps(values, begin, end))
    for number in range(len(steps) - 1, -1, -1):
        at = steps[number]
        begin = steps[number - 1] if number else 0
        step = _step(values, begin, at, len(values), steps[number + 1 :])
        if step is not None and step.change <= math.log(1 - MIN_CHANGE):
            return step
    return None


def _steps(values: list[float], begin: int, end: int) -> list[int]:
    """Where the levels of [begin, end) change.

    Seeded intervals (Kovacs et al. 2023), the narrowest first: one that holds a single step shows it clearly, while in
    a longer one other steps would pass for noise.
    """
    length = end - begin
    if length < MIN_BEFORE + MIN_AFTER:
        return []
    for size, starts in _windows(length):
        best = max(
            (step for start in starts if (step := _outstanding(values[begin + start : begin + start + size], start))),
            default=None,
        )
        if best is not None:
            at = begin + best[1]
            return [*_steps(values, begin, at), at, *_steps(values, at, end)]
    return []


def _windows(length: int) -> Iterable[tuple[int, list[int]]]:
    """Sizes of intervals, rising, and where they start: neighbours overlap by half."""
    sizes = [length]
    while sizes[-1] * 2 // 3 >= MIN_WINDOW:
        sizes.append(sizes[-1] * 2 // 3)
    for size in reversed(sizes):
        last = length - size
        yield size, sorted({min(last, start) for start in range(0, last + size // 2, max(1, size // 2))})


def _outstanding(values: list[float], offset: int) -> tuple[float, int] | None:
    """How far the step that stands out most is outside the noise, and its index; None if not far enough."""
    count, total = len(values), sum(values)
    best, best_score, left = 0, 0.0, 0.0
    for index in range(1, count):
        left += values[index - 1]
        if MIN_BEFORE <= index <= count - MIN_AFTER:
            score = abs(left / index - (total - left) / (count - index)) * math.sqrt(index * (count - index))
            best, best_score = (index, score) if score > best_score else (best, best_score)
    step = _step(values, 0, best, count) if best else None
    return None if step is None else (abs(step.change) / step.error, offset + best)


def _step(values: list[float], begin: int, at: int, end: int, later: Sequence[int] = ()) -> _Step | None:
    """The step at ``at``; None if it is within the noise. ``later``: smaller steps after it, which are no noise."""
    before, after = values[begin:at], values[at:end]
    if len(before) < MIN_BEFORE or len(after) < MIN_AFTER:
        return None
    old, new = median(before), median(after)
    change = new - old
    residuals = [value - old for value in before]
    for first, last in pairwise((at, *later, end)):
        level = median(values[first:last])
        residuals += [value - level for value in values[first:last]]
    noise = _noise(residuals)
    correlation = _correlation(residuals)
    # Medians are less sharp than means by a factor of 1.25; correlated neighbours count for fewer.
    error = 1.25 * noise * math.sqrt((1 / len(before) + 1 / len(after)) * (1 + correlation) / (1 - correlation))
    few = 1 + 5 / len(residuals)  # the noise itself is not known better than that
    if abs(change) < THRESHOLD * few * error:
        return None
    middle = (old + new) / 2
    holding = sum((value < middle) == (change < 0) for value in after) / len(after)
    recent = median(after[-MIN_AFTER:])
    if holding < HOLDS or (recent < middle) != (change < 0):
        return None
    return _Step(begin, at, change, INTERVAL * few * error)


def _noise(residuals: list[float]) -> float:
    """The spread between units: the larger of two estimates that single outliers do not move."""
    spread = 1.4826 * median([abs(value) for value in residuals])
    mean_spread = 1.2533 * sum(abs(value) for value in residuals) / len(residuals)
    return max(spread, 0.8 * mean_spread, MIN_NOISE)


def _correlation(residuals: list[float]) -> float:
    """Between neighbours, 0 to 0.9. What can be estimated from few is too low by about 1/n."""
    count = len(residuals)
    square = sum(value * value for value in residuals)
    if count < 4 or not square:
        return 0.0
    product = sum(residuals[i] * residuals[i + 1] for i in range(count - 1))
    return min(0.9, max(0.0, product / square + 1 / count))


def _load_effect(before: Sequence[_Level], after: Sequence[_Level]) -> float:
    """What part of the step a change of load may explain, in log speed.

    Requests that ran together are compared with such, but how much they held each other up is known only roughly.
    """
    few, many = (median([level.at_once for level in levels]) for levels in (before, after))
    return LOAD_WEIGHT * abs(math.log(many / few))


def _since(last: _Level, first: _Level, day_begin: Callable[[int], float]) -> float:
    """When it began: with the launch, if that is new, else with the day."""
    return first.launch.started if first.launch.id != last.launch.id else day_begin(first.day)


def _typical(units: list[SpeedUnit], levels: Sequence[_Level]) -> float:
    """The median speed, before the step, of the requests that there were most of."""
    wanted = {(level.day, level.launch.id) for level in levels}
    counts: dict[int, int] = defaultdict(int)
    for unit in units:
        if (unit.day, unit.launch) in wanted:
            counts[unit.stratum] += unit.requests
    stratum = max(counts, key=lambda key: counts[key])
    return median([u.speed for u in units if u.stratum == stratum and (u.day, u.launch) in wanted])


# -- what changed ---------------------------------------------------------------------------------------


def _changes(
    before: Sequence[_Level],
    after: Sequence[_Level],
    launches: Sequence[StoredLaunch],
    temperatures: Mapping[tuple[int, int], float],
    since: float,
) -> Iterable[str]:
    # The step may be placed a unit or two off, on a bad day: what most launches on each side were tells more.
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
    few, many = (median([level.at_once for level in levels]) for levels in (before, after))
    if many - few >= MORE_AT_ONCE:
        yield f"more requests at once: {few:.1f} -> {many:.1f}"
    yield from _neighbours(before, after, launches, since)


def _usual(launches: Sequence[StoredLaunch]) -> StoredLaunch:
    """A launch like most of them."""
    kinds = [(launch.engine_path, launch.engine_version, launch.driver, launch.argv) for launch in launches]
    return launches[kinds.index(max(kinds, key=kinds.count))]


def changed_flags(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The flags that two command lines do not share, as ``--ctx-size 4096 -> 8192``. The binary is no flag."""
    before, after = _flags(old), _flags(new)
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


def _flags(argv: Sequence[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    name = ""
    for word in argv[1:]:
        if word.startswith("-") and not _is_number(word):
            name = word
            flags.setdefault(name, "")
        elif name:
            flags[name] = f"{flags[name]} {word}".strip()
    return flags


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdecimal()


def _neighbours(
    before: Sequence[_Level], after: Sequence[_Level], launches: Sequence[StoredLaunch], since: float
) -> Iterable[str]:
    """Servers that ran beside the profile after the step and not before it."""
    profile, now = after[0].launch.profile, max(launch.until for launch in launches)

    def share(name: str, begin: float, end: float) -> float:
        own = [_span(launch, begin, end) for launch in launches if launch.profile == profile]
        other = [_span(launch, begin, end) for launch in launches if launch.profile == name]
        both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in own for b in other)
        return both / max(1.0, sum(max(0.0, span[1] - span[0]) for span in own))

    begin = before[0].launch.started
    for name in dict.fromkeys(launch.profile for launch in launches if launch.profile != profile):
        if share(name, since, now) - share(name, begin, since) >= 0.5:
            yield f"{name} runs beside it"


def _span(launch: StoredLaunch, begin: float, end: float) -> tuple[float, float]:
    return max(begin, launch.started), min(end, launch.until)


def slowdown_sentence(slowdown: Slowdown) -> str:
    """What the owner reads: how much slower, since when, and what changed then."""
    day = datetime.fromtimestamp(slowdown.since).astimezone()
    change = f"{slowdown.before:.1f} -> {slowdown.after:.1f} tok/s, {slowdown.low:+.0%} to {slowdown.high:+.0%}"
    causes = "; ".join(slowdown.changed) or "nothing that gpubox knows of"
    return f"{slowdown.profile} is slower since {day:%Y-%m-%d}: {slowdown.rate} {change}. What changed then: {causes}."
