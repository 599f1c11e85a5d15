"""From a run's folder to its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Report
from gpubox.bench.store import Run


def report_of(run: Run) -> Report:
    """The report of what ``run`` has so far, computed from its results. Raises GpuboxError where it is damaged."""
    info = run.info
    return make_benchmark(info.plan).summarise(info, run.scored())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, whichever gpubox works on it."""

    info: RunInfo
    done: int
    headline: str
    failed: int
    """Items without numbers, those that were skipped among them."""


def progress_of(run: Run) -> Progress:
    """Read from the folder alone: for a run that another gpubox works on, ask again each second. Raises GpuboxError."""
    info, scored = run.info, run.scored()
    failed = sum(not result.ok for _, result in scored)
    return Progress(info, len(scored), make_benchmark(info.plan).headline(scored), failed)


def report_values(info: RunInfo, report: Report) -> dict[str, Any]:
    """Both as JSON values; what ran before the run is nobody's business."""
    head = msgspec.to_builtins(info)
    for private in ("before", "owed", "lent", "schema"):
        head.pop(private, None)
    return {"run": head, "report": msgspec.to_builtins(report)}
