"""From a run's folder to its report."""

from __future__ import annotations

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


def report_values(info: RunInfo, report: Report) -> dict[str, Any]:
    """Both as JSON values; what ran before the run is nobody's business."""
    head = msgspec.to_builtins(info)
    for private in ("before", "owed", "lent", "schema"):
        head.pop(private, None)
    return {"run": head, "report": msgspec.to_builtins(report)}
