"""Faster, slower, equal within a margin, or cannot tell: speeds compared with the server start as the unit. Pure.

The log of a rate is modelled as

    side + prompt + side x prompt + drift x time + start + answer

Every start answers the same prompts, so a start is the mean of its logs. Sides are compared by analysis of covariance
with time as the covariate (Fisher 1932; Cochran 1957): this removes a steady drift, and the residual variance between
starts of one side is the error. Starts are randomised in blocks of four (``random_order``), so that the interval also
holds under slow wander and throttling of any form (Fisher's randomisation). Prompts that gain unequally add an error
of their own (Satterthwaite 1946 combines the two).

A run may stop at interim analyses. They share the significance level (Lan and DeMets 1983, power 2), and each keeps
to its own share (Bonferroni), so the chance of any wrong verdict stays at the level. Each cell is compared with the
owner's present flags alone: a noisy cell disturbs no other row. The rows of a table share its level (Holm).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpubox.bench.stats import MARGIN, holm, satterthwaite, t_p_value, t_quantile

MIN_STARTS = 4
"""Per side, for a verdict from this run alone."""
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a server (or one block of requests to it) and its answers."""

    side: str
    time: float
    """Equal steps, or seconds."""
    log_rates: Mapping[str, float]
    """By prompt."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One side over another: the log of the ratio of their rates."""

    log_ratio: float
    error: float
    """Standard error of ``log_ratio``."""
    dof: float
    starts: int
    """Of the side that has fewer."""
    enough: bool
    """Whether there are enough starts for a verdict, and servers were started at all."""

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the ratio, for this contrast alone."""
        return self.interval_at(LEVEL)

    def interval_at(self, level: float) -> tuple[float, float]:
        """The interval of the ratio that misses it with the probability ``level``."""
        half = t_quantile(level, self.dof) * self.error if self.error else 0.0
        return math.exp(self.log_ratio - half), math.exp(self.log_ratio + half)

    def p_value(self) -> float:
        """The two-sided p of the hypothesis that the ratio is within MARGIN of 1."""
        excess = max(0.0, abs(self.log_ratio) - math.log1p(MARGIN))
        if not excess or math.isinf(self.error):
            return 1.0
        return t_p_value(excess / self.error, self.dof) if self.error else 0.0

    def half_width(self, starts: int) -> float:
        """The half width of the 95 % interval (of the log) that ``starts`` starts of each of two sides would have."""
        return t_quantile(LEVEL, 2 * starts - 3) * self.error * math.sqrt(self.starts / starts)


@dataclass(frozen=True, slots=True)
class AncovaResult:
    """The sides' means with the linear drift removed."""

    means: Mapping[str, float]
    times: Mapping[str, float]
    """The mean time of each side."""
    counts: Mapping[str, int]
    slope: float
    time_squares: float
    """Sum of squares of time within sides."""
    variance: float | None
    """Between starts of one side; ``None`` if there are too few to estimate it."""
    dof: int

    def contrast(self, first: str, second: str) -> tuple[float, float]:
        """The log ratio of second over first, and its variance as a multiple of ``variance``."""
        time_gap = self.times[second] - self.times[first]
        drift_factor = time_gap**2 / self.time_squares if self.time_squares else 0.0
        factor = 1 / self.counts[first] + 1 / self.counts[second] + drift_factor
        return self.means[second] - self.means[first] - self.slope * time_gap, factor


def ancova(points: Sequence[tuple[str, float, float]]) -> AncovaResult:
    """The analysis of covariance of (side, time, log). With too few points the drift is not estimated."""
    sides: dict[str, list[tuple[float, float]]] = {}
    for side, time, value in points:
        sides.setdefault(side, []).append((time, value))
    times = {side: statistics.fmean(time for time, _ in values) for side, values in sides.items()}
    means = {side: statistics.fmean(value for _, value in values) for side, values in sides.items()}
    residuals = [(time - times[side], value - means[side]) for side, values in sides.items() for time, value in values]
    time_squares = sum(time * time for time, _ in residuals)
    dof = len(points) - len(sides) - 1
    if dof < 1 or not time_squares:
        time_squares, slope, dof = 0.0, 0.0, len(points) - len(sides)
    else:
        slope = sum(time * value for time, value in residuals) / time_squares
    squares = sum((value - slope * time) ** 2 for time, value in residuals)
    counts = {side: len(values) for side, values in sides.items()}
    return AncovaResult(means, times, counts, slope, time_squares, squares / dof if dof > 0 else None, max(0, dof))


