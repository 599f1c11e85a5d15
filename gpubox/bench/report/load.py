"""Loads reports, comparisons and leaderboards from the stored runs, redacted for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import RunInfo, ScoredItems
from gpubox.bench.report.model import Report
from gpubox.bench.report.privacy import Redactor, redact_report
from gpubox.bench.report.run_summaries import run_summaries, sibling_summaries
from gpubox.bench.run_store import Run, find_runs, readable_results
from gpubox.paths import Paths

if TYPE_CHECKING:
    from gpubox.bench.report.leaderboard import Leaderboard
    from gpubox.bench.report.run_comparison import RunComparison


@dataclass(frozen=True, slots=True)
class ReportBundle:
    """A run and its report, without paths, host names and keys."""

    info: RunInfo
    report: Report


def info_and_report(run: Run) -> tuple[RunInfo, Report]:
    """``run`` and the report of its results so far, not redacted. Raises GpuboxError if the run is damaged."""
    info = run.info
    return info, report_of(run, info, run.scored())


def report_of(run: Run, info: RunInfo, scored: ScoredItems) -> Report:
    """As ``info_and_report``, for who has read the run."""
    from gpubox.bench.target_server import uncontrolled_settings

    benchmark = make_benchmark(info.plan)
    with readable_results(run):
        report = benchmark.summarise(info, scored)
    notes = []
    for name, provenance in info.provenance.items():
        if provenance.url and provenance.dialect and (clause := uncontrolled_settings(provenance.dialect)):
            notes.append(f"{name}: {clause}.")
    return replace(report, notes=(*report.notes, *notes))


def load_report(run: Run) -> ReportBundle:
    """The run's report, redacted. Raises GpuboxError as ``info_and_report``."""
    return ReportBundle(*redact_report(*info_and_report(run)))


def load_comparison(first: Run, second: Run) -> RunComparison:
    """``second`` against ``first``, redacted. Raises GpuboxError."""
    from gpubox.bench.compare.past_runs import PastFigures
    from gpubox.bench.report.run_comparison import compare_runs

    a, b = info_and_report(first), info_and_report(second)
    return Redactor((a[0], b[0])).redact(compare_runs(a, b, PastFigures(sibling_summaries(first))))


def load_leaderboards(paths: Paths, wanted: Sequence[str] = ()) -> list[Leaderboard]:
    """The leaderboards of the runs whose ids hold a word of ``wanted``, of all without one; redacted.

    Raises UsageError if a word matches no run.
    """
    from gpubox.bench.report.leaderboard import make_leaderboards

    ids = {run.id for word in wanted for run in find_runs(paths, word)}
    summaries = run_summaries(paths)
    redactor = Redactor(run.info for run in summaries if run.info)
    return [redactor.redact(board) for board in make_leaderboards(summaries, ids)]
