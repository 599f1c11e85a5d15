"""Short summaries of runs for lists and leaderboards, cached in each run's folder."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import msgspec

from gpubox import units
from gpubox.bench.benchmark import doubtful_headline, make_benchmark
from gpubox.bench.model import RunInfo
from gpubox.bench.report.model import SPEED_UNITS, RunSummary
from gpubox.bench.run_store import RESULTS_FILE, RUN_FILE, Run, list_runs, runs_in, unreadable_reason
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.storage import DECODE_ERRORS, read_bytes

SUMMARY = ".summary.json"
VERSION = 6
NEWEST = 4
"""The active run is looked for among this many, the last ones saved."""


CachedSummary = tuple[int, tuple[int, int], RunSummary]
"""VERSION, the stamp of the results file, and the summary without ``info``, which changes while the results stay."""


def run_summaries(paths: Paths) -> list[RunSummary]:
    """Every run, the newest last."""
    return [run_summary(run) for run in list_runs(paths)]


def sibling_summaries(run: Run) -> list[RunSummary]:
    """Every run that is stored next to ``run``, itself included."""
    return [run_summary(sibling) for sibling in runs_in(run.folder.parent)]


def run_summary(run: Run) -> RunSummary:
    """Never raises: the summary of a damaged run says so."""
    try:
        info = run.info
    except GpuboxError as error:
        return RunSummary(run.id, None, problem=error.message)
    try:
        return replace(_read_cached(run) or _summarise(run, info), info=info)
    except GpuboxError as error:
        return RunSummary(run.id, info, problem=error.message)
    except Exception as error:  # the list must still show all other runs
        return RunSummary(run.id, info, problem=unreadable_reason(error))


def active_run(paths: Paths) -> Run | None:
    """The run that a live gpubox works on. Looks only at the runs saved last, so that it can be called each second."""
    saved: list[tuple[int, Run]] = []
    for run in list_runs(paths):
        with contextlib.suppress(OSError):
            saved.append(((run.folder / RUN_FILE).stat().st_mtime_ns, run))
    saved.sort(key=lambda pair: pair[0], reverse=True)
    return next((run for _, run in saved[:NEWEST] if run.busy), None)


def _read_cached(run: Run) -> RunSummary | None:
    try:
        version, stamp, summary = msgspec.json.decode(
            read_bytes(run.folder / SUMMARY, 4 * units.MIB), type=CachedSummary
        )
    except (OSError, *DECODE_ERRORS):
        return None
    return summary if (version, stamp) == (VERSION, _stamp(run.folder)) else None


def _summarise(run: Run, info: RunInfo) -> RunSummary:
    """Reads the results; writes the cache unless the run is in progress."""
    stamp, scored = _stamp(run.folder), run.scored()
    benchmark = make_benchmark(info.plan)
    report = benchmark.summarise(info, scored)
    summary = RunSummary(
        run.id,
        None,
        len(scored),
        sum(not result.ok for _, result in scored),
        doubtful_headline(benchmark, scored),
        report.title,
        tuple(dict.fromkeys(doubt.kind for doubt in report.doubts)),
        tuple(replace(metric, samples=()) if metric.unit in SPEED_UNITS else metric for metric in report.metrics),
    )
    if info.state != "running":
        with contextlib.suppress(GpuboxError):
            run.save_file(SUMMARY, msgspec.json.encode((VERSION, stamp, summary)).decode())
    return summary


def _stamp(folder: Path) -> tuple[int, int]:
    """Size and modification time (ns) of the results file."""
    try:
        status = (folder / RESULTS_FILE).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
