"""A quality run's results -> figures of each target, chunk by chunk, and their intervals. Pure.

The chunk is the sampling unit, because tokens of one text depend on each other. Intervals of means are Student's t over
chunks. Two targets are compared in pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import msgspec

from gpubox.bench import stats
from gpubox.bench.kinds.quality.program import ChunkFigures
from gpubox.bench.model import ScoredItems
from gpubox.bench.stats import Estimate

OVER_CHUNKS = "t over chunks"


@dataclass(slots=True)
class TargetFigures:
    """The figures of one target, by chunk. Rates and shares are means over the chunk's tokens."""

    log_perplexity: dict[int, float] = field(default_factory=dict)
    kl: dict[int, float] = field(default_factory=dict)
    """In nats."""
    same_top: dict[int, float] = field(default_factory=dict)
    """0 to 1."""
    totals: ChunkFigures | None = None


def figures_of(results: ScoredItems) -> dict[str, TargetFigures]:
    """Every target that has figures, in the order of the results."""
    figures: dict[str, TargetFigures] = {}
    for item, result in results:
        if result.ok:
            chunks = msgspec.convert(result.values["figures"], ChunkFigures)
            figures[item.target] = TargetFigures(
                dict(enumerate(chunks.log_perplexity, 1)),
                dict(enumerate(chunks.kl, 1)),
                dict(enumerate(chunks.same_top, 1)),
                totals=chunks if chunks.kl else None,
            )
    return figures


def over_chunks(values: Sequence[float], scale: float = 1.0) -> Estimate:
    """The mean over chunks with its t interval. Raises ValueError without values."""
    own = stats.estimate([scale * value for value in values])
    return replace(own, median=None, method=OVER_CHUNKS if own.low is not None else "", minimum=None, maximum=None)


def perplexity_of(figures: TargetFigures) -> Estimate:
    """The perplexity over all chunks; the interval is that of the mean log, so it is not symmetric."""
    own = over_chunks(list(figures.log_perplexity.values()))

    def power(value: float | None) -> float | None:
        return math.exp(min(700.0, value)) if value is not None else None

    return replace(own, value=math.exp(min(700.0, own.value)), sd=None, low=power(own.low), high=power(own.high))


def percentile_of(figures: TargetFigures, name: str) -> Estimate | None:
    """``kl_median`` or ``kl_99`` of all tokens, as the program printed it; ``None`` for the reference."""
    value = figures.totals.total(name) if figures.totals is not None else None
    return Estimate(value + 0.0, len(figures.kl)) if value is not None else None


@dataclass(frozen=True, slots=True)
class QualityDifference:
    """Second target minus first, chunk by chunk."""

    first: str
    second: str
    kl: Estimate | None
    """Of the KL divergence; ``None`` if one of both is the reference."""
    log_perplexity: Estimate
    p: float
    """Two-sided, of the difference in KL divergence (of log perplexity if there is none); corrected for all pairs."""

    @property
    def verdict(self) -> str:
        """In words: which of both is closer to the reference."""
        if self.kl is None:
            value, better, worse = self.log_perplexity.value, "predicts better", "predicts worse"
        else:
            value, better, worse = self.kl.value, "closer", "farther"
        if self.p > 0.05 or not value:
            return "no difference shown"
        return better if value < 0 else worse


def differences(figures: Mapping[str, TargetFigures]) -> list[QualityDifference]:
    """Every pair of targets that share at least two chunks; p values are corrected for all pairs (Holm)."""
    pairs: list[QualityDifference] = []
    for first, second in combinations(figures, 2):
        a, b = figures[first], figures[second]
        both = sorted(a.log_perplexity.keys() & b.log_perplexity.keys())
        if len(both) < 2:
            continue
        log_ppl = _signed([b.log_perplexity[chunk] - a.log_perplexity[chunk] for chunk in both])
        shared = sorted(a.kl.keys() & b.kl.keys())
        kl = _signed([b.kl[chunk] - a.kl[chunk] for chunk in shared]) if len(shared) > 1 else None
        pairs.append(QualityDifference(first, second, kl, log_ppl, _p_value(kl or log_ppl)))
    return [replace(pair, p=p) for pair, p in zip(pairs, stats.holm([pair.p for pair in pairs]), strict=True)]


def _signed(values: Sequence[float]) -> Estimate:
    """As ``over_chunks``; a difference may be negative, so the interval is not cut off at 0."""
    mean, n = statistics.fmean(values), len(values)
    sd = statistics.stdev(values)
    half = stats.t95(n - 1) * sd / math.sqrt(n)
    return Estimate(mean, n, sd, low=mean - half, high=mean + half, method=OVER_CHUNKS)


def _p_value(estimate: Estimate) -> float:
    if not estimate.sd:
        return 1.0 if not estimate.value else 0.0
    return stats.t_p_value(estimate.value / (estimate.sd / math.sqrt(estimate.n)), estimate.n - 1)
