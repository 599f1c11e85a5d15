"""From a run's folder to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox.bench.benchmark import flagged_headline, make_benchmark
from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Report
from gpubox.bench.report.noise_history import NoiseHistory
from gpubox.bench.report.redact import Redactor, redact_report
from gpubox.bench.report.references import ReferenceComparison, compare_with_references
from gpubox.bench.report.run_summaries import sibling_summaries
from gpubox.bench.run_store import Run
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.profile import Profile

if TYPE_CHECKING:
    from gpubox.bench.report.leaderboard import Leaderboard
    from gpubox.bench.report.run_comparison import RunComparison


def report_of(run: Run) -> Report:
    """The report of what ``run`` has so far, computed from its results. Raises GpuboxError where it is damaged."""
    info = run.info
    benchmark = make_benchmark(info.plan)
    benchmark.history = NoiseHistory(lambda: sibling_summaries(run))
    report = benchmark.summarise(info, run.scored())
    return replace(report, notes=(*report.notes, *_uncontrolled(info)))


def _uncontrolled(info: RunInfo) -> Iterator[str]:
    from gpubox.bench.endpoint import uncontrolled_settings

    for name, found in info.provenance.items():
        if found.url and found.dialect and (words := uncontrolled_settings(found.dialect)):
            yield f"{name}: {words}."


@dataclass(frozen=True, slots=True)
class ReportBundle:
    """What is shown of a run, without paths, host names and keys."""

    info: RunInfo
    report: Report
    beside: tuple[ReferenceComparison, ...] = ()


def load_report(run: Run, profile_of: Callable[[str], Profile]) -> ReportBundle:
    """The run's report beside the articles' figures, redacted. Raises GpuboxError as ``report_of``."""
    info, report = run.info, report_of(run)
    beside = compare_with_references(info, report, profile_of)
    return ReportBundle(*redact_report(info, report), tuple(beside))


def load_comparison(first: Run, second: Run) -> RunComparison:
    """``second`` against ``first``, redacted. Raises GpuboxError."""
    from gpubox.bench.report.run_comparison import compare_runs

    infos = (first.info, second.info)
    history = NoiseHistory(lambda: sibling_summaries(first))
    found = compare_runs((infos[0], report_of(first)), (infos[1], report_of(second)), history)
    return Redactor(infos).through(found)


def load_leaderboards(paths: Paths, kind: str = "") -> list[Leaderboard]:
    """The leaderboards of ``kind``, of all kinds where empty; redacted. Raises UsageError."""
    from gpubox.bench.report.leaderboard import RANKING_METRICS, make_leaderboards
    from gpubox.bench.report.run_summaries import run_summaries

    if kind and kind not in RANKING_METRICS:
        raise UsageError(f"There is no leaderboard of {kind!r}.", f"There are: {', '.join(RANKING_METRICS)}.")
    found = run_summaries(paths)
    cleaner = Redactor(head.info for head in found if head.info)
    return [cleaner.through(board) for board in make_leaderboards(found, kind, NoiseHistory(lambda: found))]


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
    failed = sum(result.failed for _, result in scored)
    return Progress(info, len(scored), flagged_headline(make_benchmark(info.plan), scored), failed)


def bundle_values(found: ReportBundle) -> dict[str, Any]:
    """All of it as JSON values; what ran before the run is nobody's business."""
    head = msgspec.to_builtins(found.info)
    for private in ("before", "restore_pending", "applied_argv", "schema"):
        head.pop(private, None)
    return {
        "run": head,
        "report": msgspec.to_builtins(found.report),
        "beside": [msgspec.to_builtins(one) for one in found.beside],
    }
