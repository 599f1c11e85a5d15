"""Statistics, pure. Intervals are 95 % unless stated otherwise; every random draw has a fixed seed.

Formulas: Student's t; Holm 1979; Wilson 1927; McNemar's exact test; percentile bootstrap over clusters (prompts),
within strata (domains), its percentiles widened for small n (Hesterberg 2015, "expanded percentile interval").
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")
Z95 = 1.959963984540054
RESAMPLES = 10_000
PERMUTATIONS = 4999
MIN_CLUSTERS = 5
"""With fewer prompts no interval is given, because they do not show their own spread."""
MARGIN = 0.01
"""Smaller relative differences are never reported: nobody would change a flag for less."""
_ITERATIONS, _TINY = 500, 1e-300


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its uncertainty. ``None``: the sample is too small to say."""

    value: float
    n: int
    sd: float | None = None
    """Standard deviation of the sample (n-1)."""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval."""
    method: str = ""
    """How the interval was computed: ``t``, ``Wilson``, ``bootstrap over prompts``."""
    minimum: float | None = None
    maximum: float | None = None


def t_p_value(t: float, dof: float) -> float:
    """The two-sided p of Student's t. ``dof`` may be any number > 0; infinity gives the normal distribution.

    The regularised incomplete beta function I_x(dof/2, 1/2) at x = dof / (dof + t²), by its continued fraction
    (Abramowitz and Stegun 26.5.8; Lentz's method).
    """
    if math.isinf(dof):
        return math.erfc(abs(t) / math.sqrt(2))
    if math.isinf(t):
        return 0.0
    return _beta(dof / 2, 0.5, dof / (dof + t * t)) if t else 1.0


def t_quantile(p: float, dof: float) -> float:
    """The ``t`` whose two-sided p is ``p``; infinite below one degree of freedom."""
    if dof < 1:
        return math.inf
    if math.isinf(dof):
        return statistics.NormalDist().inv_cdf(1 - p / 2)
    low, high = 0.0, 1.0
    while t_p_value(high, dof) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p_value(middle, dof) > p else (low, middle)
    return (low + high) / 2


@functools.cache
def t95(dof: float) -> float:
    """The two-sided 95 % quantile of Student's t."""
    return t_quantile(0.05, dof)


def _beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    numerator, denominator = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    fraction = denominator
    for m in range(1, _ITERATIONS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            denominator = 1 / (1 + term * denominator or _TINY)
            numerator = 1 + term / numerator or _TINY
            fraction *= denominator * numerator
        if abs(denominator * numerator - 1) < 1e-14:
            break
    return front * fraction


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values of one table, corrected for all its rows (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(order) - rank)))
        corrected[i] = largest
    return corrected


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, sample sd, median, range, and the t interval of the mean. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    mean, n = statistics.fmean(values), len(values)
    median, minimum, maximum = statistics.median(values), min(values), max(values)
    if n < 2:
        return Estimate(mean, n, median=median, minimum=minimum, maximum=maximum)
    sd = statistics.stdev(values)
    half = t95(n - 1) * sd / math.sqrt(n)
    low = max(0.0, mean - half) if minimum >= 0 else mean - half  # rates and times are never negative
    return Estimate(mean, n, sd, median, low, mean + half, "t", minimum, maximum)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean: sample sd (n-1) over the root of n, as in lm-eval."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def wilson(passed: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion, 0 to 1."""
    if n < 1:
        return 0.0, 1.0
    p, z2 = passed / n, Z95**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), 1.0 if passed == n else min(1.0, middle + half)


