"""Runs a plan. Each item's record is on disk before the next begins; the previous server is restored at the end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpubox.bench.benchmark import Benchmark, doubtful_headline, make_benchmark
from gpubox.bench.events import DoubtRaised, Emit, ItemFinished, ItemStarted, Note, RunEnded, RunStarted, ignore_event
from gpubox.bench.interference import InterferenceMonitor, ItemReadings
from gpubox.bench.model import Doubt, Item, Machine, Plan, Provenance, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.bench.provenance import comparable_argv, read_machine, read_provenance
from gpubox.bench.report.formatting import item_words
from gpubox.bench.run_store import Run, create_run, readable_results
from gpubox.bench.target_server import (
    ProfileLookup,
    TargetServer,
    clear_pending_restores,
    pending_restore,
    restore_or_report,
)
from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.notify import notify
from gpubox.paths import Paths
from gpubox.sanitize import sanitize_line
from gpubox.server.stream import StreamError

LONG_RUN_SECONDS = 300
"""The end of a longer run, and of each tune, is worth a notification."""
MAX_ATTEMPTS = 2
"""Attempts per item when the server dies during it."""
COMPARED_MACHINE_FIELDS = ("gpubox", "cpu", "driver", "gpus", "sandbox")
"""Fields of Machine that must not change when a run is resumed. The power limits are in ``gpus``."""


@dataclass(frozen=True, slots=True)
class PlanRunner:
    """Runs plans, one at a time. All events are emitted from the running event loop."""

    paths: Paths
    config: Config
    profiles: ProfileLookup
    emit: Emit = ignore_event
    stop_now: bool = False
    """Stop a server at once, without waiting for the requests that it answers."""

    async def run(self, plan: Plan) -> RunInfo:
        """Creates a run of ``plan`` and executes it. Raises GpuboxError if it fails; finished items are kept."""
        make_benchmark(plan)  # refuses a wrong option before anything is stored
        return await self.resume(create_run(self.paths, plan))

    async def resume(self, run: Run) -> RunInfo:
        """Executes the items of ``run`` that have no result. Raises as ``run``."""
        with run.owned():
            return await RunSession(self, run).work()


class RunSession:
    """One gpubox's work on one run, from taking its lock to restoring the previous server."""

    def __init__(self, runner: PlanRunner, run: Run) -> None:
        self.run, self.emit = run, runner.emit
        self.info = run.info
        self.benchmark: Benchmark = make_benchmark(self.info.plan)
        self.benchmark.scratch = run.folder / "scratch"
        self.items = run.items()
        self.results = run.results()
        self._inherited = None if self.info.restore_pending else pending_restore(runner.paths)
        self.target_server = TargetServer(
            runner.paths,
            runner.config,
            runner.profiles,
            self.emit,
            on_restore_point=lambda previous, applied_argv: self._save(
                replace(self.info, previous=previous, restore_pending=True, applied_argv=applied_argv)
            ),
            earlier=self._inherited or self.info,
            stop_now=runner.stop_now,
        )
        self._targets = {target.name: target for target in self.info.plan.targets}
        with readable_results(run):  # the headline after each item reads them all: refused before a server stops
            doubtful_headline(self.benchmark, self._scored())
        self._started = time.monotonic()
        self._earlier_seconds = self.info.seconds
        self._first_item_started: float | None = None
        self._last = ("", 0)
        """Target and number of the last server start."""
        self._finished_weight = 0.0
        """Of the items finished in this session."""
        self._monitor: InterferenceMonitor
        """Set by ``work``."""

    async def work(self) -> RunInfo:
        self._save(replace(self.info, state="running", message=""))
        self.emit(RunStarted(self.info, len(self.results)))
        state, message = "interrupted", "interrupted"
        try:
            self._monitor = await asyncio.to_thread(InterferenceMonitor, self.target_server)
            with contextlib.closing(self._monitor):
                isolation = await self.benchmark.sandbox_isolation(self.target_server)
                self._save_machine(read_machine(self._monitor.driver, isolation, self._monitor.other_gpu_processes))
                for doubt in self._monitor.initial_doubts():
                    self._raise_doubt(doubt)
                await self._score_unscored()
                await self._execute_all()
            state, message = "finished", ""
        except GpuboxError as error:
            if error.code != ExitCode.INTERRUPTED:
                state, message = "failed", error.message
            raise
        finally:
            try:
                await self._end(state, message)
            finally:
                self.emit(RunEnded(self.info))
        return self.info

    def _save_machine(self, machine: Machine) -> None:
        """Stores the box of the first session; in a later one raises a doubt for what has changed."""
        first = self.info.machine
        if first is None:
            self._save(replace(self.info, machine=machine))
        elif changed := [name for name in COMPARED_MACHINE_FIELDS if getattr(first, name) != getattr(machine, name)]:
            self._raise_doubt(Doubt("setup", f"the machine changed since the run began: {', '.join(changed)}"))

    async def _end(self, state: str, message: str) -> None:
        # Saved before the restore: a full disk or a second Ctrl-C must not prevent the restore.
        seconds = round(self._earlier_seconds + time.monotonic() - self._started, 3)
        with contextlib.suppress(GpuboxError):
            self._save(replace(self.info, state=state, message=message, seconds=seconds))
        await asyncio.to_thread(shutil.rmtree, self.benchmark.scratch, ignore_errors=True)
        error = await restore_or_report(self.target_server)
        if self._inherited and not self.target_server.restore_pending:
            clear_pending_restores(self.target_server.paths)
        with contextlib.suppress(GpuboxError):
            self._save(replace(self.info, restore_pending=self.target_server.restore_pending))
        if state != "interrupted":
            self._tell(error.message if error else message)
        if error and state == "finished":
            raise error

    def _tell(self, problem: str) -> None:
        """Has the owner told of the end of a run for which nobody waits at the screen."""
        kind, target = self.info.plan.kind, self.info.plan.targets[0]
        if kind == "tune" or self.info.seconds >= LONG_RUN_SECONDS:
            title = f"The {kind} of {target.name} {'failed' if problem else 'is finished'}"
            text = f"{problem or doubtful_headline(self.benchmark, self._scored())} `gpubox bench show {self.run.id}`"
            notify(self.target_server.paths, "run", title, text, profile=target.profile)

    async def _score_unscored(self) -> None:
        """Scores records that a crash left without a result."""
        raws = self.run.raws()
        for item in self.items:
            if item.id in raws and item.id not in self.results:
                self._add_result(item, await score_record(self.benchmark, item, raws[item.id]))

    async def _execute_all(self) -> None:
        """Follows the course; a resumed run replays it over the stored results."""
        course = self.benchmark.course()
        asked: list[Item] = []
        batch = next(course)
        while True:
            asked += batch.items
            self._ask(asked, batch.later)
            await self._execute_batch(pending_items(batch.items, self.results))
            try:
                batch = course.send([(item, self.results[item.id]) for item in asked])
            except StopIteration:
                break
        self._save(replace(self.info, items=len(self.items)))

    def _ask(self, asked: Sequence[Item], later: int) -> None:
        """Stores the items that are new. Raises GpuboxError if the stored ones are others."""
        known = len(self.items)
        if any((old.id, old.target) != (new.id, new.target) for old, new in zip(self.items, asked, strict=False)):
            raise GpuboxError(f"{self.run.id} was begun by a gpubox that measures otherwise.", "Begin a new run.")
        if new := asked[known:]:
            self.run.add_items(new)
            self.items += new
        if known <= len(asked) and self.info.items != len(asked) + later:
            self._save(replace(self.info, items=len(asked) + later))

    async def _execute_batch(self, todo: Sequence[Item]) -> None:
        for (name, start), grouped in groupby(todo, key=lambda item: (item.target, item.start)):
            items = [item for item in grouped if not self._skip(item)]
            if not items:
                continue
            force_restart, self._last = bool(start) and self._last != (name, start), (name, start)
            began = time.monotonic()
            if failure := await self._serve(self._targets[name], force_restart=force_restart):
                self.emit(Note(f"{name} is skipped: {failure}"))
                seconds = round(time.monotonic() - began, 3)
                for item in items:
                    self._add_result(item, Result(item.id, {}, seconds, error=failure, skipped=True))
                    seconds = 0.0
                continue
            if self.info.plan.parallel > 1:
                await self._execute_in_parallel(items)
            else:
                for item in items:
                    if not self._skip(item):
                        await self._execute(item)

    def _skip(self, item: Item) -> bool:
        """Stores a skipped result if ``item`` is pointless."""
        reason = self.benchmark.skip_reason(item, self._scored(), self.target_server.active_or_none)
        if reason:
            self._add_result(item, Result(item.id, error=reason, skipped=True))
        return bool(reason)

    async def _execute_in_parallel(self, items: Sequence[Item]) -> None:
        """Executes several items at once. Interference is a doubt about the run, because no single item owns it."""
        waiting = iter(items)

        async def worker() -> None:
            for item in waiting:
                if not self._skip(item):
                    await self._execute(item, watched=False)

        readings = ItemReadings()
        try:
            async with self._monitor.watch("") as readings:
                workers = [asyncio.create_task(worker()) for _ in range(min(self.info.plan.parallel, len(items)))]
                try:
                    await asyncio.gather(*workers)
                finally:
                    for task in workers:
                        task.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)
        finally:  # also after an error: the items finished so far are in the report
            for doubt in readings.doubts:
                self._raise_doubt(doubt)
        if foreign := await self._monitor.foreign_request():
            self._raise_doubt(foreign)

    async def _execute(self, item: Item, *, watched: bool = True) -> None:
        """Executes one item, again if its server dies, and stores its record and its result."""
        self._first_item_started = self._first_item_started or time.monotonic()
        self.emit(ItemStarted(item, self.items.index(item) + 1, self.info.items))
        crashes: list[Doubt] = []
        for attempt in range(1, MAX_ATTEMPTS + 1):
            error: GpuboxError | None = None
            data = {}
            started_at, began = utc_now(), time.monotonic()
            readings = ItemReadings()
            try:
                async with self._monitor.watch(item.id) if watched else contextlib.nullcontext(readings) as readings:
                    data = dict(await self.benchmark.execute(item, self.target_server))
            except GpuboxError as caught:
                error = caught
            seconds = time.monotonic() - began
            if change := self.target_server.outside_change():
                hint = f"`gpubox bench resume {self.run.id}` continues with {item_words(item.id)}."
                raise GpuboxError(f"The run ends, because {change}.", hint)
            if error and self.target_server.is_gone(error):
                target = self.target_server.active.target
                if target.url:
                    raise error
                crashes.append(Doubt("crash", f"the server died: {error.message}", item.id))
                self._raise_doubt(crashes[-1])  # for the run as well: the item gets no result if the restart fails
                if attempt < MAX_ATTEMPTS:
                    self.emit(Note("The server died. It is restarted, and the measurement is repeated."))
                if failure := await self._serve(target):
                    error = GpuboxError(f"{error.message} The server does not start again: {failure.rstrip('.')}.")
                elif attempt < MAX_ATTEMPTS:
                    continue
            elif isinstance(error, StreamError) and error.transient and attempt < MAX_ATTEMPTS:
                self.emit(Note(f"{item_words(item.id)} is repeated: {error.message}"))
                continue
            break
        foreign = await self._monitor.foreign_request() if watched else None
        doubts = (*crashes, *readings.doubts, *((replace(foreign, item=item.id),) if foreign else ()))
        message = error.message if error else ""
        raw = RawRecord(item.id, started_at, round(seconds, 6), data, tuple(readings.samples), doubts, message)
        self.run.add_raw(raw)
        self._add_result(item, await score_record(self.benchmark, item, raw))

    async def _serve(self, target: Target, *, force_restart: bool = False) -> str:
        """Serves a target. Returns why it cannot load, if that is a result; otherwise raises GpuboxError."""
        server = self.target_server
        try:
            await server.serve(target, force_restart=force_restart)
        except GpuboxError as error:
            if error.code != ExitCode.INTERRUPTED and (failure := self.benchmark.load_failure_reason(target, error)):
                return failure
            raise
        await self._monitor.reset_baseline()
        current: Provenance | None
        if target.stopped:
            current = await self.benchmark.stopped_provenance(target, server, lambda text: self.emit(Note(text)))
        else:
            current = await read_provenance(server.active, server.paths, lambda text: self.emit(Note(text)))
        if current is None:
            return ""
        first = self.info.provenance.get(target.name)
        if first is None:
            self._save(replace(self.info, provenance={**self.info.provenance, target.name: current}))
        elif changes := provenance_changes(first, current):
            self._raise_doubt(Doubt("setup", f"{target.name} changed since the run began: {', '.join(changes)}"))
        return ""

    def _add_result(self, item: Item, result: Result) -> None:
        self.run.add_result(result)
        self.results[item.id] = result
        self._finished_weight += item.weight
        for doubt in result.doubts:
            self.emit(DoubtRaised(doubt))
        headline = doubtful_headline(self.benchmark, self._scored())
        self.emit(ItemFinished(item, result, len(self.results), self.info.items, self._seconds_left(), headline))

    def _scored(self) -> ScoredItems:
        return [(item, self.results[item.id]) for item in self.items if item.id in self.results]

    def _seconds_left(self) -> float | None:
        if not self._finished_weight or not self._first_item_started:
            return None
        weight_left = sum(item.weight for item in self.items if item.id not in self.results)
        weight_left += (self.info.items - len(self.items)) * statistics.fmean(item.weight for item in self.items)
        return (time.monotonic() - self._first_item_started) * weight_left / self._finished_weight

    def _raise_doubt(self, doubt: Doubt) -> None:
        self.emit(DoubtRaised(doubt))
        if doubt not in self.info.doubts:
            self._save(replace(self.info, doubts=(*self.info.doubts, doubt)))

    def _save(self, info: RunInfo) -> None:
        self.info = info
        self.run.save(info)


