"""What the series of a soak show: rates adjusted for depth, memory growth, cycles of fast and slow answers. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

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
MAX_CYCLE_POINTS = 600


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer of the load."""

    at: float
    """Seconds of load since the beginning of the soak."""
    tg: float
    context_tokens: int
    """Its depth: the prompt and half the answer."""
    acceptance: float | None = None


def depth_adjusted_rates(answers: Sequence[TimedAnswer]) -> list[float]:
    """The rates as they would be at the mean depth, because conversations grow and start anew.

    The time per token is linear in the depth (attention), so a line is fitted and taken out.
    """
    times = [1 / answer.tg for answer in answers]
    depths = [answer.context_tokens for answer in answers]
    if len(set(depths)) < 2:
        return [answer.tg for answer in answers]
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
    """Kendall's S as a z score, corrected for ties: above Z99 the values rise. 0 for fewer than four values."""
    n = len(values)
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    if n < 4 or not score:
        return 0.0
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return (score - math.copysign(1, score)) / math.sqrt(variance)


@dataclass(frozen=True, slots=True)
class SpeedCycle:
    """``fast`` answers at one rate, then ``slow`` ones at a lower rate, over and over."""

    fast: int
    slow: int
    difference: float
    """How much lower the slow rate is, 0 to 1 of the fast rate."""
    repeats: float

    def __str__(self) -> str:
        return f"{self.fast} fast, {self.slow} slow (-{self.difference:.0%}), {self.repeats:.0f} times"


def find_cycle(rates: Sequence[float], *, seed: int = 0) -> SpeedCycle | None:
    """The pattern "n fast, m slow" in ``rates`` (in order of time, all positive); ``None`` unless it is significant.

    The statistic is R² of the best two-level fit over all patterns and offsets. Its chance level comes from surrogates:
    AR(1) series with the lag-1 autocorrelation and the residuals of the series itself, both detrended. A drift, a step
    or a slow wander therefore raises the bar.
    """
    series = list(rates)[-MAX_CYCLE_POINTS:]
    if len(series) < MIN_CYCLE_REPEATS * 2 * MIN_RUN:
        return None
    residuals = detrend(series)
    fit = _best_fit(residuals)
    if fit is None:
        return None
    r_squared, fast, slow, gap = fit
    fast_rate = statistics.fmean(series) + gap * slow / (fast + slow)
    if gap / fast_rate < MIN_CYCLE_DIFFERENCE or not _significant(residuals, r_squared, seed):
        return None
    return SpeedCycle(fast, slow, gap / fast_rate, len(series) / (fast + slow))


def max_period(n: int) -> int:
    """The longest period, in answers, that ``find_cycle`` looks for in ``n`` answers."""
    return min(MAX_PERIOD, n // MIN_CYCLE_REPEATS)


def detrend(values: Sequence[float]) -> list[float]:
    """``values`` minus the straight line through them."""
    slope, intercept = statistics.linear_regression(range(len(values)), values)
    return [value - intercept - slope * place for place, value in enumerate(values)]


def _significant(residuals: list[float], r_squared: float, seed: int) -> bool:
    dice = random.Random(seed)
    correlation = lag1_autocorrelation(residuals)
    innovations = [later - correlation * earlier for earlier, later in pairwise(residuals)]
    for _ in range(SURROGATES):
        surrogate, value = [], dice.choice(residuals)
        for innovation in dice.choices(innovations, k=len(residuals)):
            value = correlation * value + innovation
            surrogate.append(value)
        fit = _best_fit(detrend(surrogate))
        if fit and fit[0] >= r_squared:
            return False
    return True


def _best_fit(residuals: Sequence[float]) -> tuple[float, int, int, float] | None:
    """R², fast, slow and the gap between their means, of the pattern that fits best. ``residuals`` have a mean of 0."""
    n = len(residuals)
    variance = sum(value * value for value in residuals)
    best = None
    for period in range(2 * MIN_RUN, max_period(n) + 1):
        sums = [sum(residuals[phase::period]) for phase in range(period)]
        counts = [len(range(phase, n, period)) for phase in range(period)]
        for begin in range(period):
            fast_sum, fast_count = 0.0, 0
            for fast in range(1, period - MIN_RUN + 1):
                phase = (begin + fast - 1) % period
                fast_sum += sums[phase]
                fast_count += counts[phase]
                if fast < MIN_RUN or fast_sum <= 0:
                    continue
                gap = fast_sum / fast_count + fast_sum / (n - fast_count)
                r_squared = gap * gap * fast_count * (n - fast_count) / n / variance
                if best is None or r_squared > best[0]:
                    best = (r_squared, fast, period - fast, gap)
    return best
