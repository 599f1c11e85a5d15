"""How much this box's speeds differ from start to start and from run to run, estimated from its stored runs. Pure."""

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
"""With fewer, the assumed PRIOR_SD is used."""
_RUN_SPECIFIC_FLAGS = ("--port", "--log-file", "--host", "--api-key", "--alias", "--slot-save-path")
_IRRELEVANT_OPTIONS = {"price"}


def target_identity(provenance: Provenance) -> str:
    """Equal for starts that are the same: model, engine, command line (without ports and log files), environment."""
    argv = [
        word for i, word in enumerate(provenance.argv)
        if word not in _RUN_SPECIFIC_FLAGS and (i == 0 or provenance.argv[i - 1] not in _RUN_SPECIFIC_FLAGS)
    ]  # fmt: skip
    model = provenance.model_sha256 or provenance.model_path
    engine = provenance.engine_sha256 or provenance.engine_version or provenance.dialect
    return repr((model, engine, argv[1:], dict(provenance.env)))


def protocol_key(options: Mapping[str, Any]) -> str:
    """Equal for runs whose figures are comparable."""
    return repr(sorted((name, repr(value)) for name, value in options.items() if name not in _IRRELEVANT_OPTIONS))


class NoiseHistory:
    """The noise in the finished runs of a box. ``summaries`` is called once, when it is first needed."""

    def __init__(self, summaries: Callable[[], Sequence[RunSummary]]) -> None:
        self._summaries = summaries

    @cached_property
    def _finished(self) -> list[RunSummary]:
        return [run for run in self._summaries() if run.info and run.state == "finished" and run.metrics]

    def between_starts(self, targets: Iterable[Provenance], exclude: str = "") -> Noise:
        """From runs that started these targets several times; with too few of them, from run to run of their tg."""
        identities = {target_identity(provenance) for provenance in targets}
        squares, dof, starts = 0.0, 0, 0
        for run, metric in self._metrics(identities, {exclude}):
            own = next(m for m in run.metrics if (m.name, m.target) == (metric.name, metric.target))
            if metric.name != "tg" or metric.group != own.group:
                continue  # only the row over all prompts: the other rows repeat the same starts
            logs = [math.log(value) for _, value in metric.starts if value > 0]
            if len(logs) > 1:
                squares += statistics.variance(logs) * (len(logs) - 1)
                dof += len(logs) - 1
                starts += len(logs)
        if dof >= MIN_DEGREES_OF_FREEDOM:
            return Noise(math.sqrt(squares / dof), dof, starts)
        return self._between_runs(identities, {exclude}, None, "tg")

    def between_runs(
        self, target: Provenance, exclude: Iterable[str], kind: str, options: Mapping[str, Any], row: Metric
    ) -> Noise:
        """From the same row in runs with the same protocol; with too few of them the assumed noise."""
        key = (kind, protocol_key(options), row.group)
        return self._between_runs({target_identity(target)}, set(exclude), key, row.name)

    def _between_runs(
        self, identities: set[str], exclude: set[str], only: tuple[str, str, str] | None, name: str
    ) -> Noise:
        groups: dict[tuple[str, ...], list[float]] = {}
        for run, metric in self._metrics(identities, exclude):
            assert run.info is not None
            plan = run.info.plan
            key = (plan.kind, protocol_key(plan.options), metric.group)
            if metric.name == name and metric.estimate.value > 0 and only in (None, key):
                identity = target_identity(run.info.provenance[metric.target])
                groups.setdefault((identity, *key), []).append(math.log(metric.estimate.value))
        logs = max(groups.values(), key=len, default=[])
        if len(logs) - 1 < MIN_DEGREES_OF_FREEDOM:
            return Noise()
        return Noise(statistics.stdev(logs), len(logs) - 1, len(logs))

    def _metrics(self, identities: set[str], exclude: set[str]) -> Iterable[tuple[RunSummary, Metric]]:
        for run in self._finished:
            if run.id in exclude or run.info is None:
                continue
            targets = {name for name, own in run.info.provenance.items() if target_identity(own) in identities}
            yield from ((run, metric) for metric in run.metrics if metric.target in targets)


def describe_noise(noises: Sequence[Noise]) -> str:
    """A clause that says how large the noise of a table is and how that is known."""
    known = [noise for noise in noises if noise.runs]
    which = "some of them" if known else "them"
    assumed = f"{100 * PRIOR_SD:.1f} % from run to run is assumed, because this box has no history of {which}"
    if not known:
        return assumed
    low, high = (f"{100 * pick(noise.sd for noise in known):.1f}" for pick in (min, max))
    sd = f"{low} %" if low == high else f"{low} to {high} %"
    past = f"{sd} from run to run in at least {min(noise.runs for noise in known)} past runs"
    return past if len(known) == len(noises) else f"{past}; {assumed}"
