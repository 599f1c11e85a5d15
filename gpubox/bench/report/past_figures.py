"""Which launches of this box's finished runs are the same, and what each of them measured, run by run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox.bench.compare.history import Past
from gpubox.bench.model import Plan, Provenance, RunInfo
from gpubox.bench.provenance import comparable_argv
from gpubox.bench.report.model import Metric, RunSummary


def target_identity(provenance: Provenance) -> str:
    """Equal for starts that are the same: model, engine, command line (see ``comparable_argv``), environment."""
    model = provenance.model_sha256 or provenance.model_path
    engine = provenance.engine_sha256 or provenance.engine_version or provenance.dialect
    return repr((model, engine, comparable_argv(provenance.argv)[1:], dict(provenance.env)))


def protocol_of(plan: Plan) -> tuple[str, str]:
    """Equal for runs whose figures are comparable."""
    options = {name: repr(value) for name, value in plan.options.items()}
    return plan.kind, repr(sorted(options.items()))


def launch_identity(info: RunInfo, target: str) -> str:
    """Equal for launches whose speeds differ by chance alone: the same target on the same cards and driver."""
    machine = info.machine
    box = (machine.driver, [dict(gpu) for gpu in machine.gpus]) if machine else ()
    return repr((target_identity(info.provenance[target]), box)) if target in info.provenance else ""


class PastFigures:
    """The figures of finished runs, by launch and row."""

    def __init__(self, summaries: Sequence[RunSummary]) -> None:
        """``summaries``: the newest last."""
        self._figures: dict[tuple[str, tuple[str, str], str, str], list[tuple[int, str, Metric]]] = {}
        for number, run in enumerate(summaries):
            if run.info and run.info.state == "finished":
                for metric in run.metrics:
                    row = self._row(run.info, metric)
                    self._figures.setdefault(row, []).append((number, run.id, metric))

    def of(self, info: RunInfo, row: Metric, *, alone: bool = False) -> Past:
        """What ``row`` was in each run of its launch; ``alone``: in the run ``info`` only."""
        own = self._figures.get(self._row(info, row), []) if row.target in info.provenance else []
        return [
            (number + start / 1e6, value)
            for number, run, metric in own
            if run == info.id or not alone
            for start, value in metric.starts or ((0.0, metric.estimate.value),)
            if value > 0
        ]

    @staticmethod
    def _row(info: RunInfo, metric: Metric) -> tuple[str, tuple[str, str], str, str]:
        return launch_identity(info, metric.target), protocol_of(info.plan), metric.group, metric.name
