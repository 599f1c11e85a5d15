"""The frontier of quality, speed and VRAM: stored quality runs joined with stored speeds of the same launches. Pure.

A point is one launch: model file, engine, flags (``target_identity``). Its quality comes from quality runs, its tg from
the newest runs of one protocol. A point is on the frontier if no other one is at least as good in everything that both
know and better in something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from string import ascii_uppercase
from typing import Any, Literal

from gpubox import units
from gpubox.bench.compare.past_runs import protocol_of, target_identity
from gpubox.bench.model import Provenance, RunInfo
from gpubox.bench.report.chart import Chart, ChartPoint
from gpubox.bench.report.formatting import DOUBTFUL, format_interval, format_number
from gpubox.bench.report.model import Metric, RunSummary, Series
from gpubox.bench.stats import Estimate
from gpubox.errors import UsageError

By = Literal["kl", "perplexity"]
SPEED_KINDS = ("speed", "ab", "sweep", "tune")
LETTERS = ascii_uppercase
"""Each point has one; there are no more points than letters."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One launch. Unknown figures are ``None``."""

    name: str
    quality: Estimate
    """KL divergence in nats, or perplexity: lower is better."""
    tg: Estimate | None
    """tok/s."""
    vram_bytes: int | None
    model_bytes: int | None
    reference: bool = False
    """Whether the quality of the others is measured against it."""
    on_frontier: bool = False
    speed_run: str = ""


@dataclass(frozen=True, slots=True)
class Frontier:
    """All points of comparable quality runs, the best quality first."""

    measure: str
    """``KL``, ``KL of top 256 (≥)`` or ``perplexity``."""
    unit: str
    reference: str
    points: tuple[FrontierPoint, ...]
    runs: tuple[str, ...]
    """The quality runs."""
    doubts: tuple[str, ...] = ()
    """Kinds of doubts of the runs used."""
    speed_protocol: str = ""
    """What all speeds were measured with, in words; empty without speeds."""

    @property
    def drawn(self) -> list[tuple[str, FrontierPoint]]:
        """The points that have both figures, each with its letter."""
        return [(letter, point) for letter, point in zip(LETTERS, self.points, strict=False) if point.tg is not None]


def make_frontier(summaries: Sequence[RunSummary], wanted: Sequence[str] = (), by: By = "kl") -> Frontier:
    """From all stored runs, or from the runs ``wanted`` by id (quality and speed runs).

    Without ``wanted``: the newest quality run and those that compare with it. Raises UsageError if there is
    none, or if the wanted ones do not compare.
    """
    chosen = [run for run in summaries if run.info and run.metrics and (run.id in wanted or not wanted)]
    quality = [run for run in chosen if run.info and run.info.plan.kind == "quality"]
    if not quality:
        raise UsageError("There is no quality run yet.", "`gpubox bench quality A B` measures two profiles.")
    newest = quality[-1]
    assert newest.info is not None
    basis = _basis(newest.info, by)
    alike = [run for run in quality if run.info and _basis(run.info, by) == basis]
    if wanted and len(alike) != len(quality):
        other = next(run for run in quality if run not in alike)
        raise UsageError(
            f"{other.id} and {newest.id} do not compare: they differ in reference, text, method or size of the chunks.",
            "Name runs of one reference, or `--by perplexity` for runs of one text.",
        )
    speeds = [run for run in chosen if run.info and run.info.plan.kind in SPEED_KINDS]
    if wanted and not speeds:  # only quality runs were named
        speeds = [run for run in summaries if run.info and run.metrics and run.info.plan.kind in SPEED_KINDS]
    return _frontier(alike, speeds, by)


def _basis(info: RunInfo, by: By) -> tuple[Any, ...]:
    """Equal for quality runs whose figures compare."""
    options = info.plan.options
    own = (options.get("method"), options.get("context", 512), options.get("chunks", 0), options.get("text_sha256", ""))
    if by == "perplexity":
        return own
    reference = info.provenance.get(str(options.get("reference")))
    return (*own, target_identity(reference) if reference else info.id)


def _frontier(quality: Sequence[RunSummary], speeds: Sequence[RunSummary], by: By) -> Frontier:
    points: dict[str, FrontierPoint] = {}
    measure, reference = "perplexity" if by == "perplexity" else "KL", ""
    for run in reversed(quality):  # the newest figure of a launch counts
        assert run.info is not None
        reference = reference or str(run.info.plan.options.get("reference"))
        for target in run.info.plan.targets:
            provenance = run.info.provenance.get(target.name)
            if provenance is None:
                continue
            is_reference = target.name == run.info.plan.options.get("reference")
            metric = _quality_metric(run.metrics, target.name, by)
            if metric is None and not (by == "kl" and is_reference):
                continue
            measure = metric.name if metric else measure
            estimate = metric.estimate if metric else Estimate(0.0, 0)
            point = FrontierPoint(
                target.name, estimate, None, provenance.vram_bytes, provenance.model_bytes, is_reference
            )
            points.setdefault(target_identity(provenance), point)
    tg, protocol = _speeds(points, speeds)
    joined = [
        replace(point, tg=own[0].estimate, vram_bytes=own[1].vram_bytes or point.vram_bytes, speed_run=own[2])
        if (own := tg.get(identity))
        else point
        for identity, point in points.items()
    ]
    joined.sort(key=lambda point: point.quality.value)
    marked = [replace(point, on_frontier=_undominated(point, joined)) for point in joined[: len(LETTERS)]]
    unit = "nat" if by == "kl" else ""
    used = {point.speed_run for point in marked}
    doubts = dict.fromkeys(
        kind for run in (*quality, *speeds) if run in quality or run.id in used for kind in run.doubts
    )
    return Frontier(measure, unit, reference, tuple(marked), tuple(run.id for run in quality), tuple(doubts), protocol)