def _mean_points(starts: Sequence[Start]) -> tuple[list[Start], list[str], list[tuple[str, float, float]]]:
    """The starts that answered more than half of the prompts, the prompts they all answered, the points for ANCOVA."""
    names = dict.fromkeys(name for start in starts for name in start.log_rates)
    usable = [start for start in starts if 2 * len(start.log_rates) > len(names)]
    prompts = [name for name in names if all(name in start.log_rates for start in usable)]
    if not prompts:
        return usable, [], []
    return usable, prompts, [(s.side, s.time, statistics.fmean(s.log_rates[name] for name in prompts)) for s in usable]


def compare_starts(
    starts: Sequence[Start],
    first: str,
    second: str,
    *,
    domains: Mapping[str, Hashable] | None = None,
    restarted: bool = True,
) -> Contrast | None:
    """``second`` over ``first``; ``None`` if they have no prompt in common.

    ``restarted=False``: the starts are blocks of requests to running servers, which tell nothing of other starts.
    """
    usable, prompts, points = _mean_points([start for start in starts if start.side in (first, second)])
    if {side for side, _, _ in points} != {first, second}:
        return None
    result = ancova(points)
    fewest = min(result.counts.values())
    log_ratio, factor = result.contrast(first, second)
    if fewest < MIN_STARTS or result.variance is None or not restarted:
        return Contrast(log_ratio, math.inf, 1, fewest, False)
    between_starts = (result.variance * factor, float(result.dof))
    variance, dof = satterthwaite([between_starts, _prompt_variance(usable, prompts, first, second, domains or {})])
    return Contrast(log_ratio, math.sqrt(variance), dof, fewest, True)


def _prompt_variance(
    starts: Sequence[Start], prompts: Sequence[str], first: str, second: str, domains: Mapping[str, Hashable]
) -> tuple[float, float]:
    """The variance that the choice of prompts adds beyond the answers' own noise, and its degrees of freedom."""
    starts_by_side = {side: [start for start in starts if start.side == side] for side in (first, second)}
    dof = len(prompts) - len({domains.get(name) for name in prompts})
    if dof < 1:
        return 0.0, math.inf
    prompt_means = {
        side: {name: statistics.fmean(start.log_rates[name] for start in own) for name in prompts}
        for side, own in starts_by_side.items()
    }
    gains = [prompt_means[second][name] - prompt_means[first][name] for name in prompts]
    between = _within_groups(gains, [domains.get(name) for name in prompts]) / dof
    squares, count = 0.0, 0
    for side, own in starts_by_side.items():
        side_mean = statistics.fmean(prompt_means[side].values())
        for start in own:
            start_mean = statistics.fmean(start.log_rates[name] for name in prompts)
            squares += sum(
                (start.log_rates[name] - prompt_means[side][name] - start_mean + side_mean) ** 2 for name in prompts
            )
        count += (len(own) - 1) * (len(prompts) - 1)
    answers = squares / count * sum(1 / len(own) for own in starts_by_side.values()) if count else 0.0
    return max(0.0, between - answers) / len(prompts), dof


def _within_groups(values: Sequence[float], groups: Sequence[Hashable]) -> float:
    """The sum of squares of ``values`` about the mean of each one's group."""
    members: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        members.setdefault(group, []).append(value)
    return sum((value - statistics.fmean(own)) ** 2 for own in members.values() for value in own)


def compare_prompts(gains: Sequence[float], domains: Sequence[Hashable]) -> Contrast:
    """Both sides asked one server in turn. ``gains``: the log ratio of each prompt.

    Both sides share one start, so no error between starts is added. Raises ValueError if ``gains`` is empty.
    """
    n, mean = len(gains), statistics.fmean(gains)
    dof = n - len(set(domains))
    if dof < MIN_STARTS:
        return Contrast(mean, math.inf, 1, n, False)
    return Contrast(mean, math.sqrt(_within_groups(gains, domains) / dof / n), dof, n, True)


