"""Speeds compared start by start: what is drawn at random is a launch of the server, not a prompt. Pure.

The log of a rate is taken to be

    arm + prompt + arm x prompt + drift x time + launch + answer

Every start asks the same prompts, so a start is the mean of its logs. Arms are compared by the analysis of covariance
with time as the covariate (Fisher 1932; Cochran 1957): a steady drift is taken out, what is left between starts of one
arm is the error. Starts stand in an order drawn at random in blocks of four (``random_order``): so the interval holds
under slow wander and throttling as well, whatever their form (Fisher's randomisation). How much prompts differ in what
they gain is an error of its own (Satterthwaite 1946 joins the two).

With several looks at a run that goes on, the level is shared among them (Lan and DeMets 1983, power 2) and each look
keeps to its share (Bonferroni), so the sum of all wrong verdicts stays at the level.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from gpubox.bench.stats import MARGIN, Verdict, t_p_value, t_quantile

MIN_STARTS = 4
"""Of an arm, for a verdict that stands on this run alone."""
LEVEL = 0.05
PRIOR_SD = 0.025
"""What starts of one command line are taken to differ by (sd of the log) where the box has no history of it."""


ANSWERS_PER_INDEPENDENT_ONE = 10
"""Answers that follow each other in one start are alike: so many tell as much of it as one that stands alone."""


def effective_sample_size(answers: int) -> float:
    """How many independent ones so many answers of one start are worth, where a slow wander is to be feared."""
    return max(1.0, answers / ANSWERS_PER_INDEPENDENT_ONE)


@dataclass(frozen=True, slots=True)
class Noise:
    """How much starts of one and the same command line differ, known from elsewhere than the compared starts."""

    sd: float = PRIOR_SD
    """Of the log: 0.025 is 2.5 %."""
    dof: float = math.inf
    runs: int = 0
    """How many past runs or starts say so; 0: nothing does, it is assumed."""

    def __str__(self) -> str:
        known = f"from {self.runs} past ones on this box" if self.runs else "assumed: this box has no history of it"
        return f"starts differ with an sd of {100 * self.sd:.1f} %, {known}"


@dataclass(frozen=True, slots=True)
class Start:
    """One launch of a server, or one block of requests to it, and what it answered."""

    arm: str
    place: float
    """In time: equal steps, or seconds."""
    logs: Mapping[str, float]
    """By prompt: the log of the rate."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One arm over another: the log of the ratio of their rates."""

    log_ratio: float
    error: float
    """Standard error of it."""
    freedom: float
    starts: int
    """Of the arm that has fewer."""
    enough: bool
    """The error is that of these starts themselves; else ``noise`` stands in for it."""
    noise: Noise | None = None

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the ratio, 95 %, of this contrast alone."""
        half = t_quantile(LEVEL, self.freedom) * self.error if self.error else 0.0
        return math.exp(self.log_ratio - half), math.exp(self.log_ratio + half)

    def tail(self, margin: float = MARGIN) -> float:
        """The two-sided p of a ratio that is no further from 1 than ``margin``."""
        beyond = max(0.0, abs(self.log_ratio) - math.log1p(margin))
        if not beyond or math.isinf(self.error):
            return 1.0
        return t_p_value(beyond / self.error, self.freedom) if self.error else 0.0

    def least(self, level: float = LEVEL, margin: float = MARGIN) -> float:
        """The smallest difference that can be told: 0.05 is 5 %."""
        return math.expm1(t_quantile(level, self.freedom) * self.error + math.log1p(margin))

    def verdict(self, corrected: float, level: float = LEVEL) -> Verdict:
        """``corrected``: ``tail`` after what several rows cost. An assumed noise is no ground for a verdict."""
        known = self.enough or self.noise is None or self.noise.runs > 0
        if known and corrected <= level:
            return "faster" if self.log_ratio > 0 else "slower"
        return "indistinguishable" if self.enough else "too few"

    def with_starts(self, starts: int) -> float:
        """The half width of the 95 % interval, of the log, that so many starts of each of two arms would have."""
        freedom = 2 * starts - 3
        return t_quantile(LEVEL, freedom) * self.error * math.sqrt(self.starts / starts)


@dataclass(frozen=True, slots=True)
class AncovaResult:
    """What starts of several arms came to, drift taken out."""

    means: Mapping[str, float]
    times: Mapping[str, float]
    counts: Mapping[str, int]
    slope: float
    spread: float
    """Sum of squares of time within arms."""
    variance: float | None
    """Between starts of one arm; ``None`` where nothing tells it."""
    freedom: int

    def level(self, arm: str) -> float:
        """The mean log of ``arm``, as it would be in the middle of all starts."""
        whole = sum(self.times[name] * count for name, count in self.counts.items()) / sum(self.counts.values())
        return self.means[arm] - self.slope * (self.times[arm] - whole)

    def contrast(self, first: str, second: str) -> tuple[float, float]:
        """The log ratio of second over first, and its variance in units of ``variance``."""
        apart = self.times[second] - self.times[first]
        share = 1 / self.counts[first] + 1 / self.counts[second] + (apart**2 / self.spread if self.spread else 0.0)
        return self.means[second] - self.means[first] - self.slope * apart, share


def ancova(points: Sequence[tuple[str, float, float]]) -> AncovaResult:
    """The analysis of covariance of (arm, time, log). Drift is left in where there are too few to tell it."""
    arms: dict[str, list[tuple[float, float]]] = {}
    for arm, time, value in points:
        arms.setdefault(arm, []).append((time, value))
    times = {arm: statistics.fmean(time for time, _ in held) for arm, held in arms.items()}
    means = {arm: statistics.fmean(value for _, value in held) for arm, held in arms.items()}
    rest = [(time - times[arm], value - means[arm]) for arm, held in arms.items() for time, value in held]
    spread = sum(time * time for time, _ in rest)
    freedom = len(points) - len(arms) - 1
    if freedom < 1 or not spread:
        spread, slope, freedom = 0.0, 0.0, len(points) - len(arms)
    else:
        slope = sum(time * value for time, value in rest) / spread
    squares = sum((value - slope * time) ** 2 for time, value in rest)
    counts = {arm: len(held) for arm, held in arms.items()}
    return AncovaResult(
        means, times, counts, slope, spread, squares / freedom if freedom > 0 else None, max(0, freedom)
    )


def common_prompts(starts: Sequence[Start]) -> tuple[list[Start], list[str]]:
    """The starts that answered at least half of the prompts, and the prompts that all of those answered."""
    names = dict.fromkeys(name for start in starts for name in start.logs)
    whole = [start for start in starts if 2 * len(start.logs) > len(names)]
    return whole, [name for name in names if all(name in start.logs for start in whole)]


def compare_starts(
    starts: Sequence[Start],
    first: str,
    second: str,
    *,
    domains: Mapping[str, Hashable] | None = None,
    noise: Noise | None = None,
    restarted: bool = True,
) -> Contrast | None:
    """``second`` over ``first``; ``None`` where they have no prompt in common.

    ``noise`` is used where one has fewer than FEWEST_STARTS, and beside the error of the blocks where nothing was
    ``restarted`` between them (a server by its address: one launch, however often it is asked).
    """
    noise = noise or Noise()
    kept, prompts = common_prompts([start for start in starts if start.arm in (first, second)])
    if not prompts or {start.arm for start in kept} != {first, second}:
        return None
    points = [(start.arm, start.place, statistics.fmean(start.logs[name] for name in prompts)) for start in kept]
    found = ancova(points)
    fewest = min(found.counts.values())
    log_ratio, share = found.contrast(first, second)
    enough = fewest >= MIN_STARTS and restarted
    parts: list[tuple[float, float]] = []
    if fewest >= MIN_STARTS and found.variance is not None:
        parts.append((found.variance * share, found.freedom))
    if not enough:
        counts = found.counts.values() if restarted else (1, 1)
        elsewhere = (noise.sd**2 * sum(1 / count for count in counts), noise.dof)
        here = (found.variance * share, float(found.freedom)) if found.variance is not None else elsewhere
        parts.append(max(elsewhere, here) if restarted else elsewhere)  # these starts may differ more than others did
    parts.append(_over_prompts(kept, prompts, first, second, domains or {}))
    variance, freedom = satterthwaite(parts)
    return Contrast(log_ratio, math.sqrt(variance), freedom, fewest, enough, None if enough else noise)


@dataclass(frozen=True, slots=True)
class ArmsComparison:
    """Several arms compared with each other; every pair of them is allowed for."""

    ancova: AncovaResult
    starts: tuple[Start, ...]
    prompts: tuple[str, ...]
    domains: Mapping[str, Hashable]
    noise: Noise

    @property
    def order(self) -> list[str]:
        """The arms, the fastest first."""
        return sorted(self.ancova.means, key=self.ancova.level, reverse=True)

    @property
    def pairs(self) -> int:
        return len(self.ancova.means) * (len(self.ancova.means) - 1) // 2

    def contrast(self, first: str, second: str) -> Contrast:
        """``second`` over ``first``; the error between starts is that of all arms together."""
        found = self.ancova
        fewest = min(found.counts[first], found.counts[second])
        enough = fewest >= MIN_STARTS and found.variance is not None
        log_ratio, share = found.contrast(first, second)
        parts = [(found.variance * share, float(found.freedom))] if enough and found.variance is not None else [
            (self.noise.sd**2 * share, self.noise.dof)
        ]  # fmt: skip
        kept = [start for start in self.starts if start.arm in (first, second)]
        parts.append(_over_prompts(kept, self.prompts, first, second, self.domains))
        variance, freedom = satterthwaite(parts)
        return Contrast(log_ratio, math.sqrt(variance), freedom, fewest, enough, None if enough else self.noise)

    def verdict(self, first: str, second: str) -> Verdict:
        """Of ``second`` against ``first``, corrected for every pair (Bonferroni: whichever two are picked)."""
        found = self.contrast(first, second)
        return found.verdict(min(1.0, found.tail() * self.pairs))


def compare_arms(
    starts: Sequence[Start], *, domains: Mapping[str, Hashable] | None = None, noise: Noise | None = None
) -> ArmsComparison | None:
    """All arms of ``starts``; ``None`` where they have no prompt in common."""
    kept, prompts = common_prompts(starts)
    if not prompts:
        return None
    points = [(start.arm, start.place, statistics.fmean(start.logs[name] for name in prompts)) for start in kept]
    return ArmsComparison(ancova(points), tuple(kept), tuple(prompts), domains or {}, noise or Noise())


def compare_unpaired(first: float, second: float, *noises: tuple[float, float]) -> Contrast:
    """Two rates that were not measured in turn: ``noises`` are variances of the log and their degrees of freedom."""
    variance, freedom = satterthwaite(noises)
    return Contrast(math.log(second / first), math.sqrt(variance), freedom, 1, False)


def satterthwaite(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The sum of variances and its degrees of freedom (Satterthwaite)."""
    variance = sum(part for part, _ in parts)
    below = sum(part**2 / freedom for part, freedom in parts if part and freedom)
    return variance, variance**2 / below if below > 0 else math.inf


