"""What the series of a soak show: rates adjusted for depth, memory growth, cycles of fast and slow answers. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise

from gpubox.bench.stats import lag1_autocorrelation

MIN_WINDOWS = 8
"""With fewer, the last two thirds are fewer than six: no order of those is significant at 99 %."""
Z99 = 2.576
"""Normal quantile of 99 %, two-sided."""
MIN_GROWTH_BYTES, MIN_GROWTH_SHARE = 16 << 20, 0.005
SURROGATES = 199
"""No surrogate may fit as well as the series: a significance of 1 in 200."""
MIN_CYCLE_DIFFERENCE, MIN_CYCLE_REPEATS = 0.05, 3
MAX_PERIOD, MIN_RUN = 30, 2
"""Answers in one period, and in one of its two runs."""
MIN_CYCLE_ANSWERS = MIN_CYCLE_REPEATS * 2 * MIN_RUN
MAX_CYCLE_POINTS = 600


def depth_adjusted_rates(rates: Sequence[float], depths: Sequence[int]) -> list[float]:
    """The rates as they would be at the mean depth, because conversations grow and start anew.

    The time per token is linear in the depth (attention), so a line is fitted and taken out.
    """
    if len(set(depths)) < 2:
        return list(rates)
    times = [1 / rate for rate in rates]
    slope = max(0.0, statistics.linear_regression(depths, times).slope)  # no server gets faster with depth
    mean = statistics.fmean(depths)
    return [1 / max(time - slope * (depth - mean), time / 10) for depth, time in zip(depths, times, strict=True)]


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How an amount of memory changes."""

    first: float
    last: float
    """Medians of the second and of the last third; in the first third the server warms up."""
    per_hour: float
    grows: bool
    """Significantly, and by more than a server's usual ups and downs."""


def memory_growth(values: Sequence[float], seconds: Sequence[float]) -> MemoryGrowth | None:
    """The Theil-Sen slope over the last two thirds, tested with Kendall's test. ``None`` below MIN_WINDOWS values."""
    n = len(values)
    if n < MIN_WINDOWS:
        return None
    late = values[n // 3 :]
    half = len(late) // 2
    first, last = statistics.median(late[:half]), statistics.median(late[half:])
    points = zip(late, seconds[n // 3 :], strict=True)
    slopes = [(b - a) / (end - begin) for (a, begin), (b, end) in combinations(points, 2) if end > begin]
    slope = statistics.median(slopes) if slopes else 0.0
    least = max(MIN_GROWTH_BYTES, MIN_GROWTH_SHARE * first)
    return MemoryGrowth(first, last, slope * 3600, last - first > least and kendall_z(late) > Z99)


def kendall_z(values: Sequence[float]) -> float:
    """Kendall's S as a z score, corrected for ties: above Z99 the values rise."""
    n = len(values)
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    if not score:
        return 0.0
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return (score - math.copysign(1, score)) / math.sqrt(variance)


def find_cycle(rates: Sequence[float]) -> str:
    """``5 fast, 4 slow (-25%), 8 times``, if ``rates`` (in order of time, all positive) alternate so; else empty.

    The statistic is R² of the best two-level fit over all lengths and offsets. Its chance level comes from surrogates:
    AR(1) series with the lag-1 autocorrelation and the residuals of the series itself, both detrended. A drift, a step
    or a slow wander therefore raises the bar.
    """
    series = list(rates)[-MAX_CYCLE_POINTS:]
    if len(series) < MIN_CYCLE_ANSWERS:
        return ""
    residuals = detrend(series)
    r_squared, gap, fast, slow = _best_fit(residuals)
    difference = gap / (statistics.fmean(series) + gap * slow / (fast + slow))
    if difference < MIN_CYCLE_DIFFERENCE:
        return ""
    dice, correlation = random.Random(0), lag1_autocorrelation(residuals)
    innovations = [later - correlation * earlier for earlier, later in pairwise(residuals)]
    for _ in range(SURROGATES):
        first, drawn = dice.choice(residuals), dice.choices(innovations, k=len(residuals))
        surrogate = accumulate(drawn, lambda value, innovation: correlation * value + innovation, initial=first)
        if _best_fit(detrend(list(surrogate)[1:]))[0] >= r_squared:
            return ""
    return f"{fast} fast, {slow} slow (-{difference:.0%}), {len(series) / (fast + slow):.0f} times"


def max_period(n: int) -> int:
    """The longest period, in answers, that ``find_cycle`` looks for in ``n`` answers."""
    return min(MAX_PERIOD, n // MIN_CYCLE_REPEATS)


def detrend(values: Sequence[float]) -> list[float]:
    """``values`` minus the straight line through them."""
    slope, intercept = statistics.linear_regression(range(len(values)), values)
    return [value - intercept - slope * place for place, value in enumerate(values)]


def _best_fit(residuals: Sequence[float]) -> tuple[float, float, int, int]:
    """Of the best fit: R², the gap between its levels, and its answers at each. ``residuals`` have a mean of 0."""
    n, squares = len(residuals), sum(value * value for value in residuals)
    best = (0.0, 0.0, MIN_RUN, MIN_RUN)
    for period in range(2 * MIN_RUN, max_period(n) + 1):
        phases = [residuals[phase::period] for phase in range(period)] * 2
        sums, counts = list(accumulate(map(sum, phases), initial=0.0)), list(accumulate(map(len, phases), initial=0))
        for begin in range(period):
            for end in range(begin + MIN_RUN, begin + period - MIN_RUN + 1):
                total, count = sums[end] - sums[begin], counts[end] - counts[begin]
                if total > 0:
                    gap = total / count + total / (n - count)
                    fit = (gap * gap * count * (n - count) / n / squares, gap, end - begin, begin + period - end)
                    best = max(best, fit)
    return best