def _quality_metric(metrics: Sequence[Metric], target: str, by: By) -> Metric | None:
    own = (metric for metric in metrics if metric.target == target and metric.group == "text")
    if by == "perplexity":
        return next((metric for metric in own if metric.name == "perplexity"), None)
    return next((metric for metric in own if metric.name.startswith("KL") and "," not in metric.name), None)


Speed = tuple[Metric, Provenance, str]


def _speeds(points: dict[str, FrontierPoint], runs: Sequence[RunSummary]) -> tuple[dict[str, Speed], str]:
    """The newest tg of each point under the protocol that most points have, and that protocol in words."""
    by_protocol: dict[tuple[tuple[str, str], str], dict[str, Speed]] = {}
    for run in runs:
        if run.info is None or run.info.state != "finished":
            continue
        protocol = protocol_of(run.info.plan) if run.info.plan.kind == "speed" else (run.info.plan.kind, run.id)
        seen: set[str] = set()
        for metric in run.metrics:
            if metric.name != "tg":
                continue
            cell = metric.group if metric.group in run.info.provenance else metric.target  # a sweep's groups are cells
            provenance = run.info.provenance.get(cell)
            if provenance is None or cell in seen:
                continue
            seen.add(cell)  # its first row: over all prompts, or the first workload
            group = metric.group if metric.group != cell else "all prompts"
            identity = target_identity(provenance)
            if identity in points:
                by_protocol.setdefault((protocol, group), {})[identity] = (metric, provenance, run.id)
    if not by_protocol:
        return {}, ""
    order = list(by_protocol)
    best = max(order, key=lambda key: (len(by_protocol[key]), order.index(key)))
    kind, group = best[0][0], best[1]
    return by_protocol[best], f"{kind}, {group}"


def _undominated(point: FrontierPoint, points: Sequence[FrontierPoint]) -> bool:
    """Points without a speed are not on the frontier: nobody knows what they cost."""
    if point.tg is None:
        return False
    return not any(_dominates(other, point) for other in points if other is not point)


def _dominates(other: FrontierPoint, point: FrontierPoint) -> bool:
    if other.tg is None or point.tg is None:
        return False
    gains = [point.quality.value - other.quality.value, other.tg.value - point.tg.value]
    if other.vram_bytes is not None and point.vram_bytes is not None:
        gains.append(float(point.vram_bytes - other.vram_bytes))
    return all(gain >= 0 for gain in gains) and any(gain > 0 for gain in gains)


def frontier_cells(frontier: Frontier) -> Iterator[tuple[str, ...]]:
    """The table's header and rows: letter, name, quality, tg, VRAM, file, and whether it is on the frontier."""
    unit = f", {frontier.unit}" if frontier.unit else ""
    yield ("", "", f"{frontier.measure}{unit}", "95 % CI", "tg tok/s", "VRAM", "model file", "")
    for letter, point in zip(LETTERS, frontier.points, strict=False):
        quality = "reference" if point.reference and not point.quality.n else format_number(point.quality.value)
        interval = format_interval(point.quality) if point.quality.n else ""
        yield (
            letter,
            point.name,
            quality,
            interval,
            format_number(point.tg.value) if point.tg else units.UNKNOWN,
            units.memory(point.vram_bytes) if point.vram_bytes else units.UNKNOWN,
            units.file_size(point.model_bytes) if point.model_bytes else units.UNKNOWN,
            "● frontier" if point.on_frontier else "",
        )


def frontier_chart(frontier: Frontier) -> Chart:
    """tg to the right, quality upwards (less is lower): a letter for each launch, a line through the frontier."""
    points, path = [], []
    for letter, point in frontier.drawn:
        assert point.tg is not None
        at = (point.tg.value, point.quality.value)
        points.append(ChartPoint(letter, *at, point.on_frontier))
        path += [at] if point.on_frontier else []
    unit = f", {frontier.unit}" if frontier.unit else ""
    title = "Quality against speed"
    y_label = f"{frontier.measure}{unit} (lower is better)"
    line = (Series(title, "", "tg, tok/s", y_label, tuple(sorted(path))),) if len(path) > 1 else ()
    return Chart(title, y_label, "tg, tok/s", series=line, points=tuple(points))


def frontier_notes(frontier: Frontier) -> Iterator[str]:
    """What was joined, and what is missing."""
    if frontier.speed_protocol:
        yield f"tg: {frontier.speed_protocol}. Quality: {', '.join(frontier.runs)}, against {frontier.reference}."
    if frontier.doubts:
        yield f"{DOUBTFUL} {', '.join(frontier.doubts)} in these runs. `gpubox bench show` says in which items."
    missing = [point.name for point in frontier.points if point.tg is None]
    if missing:
        yield (
            f"No speed of the same launch is stored for {', '.join(missing[:6])}"
            f"{f' and {len(missing) - 6} more' if len(missing) > 6 else ''}: `gpubox bench speed` measures profiles, "
            "`gpubox bench sweep --over` flags."
        )
    if any(point.tg and point.vram_bytes is None for point in frontier.points):
        yield "VRAM is unknown for some points; the frontier is then one of quality and speed."
    close = [
        f"{a.name} and {b.name}"
        for a, b in pairwise(frontier.points)
        if a.quality.high is not None and b.quality.low is not None and a.quality.high >= b.quality.low
    ]
    if close and frontier.measure != "perplexity":
        yield f"The intervals of {'; '.join(close[:3])} overlap: their order is not shown."
