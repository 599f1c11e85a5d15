"""How often "slower since" is said of a profile that is as fast as ever, and how soon of one that lost 8 per cent.

python -m tests.perf.slower_since [--boxes 40] [--first 1] [--noise bimodal ...]

A box is looked at on 80 days in a row. Its noise is made here, apart from what judges it: the luck of each start, of
each day and of each of their medians, and with it one of

    plain    nothing else                           bimodal  half of the starts are 12 % slower
    bad      one start in ten is about 20 % slower  ar       days that hang together (0.8 a day, 2 %)
    ramps    each day goes down by 10 %             steps    12 % less for 6 to 36 hours, once in nine days
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from statistics import median

from gpubox.telemetry.history.slowdowns import SpeedUnit, find_slowdowns
from gpubox.telemetry.history.values import Slowdown, StoredLaunch

DAYS, DROP_DAY, DROP = 80, 55, 0.08
NOISES = ("plain", "bimodal", "bad", "ar", "ramps", "steps")
STARTS_A_DAY = (3.0, 1.0, 0.5)
DAY = 86400.0
ALLOWED = 0.05


def box(rng: random.Random, noise: str, rate: float, *, drops: bool) -> tuple[list[SpeedUnit], list[StoredLaunch]]:
    """What a box did: the speed of each start on each of its days."""
    day_luck = [rng.gauss(0, 0.008) for _ in range(DAYS)]
    if noise == "ar":
        day_luck[0] = rng.gauss(0, 0.02)
        for day in range(1, DAYS):
            day_luck[day] = 0.8 * day_luck[day - 1] + rng.gauss(0, 0.02 * 0.6)
    slow: list[tuple[float, float]] = []
    at = rng.expovariate(1 / 8)
    while noise == "steps" and at < DAYS:
        slow.append((at, at + rng.uniform(0.25, 1.5)))
        at = slow[-1][1] + rng.expovariate(1 / 8)
    units: list[SpeedUnit] = []
    launches: list[StoredLaunch] = []
    begin = 0.0
    while begin < DAYS:
        end = min(DAYS, begin + max(0.05, rng.expovariate(rate)))
        luck = rng.gauss(0, 0.012)
        luck -= 0.12 * (noise == "bimodal" and rng.random() < 0.5)
        luck -= abs(rng.gauss(0.2, 0.08)) * (noise == "bad" and rng.random() < 0.1)
        number = len(launches) + 1
        launches.append(StoredLaunch(number, "p", begin * DAY, end * DAY, end * DAY, "stop", "/e", "b", "", ()))
        for day in range(int(begin), math.ceil(end)):
            low, high = max(begin, day), min(end, day + 1)
            value = luck + day_luck[day] + rng.gauss(0, 0.008)
            value -= 0.10 * ((low + high) / 2 % 1) * (noise == "ramps")
            hidden = sum(max(0.0, min(high, b) - max(low, a)) for a, b in slow)
            value -= 0.12 * (hidden > (high - low) / 2)
            value += math.log(1 - DROP) * (drops and low >= DROP_DAY)
            if high - low > 0.03:
                units.append(SpeedUnit(day, number, "tg", 0, 20, 40 * math.exp(value)))
        begin = end
    return units, launches


def first_alarm(
    units: list[SpeedUnit], launches: list[StoredLaunch], since: int, until: int
) -> tuple[int, Slowdown] | None:
    """The first day on which the box was called slower."""
    for today in range(since, until + 1):
        seen = [unit for unit in units if unit.day < today]
        known = [launch for launch in launches if launch.started < today * DAY]
        if slowdowns := find_slowdowns(seen, known, {}, lambda day: day * DAY):
            return today, slowdowns[0]
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--boxes", type=int, default=40)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--noise", nargs="*", default=NOISES)
    given = parser.parse_args()
    problems = []
    for noise in given.noise:
        alarms = boxes = 0
        for rate in STARTS_A_DAY:
            false, this_start, found_after = 0, 0, []
            for seed in range(given.first, given.first + given.boxes):
                name = f"{seed} {noise} {rate}"
                alarm = first_alarm(*box(random.Random(name), noise, rate, drops=False), 1, DAYS)
                false += bool(alarm and alarm[1].later_starts > 1)
                this_start += bool(alarm and alarm[1].later_starts == 1)
                found = first_alarm(*box(random.Random(name), noise, rate, drops=True), DROP_DAY + 1, DROP_DAY + 10)
                found_after += [found[0] - DROP_DAY] if found else []
            alarms, boxes = alarms + false + this_start, boxes + given.boxes
            found_share = len(found_after) / given.boxes
            when = f", after {median(found_after):.0f} days" if found_after else ""
            print(
                f"{noise:8} {rate:3.1f} starts a day: false {false / given.boxes:5.1%}, of this start"
                f" {this_start / given.boxes:5.1%}; -8 % found within 10 days {found_share:4.0%}{when}",
                flush=True,
            )
        if alarms > ALLOWED * boxes:
            problems.append(f"{noise}: {alarms} false alarms in {boxes} boxes")
    print("\n".join(problems) or "all is as promised")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
