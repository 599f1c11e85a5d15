"""Runs at a glance: what a list or a leaderboard needs, kept beside the journals so that no reply is read for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gpubox.bench.benchmark import flagged_headline, make_benchmark
from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import Metric
from gpubox.bench.run_store import Run, list_runs, runs_in
from gpubox.errors import GpuboxError
from gpubox.paths import Paths

SUMMARY = ".summary.json"
_RESULTS = "results.jsonl"
VERSION = 2


@dataclass(frozen=True, slots=True)
class CachedSummary:
    """What the results of one run come to; valid as long as their file is the same."""

    stamp: tuple[int, int]
    """Size and time (ns) of the results it was made of."""
    done: int
    failed: int
    headline: str
    title: str
    flags: tuple[str, ...]
    """Kinds of flags."""
    metrics: tuple[Metric, ...]
    """Without their samples."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in a list."""

    id: str
    info: RunInfo | None
    """``None`` where it is damaged; ``problem`` says how."""
    done: int = 0
    failed: int = 0
    headline: str = ""
    title: str = ""
    flags: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    problem: str = ""

    @property
    def state(self) -> str:
        return self.info.state if self.info else "damaged"

    @property
    def targets(self) -> str:
        """Whom it measured, for a list."""
        plan = self.info.plan if self.info else None
        return ", ".join(target.name for target in plan.targets if not target.stopped) if plan else ""

    @property
    def restore_pending(self) -> str:
        """The profile that ran before and is not back; empty where nothing is restore_pending."""
        return self.info.before.profile if self.info and self.info.restore_pending and self.info.before else ""


def run_summaries(paths: Paths) -> list[RunSummary]:
    """Every run, the newest last."""
    return [run_summary(run) for run in list_runs(paths)]


def sibling_summaries(run: Run) -> list[RunSummary]:
    """Every run of the box that ``run`` was stored on, itself among them."""
    return [run_summary(one) for one in runs_in(run.folder.parent)]


def run_summary(run: Run) -> RunSummary:
    """One run; never raises: what is damaged says so."""
    try:
        info = run.info
    except GpuboxError as error:
        return RunSummary(run.id, None, problem=error.message)
    try:
        found = _known(run) or _summarised(run, info)
    except GpuboxError as error:
        return RunSummary(run.id, info, problem=error.message)
    except Exception as error:  # results of another gpubox: one run of a list must not hide the others
        return RunSummary(run.id, info, problem=f"its results cannot be read ({type(error).__name__})")
    return RunSummary(run.id, info, found.done, found.failed, found.headline, found.title, found.flags, found.metrics)


def active_run(paths: Paths, newest: int = 4) -> Run | None:
    """The run that a living gpubox works on: one of those whose heads changed last. Cheap enough for each second."""
    changed: list[tuple[int, Run]] = []
    for run in list_runs(paths):
        with contextlib.suppress(OSError):
            changed.append(((run.folder / "run.json").stat().st_mtime_ns, run))
    for _, run in sorted(changed, key=lambda pair: pair[0], reverse=True)[:newest]:
        if run.busy:
            return run
    return None


def _known(run: Run) -> CachedSummary | None:
    try:
        found = msgspec.json.decode((run.folder / SUMMARY).read_bytes(), type=CachedSummary)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.version == VERSION and found.stamp == _stamp(run.folder) else None


def _summarised(run: Run, info: RunInfo) -> CachedSummary:
    """Reads the results, and keeps what they come to unless they are about to change."""
    stamp, scored = _stamp(run.folder), run.scored()
    benchmark = make_benchmark(info.plan)
    report = benchmark.summarise(info, scored)
    failed = sum(result.failed for _, result in scored)
    made = CachedSummary(
        stamp, len(scored), failed, flagged_headline(benchmark, scored), report.title,
        tuple(dict.fromkeys(flag.kind for flag in report.flags)), tuple(_bare(report.metrics)),
    )  # fmt: skip
    if info.state != "running":
        with contextlib.suppress(GpuboxError):
            run.save_file(SUMMARY, msgspec.json.encode(made).decode())
    return made


def _bare(metrics: Iterable[Metric]) -> Iterable[Metric]:
    return (replace(metric, samples=()) for metric in metrics)


def _stamp(folder: Path) -> tuple[int, int]:
    try:
        found = (folder / _RESULTS).stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