def provenance_changes(first: Provenance, current: Provenance) -> list[str]:
    """The names of the fields that changed; of the command line only what ``comparable_argv`` keeps."""
    names = ["env", "engine_version", "engine_sha256", "model_sha256", "dialect", "props"]
    if not (first.model_sha256 and current.model_sha256):
        names.append("model_path")  # a URL target has no hash
    changes = [name for name in names if getattr(first, name) != getattr(current, name)]
    return changes if comparable_argv(first.argv) == comparable_argv(current.argv) else ["argv", *changes]


def pending_items(items: Sequence[Item], results: dict[str, Result]) -> list[Item]:
    """The items without a result, and the warm-ups of groups that are not complete."""
    open_groups = {item.group for item in items if item.group and item.id not in results and not item.warmup}
    return [item for item in items if item.id not in results or (item.warmup and item.group in open_groups)]


async def score_record(benchmark: Benchmark, item: Item, raw: RawRecord) -> Result:
    """The result of one stored record, with the record's doubts and time."""
    if raw.error:
        return Result(item.id, seconds=raw.seconds, doubts=raw.doubts, error=raw.error)
    try:
        result = await benchmark.score(item, raw)
    except GpuboxError:
        raise
    except Exception as error:  # the reply is kept: `rescore` scores it after the scorer is fixed
        reason = f"its reply could not be scored ({type(error).__name__}: {sanitize_line(str(error))[:120]})"
        return Result(item.id, seconds=raw.seconds, doubts=raw.doubts, error=reason)
    return replace(result, seconds=raw.seconds, doubts=(*raw.doubts, *result.doubts))


async def rescore_run(run: Run, config: Config) -> tuple[int, list[str]]:
    """Scores every stored record again. Returns their number, and the items whose result changed.

    Raises GpuboxError; the old results then remain.
    """
    with run.owned():
        benchmark = make_benchmark(run.info.plan)
        benchmark.config = config
        old, raws = run.results(), run.raws()
        new = dict(old)
        pairs = [(item, raws[item.id]) for item in run.items() if item.id in raws]
        await benchmark.prepare(pairs)
        for item, raw in pairs:
            new[item.id] = await score_record(benchmark, item, raw)
        changed = [name for name, result in new.items() if old.get(name) != result]
        if changed:
            run.replace_results(list(new.values()))
        return len(raws), changed
