"""Runs in a list: a short summary of each, cached in its folder; and how far a run is, whoever works on it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from gpubox import units
from gpubox.bench.benchmark import doubtful_headline, make_benchmark
from gpubox.bench.model import Item, Result, RunInfo, ScoredItems
from gpubox.bench.report.model import SPEED_UNITS, RunSummary
from gpubox.bench.run_store import (
    RESULTS_FILE,
    RUN_FILE,
    Run,
    decode_results,
    list_runs,
    readable_results,
    runs_in,
    unreadable_reason,
)
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.storage import DECODE_ERRORS, file_stamp, open_regular, read_bytes

if TYPE_CHECKING:
    from gpubox.bench.kinds.tune.progress import TuneProgress


SUMMARY = ".summary.json"
VERSION = 8
NEWEST = 4
"""The active run is looked for among this many, the last ones saved."""


CachedSummary = tuple[int, tuple[int, ...], RunSummary]
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
    return summary if (version, stamp) == (VERSION, file_stamp(run.folder / RESULTS_FILE)) else None


def _summarise(run: Run, info: RunInfo) -> RunSummary:
    """Reads the results; writes the cache unless the run is in progress."""
    stamp, scored = file_stamp(run.folder / RESULTS_FILE), run.scored()
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


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is."""

    info: RunInfo
    done: int
    failed: int
    headline: str
    seconds_left: float | None
    """Estimated from the times of its items so far."""
    now: str
    """The item in progress; empty if there is none."""
    values: tuple[tuple[float, float], ...]
    """Number and value of each item that has one; ``value_name`` names the quantity."""
    value_name: str
    last: tuple[Result, ...]
    """The last results, the newest at the end."""
    owner: int | None = None
    """The process that works on it."""
    tune: TuneProgress | None = None
    """Its candidates, if it is a tune."""

    @property
    def count(self) -> str:
        """``18/30`` items; of a tune ``14/80 starts``: of its items nobody knows how many follow."""
        tune = self.tune
        return f"{tune.starts_done}/{tune.starts_limit} starts" if tune else f"{self.done}/{self.info.items}"


class RunFollower:
    """Reads one run repeatedly; of its results it reads only the new ones. Raises GpuboxError if it is damaged."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._items: dict[str, Item] = {}
        self._results: dict[str, Result] = {}
        self._position: tuple[int, int] = (0, 0)
        """Inode of the results file, and the offset up to which it is read."""
        self._figures: tuple[tuple[int, int], str, str, tuple[tuple[float, float], ...]] | None = None
        """Headline, name and values of the items at this position: between two results they stay."""
        self._last_result_at = 0.0
        self._tune: tuple[tuple[int, str], TuneProgress] | None = None
        """The candidates after so many results in this state: to compute them takes a while."""

    def read(self) -> RunProgress:
        """The progress now."""
        info = self.run.info
        self._read_new_results()
        if len(self._items) <= len(self._results):  # its course may have asked for more since
            self._items = {item.id: item for item in self.run.items()}
        scored = [(item, self._results[name]) for name, item in self._items.items() if name in self._results]
        running = info.state == "running"
        benchmark = make_benchmark(info.plan)
        with readable_results(self.run):
            if self._figures is None or self._figures[0] != self._position:
                self._figures = (self._position, doubtful_headline(benchmark, scored), *_item_values(scored))
            tune = self._read_tune(info, scored)
        _, headline, value_name, values = self._figures
        return RunProgress(
            info,
            len(scored),
            sum(not result.ok for _, result in scored),
            headline,
            self._seconds_left(info, running=running),
            next((name for name in self._items if running and name not in self._results), ""),
            values,
            value_name,
            tuple(list(self._results.values())[-8:]),
            self.run.owner,
            tune,
        )

    def _read_tune(self, info: RunInfo, scored: ScoredItems) -> TuneProgress | None:
        """The candidates, if the run is a tune."""
        if info.plan.kind != "tune":
            return None
        each = sum(item.start == 1 for item in self._items.values()) or 1
        at = (len(scored) // each, f"{info.state} {len(scored) % each > 0}")  # within a start nothing is decided
        if self._tune is None or self._tune[0] != at:
            from gpubox.bench.kinds.tune.live import tune_progress

            self._tune = (at, tune_progress(info.plan, scored, active=info.state == "running"))
        return self._tune[1]

    def _read_new_results(self) -> None:
        path = self.run.folder / RESULTS_FILE
        try:
            with open_regular(path) as file:
                status = path.stat()
                inode, offset = self._position
                if inode != status.st_ino or status.st_size < offset:  # the file was replaced by `rescore`
                    self._results, offset = {}, 0
                file.seek(offset)
                data = file.read(64 * units.MIB)
        except OSError:
            return
        end = data.rfind(b"\n") + 1
        for result in decode_results(data[:end].splitlines(), Result):
            self._results.pop(result.item, None)  # so that the newest result is the last in the dict
            self._results[result.item] = result
        self._position, self._last_result_at = (status.st_ino, offset + end), status.st_mtime

    def _seconds_left(self, info: RunInfo, *, running: bool) -> float | None:
        done = [
            (self._items[name].weight, result.seconds)
            for name, result in self._results.items()
            if name in self._items and result.seconds
        ]
        weight = sum(weight for weight, _ in done)
        if not weight:
            return None
        seconds_per_weight = sum(seconds for _, seconds in done) / weight
        waiting = [item.weight * seconds_per_weight for name, item in self._items.items() if name not in self._results]
        waiting += [weight / len(done) * seconds_per_weight] * (info.items - len(self._items))
        # The item in progress becomes shorter while it runs; if it takes too long, the others keep their share.
        spent = max(0.0, time.time() - self._last_result_at) if running else 0.0
        return max(0.0, waiting[0] - spent) + sum(waiting[1:]) if waiting else 0.0


def _item_values(scored: ScoredItems) -> tuple[str, tuple[tuple[float, float], ...]]:
    """tok/s of each item, or the share that has passed so far."""
    counted = [result for item, result in scored if not item.warmup]
    rates = tuple(
        (float(n), float(result.values["tg"])) for n, result in enumerate(counted, 1) if result.values.get("tg")
    )
    if rates:
        return "tg, tok/s", rates
    passed, shares = 0, []
    graded = [result.values["passed"] for result in counted if isinstance(result.values.get("passed"), bool)]
    for n, value in enumerate(graded, 1):
        passed += value
        shares.append((float(n), 100 * passed / n))
    return "passed, %", tuple(shares)