def _over_prompts(
    starts: Sequence[Start], prompts: Sequence[str], first: str, second: str, domains: Mapping[str, Hashable]
) -> tuple[float, float]:
    """The variance that the choice of the prompts adds (what is beyond the answers' own noise), and its freedom."""
    sides = {arm: [start for start in starts if start.arm == arm] for arm in (first, second)}
    freedom = len(prompts) - len({domains.get(name) for name in prompts})
    if freedom < 1:
        return 0.0, math.inf
    own = {
        arm: {name: statistics.fmean(start.logs[name] for start in held) for name in prompts}
        for arm, held in sides.items()
    }
    gains = {name: own[second][name] - own[first][name] for name in prompts}
    groups: dict[Hashable, list[float]] = {}
    for name, gain in gains.items():
        groups.setdefault(domains.get(name), []).append(gain)
    between = sum((gain - statistics.fmean(held)) ** 2 for held in groups.values() for gain in held) / freedom
    squares, count = 0.0, 0
    for arm, held in sides.items():
        middle = statistics.fmean(own[arm].values())
        for start in held:
            mean = statistics.fmean(start.logs[name] for name in prompts)
            squares += sum((start.logs[name] - own[arm][name] - mean + middle) ** 2 for name in prompts)
        count += (len(held) - 1) * (len(prompts) - 1)
    answers = squares / count * sum(1 / len(held) for held in sides.values()) if count else 0.0
    return max(0.0, between - answers) / len(prompts), freedom


