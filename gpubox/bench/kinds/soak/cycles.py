"""Finds "five fast, four slow" in a series of rates, and does not find it in noise. Pure.

Every pattern of ``fast`` requests followed by ``slow`` ones is laid over the series at every offset; the best one's
share of the variance (R² of a two-level fit) is the statistic. How large it gets by chance is learned from surrogates
of the series itself: AR(1) with the series' own lag-1 correlation and its own residuals drawn anew, a trend taken off
both. So a drift, a step or a slow wander raises the bar with it. A pattern must repeat at least three times, be rarer
than 1 in 200 among surrogates, and differ by 5 %: less matters to nobody.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SURROGATES = 199
"""None of them may do as well: so the series would be one in 200."""
LEAST_DIFFERENCE = 0.05
LEAST_REPEATS = 3
LONGEST, SHORTEST_RUN = 30, 2
MOST_POINTS = 600


@dataclass(frozen=True, slots=True)
class SpeedCycle:
    """``fast`` requests at one level, then ``slow`` at a lower one, again and again."""

    fast: int
    slow: int
    difference: float
    """How much lower the slow ones are, 0 to 1 of the fast ones."""
    repeats: float
    explained: float
    """Of the variance around the trend, 0 to 1."""

    def __str__(self) -> str:
        return f"{self.fast} fast, {self.slow} slow (-{self.difference:.0%}), {self.repeats:.0f} times"


def find_cycle(values: Sequence[float], *, seed: int = 0) -> SpeedCycle | None:
    """The pattern in ``values`` (rates in order of time, all positive), ``None`` where there is none to be sure of."""
    series = list(values)[-MOST_POINTS:]
    if len(series) < LEAST_REPEATS * 2 * SHORTEST_RUN:
        return None
    level = statistics.fmean(series)
    rest = detrend(series)
    found = _best(rest)
    if found is None or level <= 0:
        return None
    share, fast, slow, gap = found
    # fast and slow levels around the mean, weighted by how many there are of each
    high = level + gap * slow / (fast + slow)
    if gap / high < LEAST_DIFFERENCE or not _rare(rest, share, seed):
        return None
    return SpeedCycle(fast, slow, gap / high, len(series) / (fast + slow), share)


def max_period(n: int) -> int:
    """The longest pattern, in answers, that so many answers are searched for; a longer one is not seen."""
    return min(LONGEST, n // LEAST_REPEATS)


def detrend(values: Sequence[float]) -> list[float]:
    """``values`` minus the straight line through them."""
    n = len(values)
    middle, mean = (n - 1) / 2, statistics.fmean(values)
    below = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * value for i, value in enumerate(values)) / below if below else 0.0
    return [value - mean - slope * (i - middle) for i, value in enumerate(values)]


def _rare(rest: list[float], share: float, seed: int) -> bool:
    dice = random.Random(seed)
    energy = sum(value * value for value in rest)
    carried = sum(a * b for a, b in pairwise(rest)) / energy if energy else 0.0
    carried = max(0.0, min(0.98, carried))
    news = [b - carried * a for a, b in pairwise(rest)]
    for _ in range(SURROGATES):
        made, value = [], dice.choice(rest)
        for step in dice.choices(news, k=len(rest)):
            value = carried * value + step
            made.append(value)
        found = _best(detrend(made))
        if found is not None and found[0] >= share:
            return False
    return True


def _best(rest: Sequence[float]) -> tuple[float, int, int, float] | None:
    """Share of the variance, fast, slow and their difference, of the pattern that fits best."""
    n = len(rest)
    total = sum(value * value for value in rest)
    if total <= 0:
        return None
    best = None
    for period in range(2 * SHORTEST_RUN, max_period(n) + 1):
        sums = [sum(rest[phase::period]) for phase in range(period)]
        counts = [len(range(phase, n, period)) for phase in range(period)]
        whole = sum(sums)
        for begin in range(period):
            high, many = 0.0, 0
            for fast in range(1, period - SHORTEST_RUN + 1):
                phase = (begin + fast - 1) % period
                high += sums[phase]
                many += counts[phase]
                few = n - many
                if fast < SHORTEST_RUN or not few:
                    continue
                gap = high / many - (whole - high) / few
                share = gap * gap * many * few / n / total
                if gap > 0 and (best is None or share > best[0]):
                    best = (share, fast, period - fast, gap)
    return best
