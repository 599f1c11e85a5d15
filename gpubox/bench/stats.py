"""Statistics, pure. Intervals are 95 % unless told otherwise; every random draw has a fixed seed.

Formulas: Student's t; Holm 1979; Wilson 1927; McNemar's exact test; percentile bootstrap over clusters (prompts),
within strata (domains), its percentiles widened for small n (Hesterberg 2015, "expanded percentile interval").
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeVar

from gpubox.bench.report.model import Estimate

T = TypeVar("T")
Verdict = Literal["faster", "slower", "indistinguishable", "too few"]
Z95 = 1.959963984540054
RESAMPLES = 10_000
MIN_CLUSTERS = 5
"""Below so many prompts no interval is given: five values do not tell their own spread."""
MARGIN = 0.01
"""Nobody changes a flag for less: it is never called a difference."""
_ITERATIONS, _TINY = 500, 1e-300


def t_p_value(value: float, freedom: float) -> float:
    """How likely Student's t is beyond ``value`` on either side (the two-sided p). ``freedom`` may be any number > 0.

    The regularised incomplete beta function I_x(freedom/2, 1/2) at x = freedom / (freedom + t²), by its continued
    fraction (Abramowitz and Stegun 26.5.8; Lentz's method). Endless ``freedom``: the normal distribution.
    """
    if math.isinf(freedom):
        return math.erfc(abs(value) / math.sqrt(2))
    if math.isinf(value):
        return 0.0
    return _beta(freedom / 2, 0.5, freedom / (freedom + value * value)) if value else 1.0


def t_quantile(p: float, freedom: float) -> float:
    """The ``t`` that is exceeded on either side with probability ``p``; infinite without a degree of freedom."""
    if freedom < 1:
        return math.inf
    if math.isinf(freedom):
        return statistics.NormalDist().inv_cdf(1 - p / 2)
    low, high = 0.0, 1.0
    while t_p_value(high, freedom) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p_value(middle, freedom) > p else (low, middle)
    return (low + high) / 2


@functools.cache
def t95(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t."""
    return t_quantile(0.05, freedom)


def _beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    above, below = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    found = below
    for m in range(1, _ITERATIONS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            below = 1 / (1 + term * below or _TINY)
            above = 1 + term / above or _TINY
            found *= below * above
        if abs(below * above - 1) < 1e-14:
            break
    return front * found


def holm(tails: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """The p of each row of one table, corrected for all of them: wrong verdicts in a whole table stay at the level.

    Holm 1979, with his weights: a row of twice the weight has twice the share of the level.
    """
    shares = list(weights or [1.0] * len(tails))
    order = sorted(range(len(tails)), key=lambda i: tails[i] / shares[i])
    corrected, left, most = [1.0] * len(tails), sum(shares), 0.0
    for i in order:
        most = max(most, min(1.0, tails[i] * left / shares[i]))
        corrected[i] = most
        left -= shares[i]
    return corrected


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, sample sd, median, range, and the t interval of the mean. Raises ValueError on nothing."""
    if not values:
        raise ValueError("no values")
    mean, n = statistics.fmean(values), len(values)
    median, least, most = statistics.median(values), min(values), max(values)
    if n < 2:
        return Estimate(mean, n, None, median, None, None, "", least, most)
    sd = statistics.stdev(values)
    half = t95(n - 1) * sd / math.sqrt(n)
    low = max(0.0, mean - half) if least >= 0 else mean - half  # no rate and no time is below 0
    return Estimate(mean, n, sd, median, low, mean + half, "t", least, most)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean: sample sd (n-1) over the root of n, as lm-eval gives it."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def wilson(passed: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, 0 to 1."""
    if n < 1:
        return 0.0, 1.0
    p, z2 = passed / n, Z95**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), 1.0 if passed == n else min(1.0, middle + half)


def pass_rate(passed: Sequence[bool]) -> Estimate:
    """The share that passed, 0 to 1, with Wilson's interval; ``sd`` is the sample's (stderr = sd over root n)."""
    n, k = len(passed), sum(passed)
    if not n:
        raise ValueError("no values")
    low, high = wilson(k, n)
    sd = statistics.stdev([float(p) for p in passed]) if n > 1 else None
    return Estimate(k / n, n, sd, None, low, high, "Wilson", None, None)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test: how likely so uneven a split of the discordant pairs is by chance."""
    n, k = only_first + only_second, min(only_first, only_second)
    if not n:
        return 1.0
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / (1 << n))


def bootstrap(
    strata: Sequence[Sequence[T]],
    statistic: Callable[[list[T]], float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """The 95 % interval of ``statistic``: whole clusters are drawn again, each stratum for itself.

    Strata too small to show their own spread are drawn from together.
    """
    dice = random.Random(seed)
    filled = [list(stratum) for stratum in strata if stratum]
    if any(len(stratum) < MIN_CLUSTERS for stratum in filled):
        filled = [[one for stratum in filled for one in stratum]]
    n = sum(len(stratum) for stratum in filled)
    drawn = sorted(
        statistic([one for stratum in filled for one in dice.choices(stratum, k=len(stratum))])
        for _ in range(resamples)
    )
    freedom = max(1, n - len(filled))
    tail = statistics.NormalDist().cdf(-t95(freedom) * math.sqrt(n / freedom))
    place = tail * (resamples - 1)
    return drawn[math.floor(place)], drawn[math.ceil(resamples - 1 - place)]


def mean_over_prompts(strata: Sequence[Sequence[Sequence[float]]], *, seed: int = 0) -> Estimate:
    """The mean over prompts, each counted once with the median of its repeats; strata are domains.

    Raises ValueError on nothing.
    """
    medians = [[statistics.median(repeats) for repeats in stratum] for stratum in strata]
    values = [value for stratum in medians for value in stratum]
    plain = estimate(values)
    if len(values) < MIN_CLUSTERS:
        return replace(plain, low=None, high=None, method="")
    low, high = bootstrap(medians, statistics.fmean, seed=seed)
    return replace(plain, low=low, high=high, method="bootstrap over prompts")


@dataclass(frozen=True, slots=True)
class RatioSample:
    """One cluster of a pooled share: drafted tokens and accepted ones of one prompt."""

    numerator: float
    denominator: float


def pooled_ratio(strata: Sequence[Sequence[RatioSample]], *, seed: int = 0, units: str = "prompts") -> Estimate:
    """Sum of parts over sum of wholes; the interval draws prompts (or runs), never tokens: those of one correlate.

    ``units`` names in the method what was drawn. Raises ValueError where nothing was drafted.
    """

    def ratio(drawn: list[RatioSample]) -> float:
        whole = sum(one.denominator for one in drawn)
        return sum(one.numerator for one in drawn) / whole if whole else 0.0

    everything = [one for stratum in strata for one in stratum]
    if not sum(one.denominator for one in everything):
        raise ValueError("nothing drafted")
    rates = [one.numerator / one.denominator for one in everything if one.denominator]
    spread = statistics.stdev(rates) if len(rates) > 1 else None
    ends: tuple[float | None, float | None] = (None, None)
    if len(everything) >= MIN_CLUSTERS:
        ends = bootstrap(strata, ratio, seed=seed)
    method = f"bootstrap over {units}" if ends[0] is not None else ""
    return Estimate(
        ratio(everything), len(everything), spread, statistics.median(rates), *ends, method, min(rates), max(rates)
    )


@dataclass(frozen=True, slots=True)
class WelchComparison:
    """Second against first: the ratio of geometric means, and what may be said of it."""

    ratio: float
    low: float | None
    high: float | None
    n: int
    verdict: Verdict
    least: float
    most: float


def lag1_autocorrelation(*sides: Sequence[float]) -> float:
    """The correlation of neighbours in series of time, each about its own mean; 0 to 0.95."""
    over = below = 0.0
    for side in sides:
        mean = statistics.fmean(side)
        rest = [value - mean for value in side]
        over += sum(a * b for a, b in pairwise(rest))
        below += sum(value * value for value in rest)
    return max(0.0, min(0.95, over / below)) if below else 0.0


def welch(
    first: Sequence[float], second: Sequence[float], *, margin: float = MARGIN, correlation: float = 0.0
) -> WelchComparison:
    """Second against first where nothing pairs them: the ratio of geometric means with Welch's interval of the logs.

    Student's t with the Welch-Satterthwaite degrees of freedom. Values must be above 0. Where neighbours in time are
    alike (``correlation``, see ``lag1_autocorrelation``), so many values tell as much as fewer that are not. Raises ValueError on
    nothing.
    """
    if not first or not second:
        raise ValueError("no values")
    sides = [[math.log(value) for value in side] for side in (first, second)]
    means = [statistics.fmean(side) for side in sides]
    distance, n = means[1] - means[0], min(len(first), len(second))
    logs = [value - means[0] for value in sides[1]]
    least, most = math.exp(min(logs)), math.exp(max(logs))
    if n < MIN_CLUSTERS - 2:
        return WelchComparison(math.exp(distance), None, None, n, "too few", least, most)
    alike = (1 + correlation) / (1 - correlation)
    counts = [max(2.0, len(side) / alike) for side in sides]
    parts = [statistics.variance(side) / count for side, count in zip(sides, counts, strict=True)]
    error = math.sqrt(sum(parts))
    below = sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    half = t95(math.floor(sum(parts) ** 2 / below)) * error if below > 0 else 0.0
    low, high = math.exp(distance - half), math.exp(distance + half)
    verdict: Verdict = "faster" if low > 1 + margin else "slower" if high < 1 - margin else "indistinguishable"
    return WelchComparison(math.exp(distance), low, high, n, verdict, least, most)