def pass_rate(passed: Sequence[bool]) -> Estimate:
    """The proportion that passed, 0 to 1, with Wilson's interval. Raises ValueError without values."""
    n, count = len(passed), sum(passed)
    if not n:
        raise ValueError("no values")
    low, high = wilson(count, n)
    sd = statistics.stdev([float(value) for value in passed]) if n > 1 else None
    return Estimate(count / n, n, sd, low=low, high=high, method="Wilson")


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test, from the counts of the two kinds of discordant pairs."""
    n, smaller = only_first + only_second, min(only_first, only_second)
    if not n:
        return 1.0
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(smaller + 1)) / (1 << n))


def permutation_p(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]], weights: Mapping[str, float]
) -> float:
    """The two-sided p of the weighted difference of means over the tasks that both have: their answers are exchanged.

    It needs no model of the points: if both are equal, every exchange within a task is as likely.
    """
    dice = random.Random(0)
    sides = [(weights[task], [*first[task], *second[task]], len(first[task])) for task in first if task in second]

    def difference(part: Callable[[list[float], int], list[float]]) -> float:
        total = 0.0
        for weight, pool, count in sides:
            own = sum(part(pool, count))
            total += weight * (own / count - (sum(pool) - own) / (len(pool) - count))
        return abs(total)

    observed = difference(lambda pool, count: pool[:count]) - 1e-9
    return (1 + sum(difference(dice.sample) >= observed for _ in range(PERMUTATIONS))) / (1 + PERMUTATIONS)


def bootstrap(
    strata: Sequence[Sequence[T]], statistic: Callable[[list[T]], float], *, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of ``statistic``. Whole clusters are drawn, separately in each stratum.

    If a stratum has fewer than MIN_CLUSTERS, all strata are pooled.
    """
    rng = random.Random(seed)
    pools = [list(stratum) for stratum in strata if stratum]
    if any(len(pool) < MIN_CLUSTERS for pool in pools):
        pools = [[cluster for pool in pools for cluster in pool]]
    n = sum(len(pool) for pool in pools)
    statistics_drawn = sorted(
        statistic([cluster for pool in pools for cluster in rng.choices(pool, k=len(pool))]) for _ in range(RESAMPLES)
    )
    dof = max(1, n - len(pools))
    tail = statistics.NormalDist().cdf(-t95(dof) * math.sqrt(n / dof))
    index = tail * (RESAMPLES - 1)
    return statistics_drawn[math.floor(index)], statistics_drawn[math.ceil(RESAMPLES - 1 - index)]


def mean_over_prompts(strata: Sequence[Sequence[Sequence[float]]], *, seed: int = 0) -> Estimate:
    """The mean over prompts; each prompt counts once, with the median of its repeats. Strata are domains.

    Raises ValueError without values.
    """
    medians = [[statistics.median(repeats) for repeats in stratum] for stratum in strata]
    values = [value for stratum in medians for value in stratum]
    unclustered = estimate(values)
    if len(values) < MIN_CLUSTERS:
        return replace(unclustered, low=None, high=None, method="")
    low, high = bootstrap(medians, statistics.fmean, seed=seed)
    return replace(unclustered, low=low, high=high, method="bootstrap over prompts")


@dataclass(frozen=True, slots=True)
class RatioSample:
    """One cluster of a pooled ratio, such as the accepted and the drafted tokens of one prompt."""

    numerator: float
    denominator: float


def pooled_ratio(strata: Sequence[Sequence[RatioSample]], *, seed: int = 0, units: str = "prompts") -> Estimate:
    """Sum of numerators over sum of denominators. The bootstrap draws clusters, because tokens of one correlate.

    ``units`` says in the estimate's method what a cluster is. Raises ValueError if the denominators sum to 0.
    """

    def ratio(samples: list[RatioSample]) -> float:
        denominator = sum(sample.denominator for sample in samples)
        return sum(sample.numerator for sample in samples) / denominator if denominator else 0.0

    samples = [sample for stratum in strata for sample in stratum]
    rates = [sample.numerator / sample.denominator for sample in samples if sample.denominator]
    if not rates:
        raise ValueError("nothing drafted")
    low, high = bootstrap(strata, ratio, seed=seed) if len(samples) >= MIN_CLUSTERS else (None, None)
    return Estimate(
        ratio(samples),
        len(samples),
        statistics.stdev(rates) if len(rates) > 1 else None,
        statistics.median(rates),
        low,
        high,
        f"bootstrap over {units}" if low is not None else "",
        min(rates),
        max(rates),
    )


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Second over first, measured in the same starts: the ratio of geometric means and its 95 % interval."""

    ratio: float
    low: float | None
    """``None`` with a single start, whose repeats do not show how starts differ."""
    high: float | None
    n: int


def paired_ratio(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> PairedRatio | None:
    """``first`` and ``second``: (start, mean) as in ``Metric.starts``. ``None`` if they share no start.

    The t interval of the logs of each start's ratio: what all measurements of a start have in common cancels.
    """
    by_start = {start: value for start, value in first if value > 0}
    logs = [math.log(value / by_start[start]) for start, value in second if start in by_start and value > 0]
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return PairedRatio(math.exp(mean), None, None, 1)
    half = t95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return PairedRatio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def satterthwaite(variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The sum of (variance, degrees of freedom) pairs, with Satterthwaite's degrees of freedom of the sum."""
    total = sum(variance for variance, _ in variances)
    divisor = sum(variance**2 / dof for variance, dof in variances if variance and dof)
    return total, total**2 / divisor if divisor > 0 else math.inf
