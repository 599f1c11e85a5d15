"""A quality run's results -> figures of each target, chunk by chunk, and their intervals. Pure.

The chunk is the sampling unit, because tokens of one text depend on each other. Intervals of means are Student's t over
chunks; those of a median or a percentile of tokens are a bootstrap over chunks. Two targets are compared in pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import msgspec

from gpubox.bench import stats
from gpubox.bench.kinds.quality.probabilities import TOP, TokenProbabilities, divergence
from gpubox.bench.kinds.quality.program import ChunkFigures
from gpubox.bench.kinds.quality.quality_options import QualityOptions, label_of
from gpubox.bench.model import ScoredItems
from gpubox.bench.stats import Estimate

PROGRAM_KL, SERVER_KL = "KL", f"KL of top {TOP} (≥)"
OVER_CHUNKS = "t over chunks"


@dataclass(slots=True)
class TargetFigures:
    """The figures of one target, by chunk. Rates and shares are means over the chunk's tokens."""

    log_perplexity: dict[int, float] = field(default_factory=dict)
    kl: dict[int, float] = field(default_factory=dict)
    """In nats."""
    same_top: dict[int, float] = field(default_factory=dict)
    """0 to 1."""
    token_kl: dict[int, list[float]] = field(default_factory=dict)
    """Of every token, if the method reports it."""
    totals: ChunkFigures | None = None
    other_vocabulary: bool = False
    """Its tokens are not those of the reference."""


def quality_name(options: QualityOptions) -> str:
    """The name of the KL divergence in reports: the two methods measure two things."""
    return PROGRAM_KL if options.method == "llama-perplexity" else SERVER_KL


def figures_of(options: QualityOptions, results: ScoredItems) -> dict[str, TargetFigures]:
    """Every target that has figures, in the order of the results."""
    figures: dict[str, TargetFigures] = {}
    if options.method == "llama-perplexity":
        for item, result in results:
            if item.values["part"] == "program" and result.ok:
                chunks = msgspec.convert(result.values["figures"], ChunkFigures)
                figures[item.target] = TargetFigures(
                    dict(enumerate(chunks.log_perplexity, 1)),
                    dict(enumerate(chunks.kl, 1)),
                    dict(enumerate(chunks.same_top, 1)),
                    totals=chunks if chunks.kl else None,
                )
        return figures
    read: dict[str, dict[int, tuple[str, list[TokenProbabilities]]]] = {}
    for item, result in results:
        if item.values["part"] == "chunk" and result.ok and "positions" in result.values:
            positions = msgspec.convert(result.values["positions"], list[TokenProbabilities])
            chunk = (str(result.values["text_sha256"]), positions)
            read.setdefault(label_of(item.target), {})[item.values["chunk"]] = chunk
    reference = read.get(options.reference, {})
    for label, chunks_read in read.items():
        own = figures[label] = TargetFigures()
        for number, (text, positions) in chunks_read.items():
            own.log_perplexity[number] = -statistics.fmean(position.logprob for position in positions)
            if label == options.reference or number not in reference:
                continue
            if text != reference[number][0]:
                own.other_vocabulary = True
                continue
            pairs = [divergence(p, q) for p, q in zip(reference[number][1], positions, strict=True)]
            own.token_kl[number] = [pair.kl for pair in pairs]
            own.kl[number] = statistics.fmean(own.token_kl[number])
            own.same_top[number] = statistics.fmean(float(pair.same_top) for pair in pairs)
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


def percentile_of(figures: TargetFigures, share: float) -> Estimate | None:
    """The KL divergence that so many of all tokens stay below; ``None`` if the method does not report it."""
    if figures.totals is not None:
        value = figures.totals.total("kl_median" if share == 0.5 else "kl_99")
        return Estimate(value + 0.0, len(figures.kl)) if value is not None else None
    chunks = list(figures.token_kl.values())
    if not chunks:
        return None

    def statistic(drawn: Sequence[Sequence[float]]) -> float:
        tokens = sorted(value for chunk in drawn for value in chunk)
        place = share * (len(tokens) - 1)
        low = int(place)
        high = min(low + 1, len(tokens) - 1)
        return tokens[low] + (place - low) * (tokens[high] - tokens[low])

    if len(chunks) < stats.MIN_CLUSTERS:
        return Estimate(statistic(chunks), len(chunks))
    low_end, high_end = stats.bootstrap([chunks], statistic, resamples=PERCENTILE_RESAMPLES)
    return Estimate(statistic(chunks), len(chunks), low=low_end, high=high_end, method="bootstrap over chunks")


PERCENTILE_RESAMPLES = 500
"""Each sorts all tokens."""


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
        if a.other_vocabulary or b.other_vocabulary:
            continue
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