def compare_prompts(gains: Sequence[float], domains: Sequence[Hashable]) -> Contrast:
    """Both arms asked one server, prompt by prompt in turn: the mean of each prompt's own log ratio.

    One launch is in both arms, so it is in no error. Raises ValueError on nothing.
    """
    n, mean = len(gains), statistics.fmean(gains)
    groups: dict[Hashable, list[float]] = {}
    for gain, domain in zip(gains, domains, strict=True):
        groups.setdefault(domain, []).append(gain)
    freedom = n - len(groups)
    if freedom < MIN_STARTS:
        return Contrast(mean, math.inf, 1, n, False)
    variance = sum((gain - statistics.fmean(held)) ** 2 for held in groups.values() for gain in held) / freedom
    return Contrast(mean, math.sqrt(variance / n), freedom, n, True)


def random_order(arms: int, starts: int, seed: int) -> list[int]:
    """Which arm each start is of: every arm twice in a block of ``2 x arms``, in an order drawn by ``seed``.

    An odd last start of each makes a block of its own.
    """
    dice = random.Random(f"starts {seed}")
    made: list[int] = []
    for done in range(0, starts, 2):
        block = [arm for arm in range(arms) for _ in range(min(2, starts - done))]
        dice.shuffle(block)
        made += block
    return made


