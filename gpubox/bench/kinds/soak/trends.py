"""What the series of a soak show: whether the speed held, memory growth, cycles of fast and slow answers. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from typing import Literal

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
MIN_DRIFT_POINTS, MAX_DRIFT_POINTS = 24, 60
MIN_DRIFT = 0.03
"""A smaller change is not called slower: a longer soak would show whether it goes on."""
STEADY_MARGIN = 0.05
"""The speed held if the whole interval of its change lies within this."""
MAX_DEVIATIONS = 3.5
MAX_MODE_POINTS, MODE_STEPS, MODE_ERRORS, MODE_PREFERENCE = 600, 6, 4.0, 0.6
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
class Drift:
    """How the speed changed over a run, as a share of it (-0.1: at the end a tenth less than at the beginning)."""

    change: float
    low: float
    """The ends of the 95 % interval."""
    high: float
    verdict: Literal["slower", "faster", "steady", "modes", "unclear"]
    """modes: it looks like two speeds that a server changes between, which says nothing about later."""


def judge_drift(rates: Sequence[float]) -> Drift | None:
    """Whether the speed fell or rose over the run; ``None`` with fewer than MIN_DRIFT_POINTS answers.

    A straight line through the logs. Its error allows for answers that resemble their neighbours: what a line shows by
    chance comes from surrogates, AR(1) series with the correlation of this one, which is estimated on the high side.
    A series that fits two speeds much better than a line is only called slower if each of both becomes slower: a server
    with two modes that changes once within the run looks like one that becomes slower.
    """
    if len(rates) < MIN_DRIFT_POINTS:
        return None
    logs = [math.log(rate) for rate in rates]
    points = _few_points(_without_outliers(logs), MAX_DRIFT_POINTS)
    n = len(points)
    slope, error, residuals, correlation = _line(points)
    if not error:
        change = math.expm1(slope * n)
        word: Literal["slower", "faster"] = "slower" if slope < 0 else "faster"
        return Drift(change, change, change, "steady" if abs(change) < STEADY_MARGIN else word)
    dice = random.Random(0)
    sd, innovation = statistics.pstdev(residuals), math.sqrt(1 - correlation**2)
    ratios, fits = [], []
    for _ in range(SURROGATES):
        value, surrogate = dice.gauss(0, sd), []
        for _ in range(n):
            surrogate.append(value)
            value = correlation * value + dice.gauss(0, sd * innovation)
        own_slope, own_error, own_residuals, _ = _line(surrogate)
        ratios.append(abs(own_slope) / own_error)
        fits.append(_two_levels([slope * place + value for place, value in enumerate(own_residuals)], own_residuals))
    half = sorted(ratios)[round(0.95 * SURROGATES)] * error * n
    change, low, high = (math.expm1(slope * n + end) for end in (0.0, -half, half))
    verdict: Literal["slower", "faster", "steady", "modes", "unclear"] = "unclear"
    if low > -STEADY_MARGIN and high < STEADY_MARGIN:
        verdict = "steady"
    elif (
        _two_levels(whole := _few_points(logs, MAX_DRIFT_POINTS), detrend(whole))
        < sorted(fits)[round(0.05 * SURROGATES)]
    ):
        trend = _trend_within_modes(_few_points(logs, MAX_MODE_POINTS))
        verdict = "modes" if abs(trend) < MIN_DRIFT else "slower" if trend < 0 else "faster"
    elif abs(slope) * n > half and abs(change) > MIN_DRIFT:
        verdict = "slower" if slope < 0 else "faster"
    return Drift(change, low, high, verdict)


def _few_points(logs: Sequence[float], most: int) -> list[float]:
    """At most ``most`` means of neighbours."""
    size = -(-len(logs) // most)
    return [statistics.fmean(logs[place : place + size]) for place in range(0, len(logs) - size + 1, size)]


def _line(points: Sequence[float]) -> tuple[float, float, list[float], float]:
    """Slope, its standard error, residuals, and the correlation of neighbours in them."""
    n, residuals = len(points), detrend(points)
    slope = (points[-1] - residuals[-1] - points[0] + residuals[0]) / (n - 1)
    squares = sum(value * value for value in residuals)
    correlation = lag1_autocorrelation(residuals)
    correlation = min(0.97, (n * correlation + 2) / (n - 4))  # a line takes some of it out
    correlation = min(0.97, correlation + 0.5 * math.sqrt((1 - correlation**2) / n)) if squares else 0.0
    variance = squares / (n - 2) * (1 + correlation) / (1 - correlation) * 12 / (n * (n * n - 1))
    return slope, math.sqrt(variance) if variance > 1e-24 else 0.0, residuals, correlation


def _without_outliers(points: Sequence[float]) -> list[float]:
    """With residuals cut off where a single answer went wrong."""
    residuals = detrend(points)
    limit = MAX_DEVIATIONS * 1.4826 * statistics.median(map(abs, residuals))
    return [point - value + max(-limit, min(limit, value)) for point, value in zip(points, residuals, strict=True)]


def _two_levels(points: Sequence[float], residuals: Sequence[float]) -> float:
    """The squares that the best two levels leave of ``points``, over those that the line leaves."""
    mean = statistics.fmean(points)
    _, gain = _border([point - mean for point in points])
    return (sum((point - mean) ** 2 for point in points) - gain) / sum(value * value for value in residuals)


def _border(points: Sequence[float]) -> tuple[float, float]:
    """Where to part ``points`` (of mean 0) into two levels, and the squares that these explain."""
    ordered = sorted(points)
    n, left, best = len(ordered), 0.0, (ordered[0], 0.0)
    for count, value in enumerate(ordered[:-1], 1):
        left += value
        explained = left * left * n / (count * (n - count))
        if explained > best[1]:
            best = value, explained
    return best


def _trend_within_modes(points: Sequence[float]) -> float:
    """The change over the run that both levels of ``points`` share; 0 if it may be chance."""
    n = len(points)
    best: tuple[float, float, float] | None = None
    for slope in (0.0, (sum(points[-(n // 3) :]) - sum(points[: n // 3])) / (n // 3) / (n - n // 3)):
        for _ in range(MODE_STEPS):  # each gives the levels their points, then both one slope
            level = [point - slope * place for place, point in enumerate(points)]
            mean = statistics.fmean(level)
            border = _border([value - mean for value in level])[0] + mean
            squares = products = 0.0
            residuals = [0.0] * n
            for slow in (True, False):
                own = [place for place, value in enumerate(level) if (value <= border) == slow]
                middle, height = (statistics.fmean(values) for values in (own, [points[place] for place in own]))
                squares += sum((place - middle) ** 2 for place in own)
                products += sum((place - middle) * (points[place] - height) for place in own)
                for place in own:
                    residuals[place] = points[place] - height - slope * (place - middle)
            slope = products / squares if squares else 0.0
        left = sum(value * value for value in residuals)
        correlation = lag1_autocorrelation(residuals)
        error = math.sqrt(left / (n - 4) * (1 + correlation) / (1 - correlation) / squares) if squares else math.inf
        if best is None or left < MODE_PREFERENCE * best[0]:  # close levels fit noise, too
            best = left, slope, error
    assert best is not None
    _, slope, error = best
    return math.expm1(slope * n) if abs(slope) > MODE_ERRORS * error else 0.0


def lag1_autocorrelation(values: Sequence[float]) -> float:
    """The correlation of neighbours in time; limited to 0 to 0.95."""
    mean = statistics.fmean(values)
    residuals = [value - mean for value in values]
    squares = sum(value * value for value in residuals)
    return max(0.0, min(0.95, sum(a * b for a, b in pairwise(residuals)) / squares)) if squares else 0.0


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