def random_order(sides: int, starts: int, seed: int) -> list[int]:
    """The side (a number) of each start: every side twice in each block of ``2 x sides``, shuffled by ``seed``.

    If ``starts`` is odd, the last start of each side forms a block of its own.
    """
    rng = random.Random(f"starts {seed}")
    order: list[int] = []
    for done in range(0, starts, 2):
        block = [side for side in range(sides) for _ in range(min(2, starts - done))]
        rng.shuffle(block)
        order += block
    return order


@dataclass(frozen=True, slots=True)
class InterimAnalysis:
    """A point at which a run may stop."""

    starts: int
    """Starts of each side so far."""
    level: float
    """Its share of the significance level."""


def interim_analyses(starts: int) -> list[InterimAnalysis]:
    """One after MIN_STARTS starts, one after every two more, and the last after all ``starts``."""
    if starts <= MIN_STARTS:
        return [InterimAnalysis(starts, LEVEL)]
    counts = [*range(MIN_STARTS, starts, 2), starts]
    spent = [LEVEL * (count / starts) ** 2 for count in counts]
    return [
        InterimAnalysis(count, total - before)
        for count, total, before in zip(counts, spent, [0.0, *spent], strict=False)
    ]


Answer = Literal["faster", "slower", "equal", "cannot tell"]
EQUAL_LIMITS = (0.01, 0.02, 0.03, 0.05)
"""Two are "equal within" the first of these that holds the whole interval."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One cell over the present flags."""

    answer: Answer = "cannot tell"
    contrast: Contrast | None = None
    """``None``: they have nothing in common."""
    within: float | None = None
    """The difference that it certainly does not reach, if that is small: 0.02 is 2 %."""
    p: float = 1.0
    """Corrected for the other rows."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the ratio, for this row alone; ``None``: too few starts for one."""
        contrast = self.contrast
        return contrast.interval if contrast and contrast.enough and math.isfinite(contrast.error) else None


def judge(contrasts: Sequence[Contrast | None], level: float) -> list[Judged]:
    """The rows of one table. ``level``: the share of the significance level that this look at them has."""
    known = [contrast if contrast and contrast.enough else None for contrast in contrasts]
    p_values = holm([contrast.p_value() if contrast else 1.0 for contrast in known])
    rows = []
    for contrast, given, p in zip(known, contrasts, p_values, strict=True):
        if contrast is None:
            rows.append(Judged(contrast=given))
            continue
        within = limit_of(*contrast.interval_at(LEVEL / len(known)))
        if p <= level:
            answer: Answer = "faster" if contrast.log_ratio > 0 else "slower"
        else:
            answer = "equal" if within is not None else "cannot tell"
        rows.append(Judged(answer, contrast, within, p))
    return rows


def limit_of(low: float, high: float) -> float | None:
    """The first of EQUAL_LIMITS that holds the whole interval of a ratio; ``None`` if none does."""
    return next((limit for limit in EQUAL_LIMITS if 1 - limit <= low and high <= 1 + limit), None)


def judge_cells(
    starts: Sequence[Start],
    own: str,
    cells: Sequence[str],
    level: float,
    domains: Mapping[str, str],
    *,
    restarted: bool = True,
) -> dict[str, Judged]:
    """Each of ``cells`` over ``own``."""
    contrasts = [compare_starts(starts, own, cell, domains=domains, restarted=restarted) for cell in cells]
    return dict(zip(cells, judge(contrasts, level), strict=True))


def can_win_by(
    starts: Sequence[Start], over: str, cell: str, margin: float, rows: int, domains: Mapping[str, str]
) -> bool:
    """Whether ``cell`` can be faster than ``over`` by more than ``margin``."""
    contrast = compare_starts(starts, over, cell, domains=domains)
    if contrast is None or not contrast.enough:
        return True
    return contrast.interval_at(LEVEL / rows)[1] > 1 + margin
