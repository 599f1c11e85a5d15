"""How tg, pp and energy change with depth: lines over the depth, and where tg has halved. Pure.

pp at a depth is the mean rate of reading that whole context from an empty cache. At depth 0 there is hardly anything
to read, so the line of pp begins at the first depth above 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from gpubox import units
from gpubox.bench.report.chart import estimate_series
from gpubox.bench.report.model import Metric, Series
from gpubox.bench.stats import paired_ratio

HALF = 0.5
_LINES = (("tg", "tg"), ("pp", "pp"), ("energy", "J per generated token"), ("read energy", "J per read token"))


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """One row of a speed report: a prompt at one depth, on one target."""

    target: str
    prompt: str
    prefix: str
    depth: int
    max_tokens: int
    metrics: Mapping[str, Metric]


def depth_curves(points: Sequence[DepthPoint]) -> list[list[DepthPoint]]:
    """The points of each target, prompt and prefix in the order of depth; at least two depths, one of them above 0."""

    def key(point: DepthPoint) -> tuple[str, str, str]:
        return point.target, point.prompt, point.prefix

    order = {key(point): None for point in points}
    curves = {own: sorted(group, key=lambda point: point.depth) for own, group in groupby(sorted(points, key=key), key)}
    return [curves[own] for own in order if len(curves[own]) > 1]


def depth_series(curves: Sequence[Sequence[DepthPoint]]) -> Iterator[Series]:
    """A chart of tg, of pp and of energy; a line for each target and state of the cache."""
    several = len({curve[0].target for curve in curves}) > 1
    for name, label in _LINES:
        for curve in curves:
            own = [
                (point.depth, point.metrics[name].estimate)
                for point in curve
                if name in point.metrics and (point.depth or name in ("tg", "energy"))
            ]
            first = curve[0]
            line = ", ".join(filter(None, (first.target if several else "", first.prefix)))
            y_label = f"{name}, tok/s" if name in ("tg", "pp") else f"{name}, J/token"
            chart = f"{label} over depth: {first.prompt} prompt, {first.max_tokens:,} tokens"
            yield from estimate_series(chart, line, "depth, tokens of context before the prompt", y_label, own)


def halving_notes(curves: Sequence[Sequence[DepthPoint]]) -> Iterator[str]:
    """For each target, how far tg falls, and between which depths it has halved, if that was measured.

    Of cold and warm runs the cold ones, if there are any: the state of the cache does not change tg.
    """
    for target in dict.fromkeys(curve[0].target for curve in curves):
        own = [curve for curve in curves if curve[0].target == target]
        curve = next((curve for curve in own if curve[0].prefix == "cold"), own[0])
        rated = [point for point in curve if "tg" in point.metrics]
        if len(rated) > 1:
            yield f"{target}: {_halving(rated)}"


def _halving(curve: Sequence[DepthPoint]) -> str:
    base = curve[0]
    rates = [(point.depth, point.metrics["tg"].estimate.value) for point in curve]
    half = rates[0][1] * HALF
    for (shallow, above), (deep, below) in pairwise(rates):
        if above > half >= below:
            where = round(shallow + (deep - shallow) * (above - half) / (above - below))
            reached = next(point for point in curve if point.depth == deep)
            return (
                f"tg has halved between depth {shallow:,} and {deep:,} (~{where:,} on a straight line): "
                f"{units.rate(below)} tok/s at {deep:,}, {_share(base, reached)} of {units.rate(rates[0][1])} at "
                f"{base.depth:,}."
            )
    deepest = curve[-1]
    return (
        f"tg has not halved up to depth {deepest.depth:,}: {units.rate(rates[-1][1])} tok/s there, "
        f"{_share(base, deepest)} of {units.rate(rates[0][1])} at {base.depth:,}."
    )


def _share(base: DepthPoint, other: DepthPoint) -> str:
    """tg at ``other`` as a share of that at ``base``, with its interval over starts if there are several."""
    ratio = paired_ratio(base.metrics["tg"].starts, other.metrics["tg"].starts)
    if ratio is None:
        return f"{100 * other.metrics['tg'].estimate.value / base.metrics['tg'].estimate.value:.0f} %"
    if ratio.low is None or ratio.high is None:
        return f"{100 * ratio.ratio:.0f} %"
    return f"{100 * ratio.ratio:.0f} % (95 % CI {100 * ratio.low:.0f} to {100 * ratio.high:.0f} %)"
