"""How much this box's speeds differ from start to start and from run to run, estimated from its stored runs. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpubox.bench.model import Provenance
from gpubox.bench.report.model import Metric, RunSummary
from gpubox.bench.report.past_figures import protocol_of, target_identity
from gpubox.bench.start_comparison import Noise

MIN_DEGREES_OF_FREEDOM = 3
"""With fewer, the assumed PRIOR_SD is used."""


@dataclass(frozen=True, slots=True)
class _PastFigure:
    run: str
    target: str
    """Its ``target_identity``."""
    protocol: tuple[str, str]
    metric: Metric


class NoiseHistory:
    """The noise in the finished runs of a box. ``summaries`` is called once, when it is first needed."""

    def __init__(self, summaries: Callable[[], Sequence[RunSummary]]) -> None:
        self._summaries = summaries

    @cached_property
    def _figures(self) -> list[_PastFigure]:
        figures = []
        for run in self._summaries():
            if run.info and run.info.state == "finished":
                protocol = protocol_of(run.info.plan)
                targets = {name: target_identity(provenance) for name, provenance in run.info.provenance.items()}
                figures += [
                    _PastFigure(run.id, targets[metric.target], protocol, metric)
                    for metric in run.metrics
                    if metric.target in targets
                ]
        return figures

    def between_starts(self, targets: Iterable[Provenance], exclude: str = "") -> Noise:
        """From runs that started these targets several times; with too few of them, from run to run of their tg."""
        identities = {target_identity(provenance) for provenance in targets}
        figures = [
            figure for figure in self._figures
            if figure.target in identities and figure.run != exclude and figure.metric.name == "tg"
        ]  # fmt: skip
        # Only the first row of each target, over all prompts: the other rows repeat the same starts.
        first = {(figure.run, figure.metric.target): figure.metric for figure in reversed(figures)}
        logs = [[math.log(value) for _, value in metric.starts if value > 0] for metric in first.values()]
        variances = [(statistics.variance(own), len(own) - 1) for own in logs if len(own) > 1]
        dof = sum(own_dof for _, own_dof in variances)
        if dof < MIN_DEGREES_OF_FREEDOM:
            return _noise_between_runs(figures)
        variance = sum(own * own_dof for own, own_dof in variances) / dof
        return Noise(math.sqrt(variance), dof, dof + len(variances))


def _noise_between_runs(figures: Iterable[_PastFigure]) -> Noise:
    """From the row that the most runs have."""
    rows: dict[tuple[str, tuple[str, str], str], list[float]] = {}
    for figure in figures:
        if figure.metric.estimate.value > 0:
            row = (figure.target, figure.protocol, figure.metric.group)
            rows.setdefault(row, []).append(math.log(figure.metric.estimate.value))
    logs = max(rows.values(), key=len, default=[])
    if len(logs) - 1 < MIN_DEGREES_OF_FREEDOM:
        return Noise()
    return Noise(statistics.stdev(logs), len(logs) - 1, len(logs))
