"""How much this box's speeds differ from start to start and from run to run, from the runs it has stored. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from gpubox.bench.model import Provenance
from gpubox.bench.report.model import Metric
from gpubox.bench.report.run_summaries import RunSummary
from gpubox.bench.start_comparison import PRIOR_SD, Noise

MIN_DEGREES_OF_FREEDOM = 3
"""Degrees of freedom below which past runs do not tell their own spread: the stated prior then stands."""
_OF_THE_RUN = ("--port", "--log-file", "--host", "--api-key", "--alias", "--slot-save-path")
NOT_PROTOCOL = {"price"}


def target_identity(found: Provenance) -> str:
    """What makes two starts the same: model, engine, command line, environment. Ports and log files do not."""
    argv = [
        word for at, word in enumerate(found.argv)
        if word not in _OF_THE_RUN and (at == 0 or found.argv[at - 1] not in _OF_THE_RUN)
    ]  # fmt: skip
    model = found.model_sha256 or found.model_path
    return repr((model, found.engine_sha256 or found.engine_version or found.dialect, argv[1:], dict(found.env)))


def protocol_key(options: Mapping[str, Any]) -> str:
    """What two runs must share for their figures to mean the same."""
    return repr(sorted((name, repr(value)) for name, value in options.items() if name not in NOT_PROTOCOL))


class NoiseHistory:
    """The finished runs of a box. ``heads`` is called when the first question comes."""

    def __init__(self, heads: Callable[[], Sequence[RunSummary]]) -> None:
        self._heads = heads

    @cached_property
    def _runs(self) -> list[RunSummary]:
        return [head for head in self._heads() if head.info and head.state == "finished" and head.metrics]

    def launches(self, targets: Iterable[Provenance], exclude: str = "") -> Noise:
        """From start to start: of runs that started these targets several times, else from run to run of their tg."""
        wanted = {target_identity(found) for found in targets}
        squares, freedom, counted = 0.0, 0, 0
        for head, metric in self._metrics(wanted, {exclude}):
            if metric.name != "tg" or len(metric.starts) < 2 or not _whole(head, metric):
                continue
            logs = [math.log(value) for _, value in metric.starts if value > 0]
            if len(logs) > 1:
                squares += statistics.variance(logs) * (len(logs) - 1)
                freedom += len(logs) - 1
                counted += len(logs)
        if freedom >= MIN_DEGREES_OF_FREEDOM:
            return Noise(math.sqrt(squares / freedom), freedom, counted)
        return self._from_run_to_run(wanted, {exclude}, None, "tg")

    def runs(
        self, target: Provenance, exclude: Iterable[str], kind: str, options: Mapping[str, Any], row: Metric
    ) -> Noise:
        """From run to run, of the same row under the same protocol; where there are too few, as is assumed."""
        return self._from_run_to_run(
            {target_identity(target)}, set(exclude), (kind, protocol_key(options), row.group), row.name
        )

    def _from_run_to_run(
        self, wanted: set[str], exclude: set[str], only: tuple[str, str, str] | None, name: str
    ) -> Noise:
        groups: dict[tuple[str, ...], list[float]] = {}
        for head, metric in self._metrics(wanted, exclude):
            assert head.info is not None
            plan = head.info.plan
            row = (plan.kind, protocol_key(plan.options), metric.group)
            if metric.name == name and metric.estimate.value > 0 and only in (None, row):
                of = target_identity(head.info.provenance[metric.target])
                groups.setdefault((of, *row), []).append(math.log(metric.estimate.value))
        best = max(groups.values(), key=len, default=[]) if only is None else [v for g in groups.values() for v in g]
        if len(best) - 1 < MIN_DEGREES_OF_FREEDOM:
            return Noise()
        return Noise(statistics.stdev(best), len(best) - 1, len(best))

    def _metrics(self, wanted: set[str], exclude: set[str]) -> Iterable[tuple[RunSummary, Metric]]:
        for head in self._runs:
            if head.id in exclude or head.info is None:
                continue
            mine = {name for name, found in head.info.provenance.items() if target_identity(found) in wanted}
            yield from ((head, metric) for metric in head.metrics if metric.target in mine)


def _whole(head: RunSummary, metric: Metric) -> bool:
    """The row over all of a run's prompts: the others hold the same starts again."""
    return metric.group == next(
        one.group for one in head.metrics if (one.name, one.target) == (metric.name, metric.target)
    )


def describe_noise(noises: Iterable[Noise]) -> str:
    """Whence the noise of a table is known, in one clause."""
    held = list(noises)
    known = [noise for noise in held if noise.runs]
    what = "some of them" if known else "them"
    assumed = f"{100 * PRIOR_SD:.1f} % from run to run assumed: this box has no history of {what}"
    if not known:
        return assumed
    low, high = (100 * pick(noise.sd for noise in known) for pick in (min, max))
    fewest = min(noise.runs for noise in known)
    spread = f"{low:.1f} %" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f} %"
    past = f"{spread} from run to run in at least {fewest} past runs"
    return past if len(known) == len(held) else f"{past}; {assumed}"