@dataclass(frozen=True, slots=True)
class InterimAnalysis:
    """A place at which a run may end: after so many starts of an arm, at its share of the level."""

    starts: int
    level: float


def interim_analyses(starts: int) -> list[InterimAnalysis]:
    """After FEWEST_STARTS and every two more; few, and the last one, where ``starts`` are not more."""
    if starts <= MIN_STARTS:
        return [InterimAnalysis(starts, LEVEL)]
    at = [*range(MIN_STARTS, starts, 2), starts]
    spent = [LEVEL * (one / starts) ** 2 for one in at]
    return [InterimAnalysis(one, now - before) for one, now, before in zip(at, spent, [0.0, *spent], strict=False)]


def shrunken_mean(found: AncovaResult, best: str) -> float:
    """The log rate of the best of several arms without what picking the best adds to it.

    Its distance from the mean of all is scaled by the share that is not noise: t² / (t² + s²), t² the variance
    between arms beyond noise (the empirical Bayes estimate of Efron and Morris 1973).
    """
    names = list(found.means)
    values = [found.level(name) for name in names]
    if len(names) < 2 or found.variance is None:
        return found.level(best)
    error = found.variance * statistics.fmean(1 / found.counts[name] for name in names)
    beyond = max(0.0, statistics.variance(values) - error)
    middle = statistics.fmean(values)
    return middle + (found.level(best) - middle) * (beyond / (beyond + error) if beyond + error else 1.0)
