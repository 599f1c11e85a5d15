"""From a run's folder to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpubox.bench.benchmark import headline_of, make_benchmark
from gpubox.bench.model import RunInfo
from gpubox.bench.report.heads import heads_beside
from gpubox.bench.report.history import History
from gpubox.bench.report.model import Report
from gpubox.bench.report.redact import Redactor, redacted
from gpubox.bench.report.references import Beside, beside_articles
from gpubox.bench.store import Run
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.model import Profile

if TYPE_CHECKING:
    from gpubox.bench.report.compare import RunComparison
    from gpubox.bench.report.leaderboard import Board


def report_of(run: Run) -> Report:
    """The report of what ``run`` has so far, computed from its results. Raises GpuboxError where it is damaged."""
    info = run.info
    benchmark = make_benchmark(info.plan)
    benchmark.history = History(lambda: heads_beside(run))
    report = benchmark.summarise(info, run.scored())
    return replace(report, notes=(*report.notes, *_uncontrolled(info)))


def _uncontrolled(info: RunInfo) -> Iterator[str]:
    from gpubox.bench.dialect import uncontrolled

    for name, found in info.provenance.items():
        if found.url and found.dialect and (words := uncontrolled(found.dialect)):
            yield f"{name}: {words}."


@dataclass(frozen=True, slots=True)
class Told:
    """What is shown of a run, without paths, host names and keys."""

    info: RunInfo
    report: Report
    beside: tuple[Beside, ...] = ()


def told(run: Run, profile_of: Callable[[str], Profile]) -> Told:
    """The run's report beside the articles' figures, redacted. Raises GpuboxError as ``report_of``."""
    info, report = run.info, report_of(run)
    beside = beside_articles(info, report, profile_of)
    return Told(*redacted(info, report), tuple(beside))


def compared(first: Run, second: Run) -> RunComparison:
    """``second`` against ``first``, redacted. Raises GpuboxError."""
    from gpubox.bench.report.compare import compare_runs

    infos = (first.info, second.info)
    history = History(lambda: heads_beside(first))
    found = compare_runs((infos[0], report_of(first)), (infos[1], report_of(second)), history)
    return Redactor(infos).through(found)


def ranked(paths: Paths, kind: str = "") -> list[Board]:
    """The leaderboards of ``kind``, of all kinds where empty; redacted. Raises UsageError."""
    from gpubox.bench.report.heads import heads
    from gpubox.bench.report.leaderboard import DECIDES, boards

    if kind and kind not in DECIDES:
        raise UsageError(f"There is no leaderboard of {kind!r}.", f"There are: {', '.join(DECIDES)}.")
    found = heads(paths)
    cleaner = Redactor(head.info for head in found if head.info)
    return [cleaner.through(board) for board in boards(found, kind, History(lambda: found))]


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
    return Progress(info, len(scored), headline_of(make_benchmark(info.plan), scored), failed)


def report_values(found: Told) -> dict[str, Any]:
    """All of it as JSON values; what ran before the run is nobody's business."""
    head = msgspec.to_builtins(found.info)
    for private in ("before", "owed", "lent", "schema"):
        head.pop(private, None)
    return {
        "run": head,
        "report": msgspec.to_builtins(found.report),
        "beside": [msgspec.to_builtins(one) for one in found.beside],
    }
