"""Runs a plan: every item under guard, on disk before the next one; the box is given back however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from gpubox.bench.benchmark import Benchmark, flagged_headline, make_benchmark
from gpubox.bench.events import (
    Emit,
    FlagRaised,
    ItemFinished,
    ItemStarted,
    Note,
    RunEnded,
    RunStarted,
    ignore_event,
)
from gpubox.bench.interference import InterferenceMonitor, ItemReadings
from gpubox.bench.model import Flag, Item, Machine, Plan, Provenance, RawRecord, Result, RunInfo, Target
from gpubox.bench.provenance import read_machine, read_provenance
from gpubox.bench.recovery import clear_pending_restores, pending_restore
from gpubox.bench.run_store import Run, create_run
from gpubox.bench.target_server import (
    ProfileLookup,
    TargetServer,
    is_server_gone,
    restore_or_report,
    target_profiles_of,
)
from gpubox.clock import utc_now
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import Paths
from gpubox.sanitize import sanitize_line
from gpubox.server.state import Launch
from gpubox.server.stream import StreamError

MAX_ATTEMPTS = 2
COMPARED_MACHINE_FIELDS = ("gpubox", "cpu", "driver", "gpus", "sandbox")
"""What of a Machine a run that is resumed should find as it was; power caps are the cards'."""
"""How often an item is tried whose server dies under it."""


class PlanRunner:
    """Works on one run at a time. Events go to ``emit`` as they happen, all from the running loop."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        profiles: ProfileLookup,
        emit: Emit = ignore_event,
        *,
        stop_now: bool = False,
    ) -> None:
        """``stop_now``: a server that answers somebody is stopped without waiting for the end of it."""
        self.paths, self.config, self.emit, self.stop_now = paths, config, emit, stop_now
        self._profiles = profiles

    async def run(self, plan: Plan) -> RunInfo:
        """Makes a run of ``plan`` and executes it. Raises GpuboxError where it cannot go on; what was done is kept."""
        items = list(make_benchmark(plan).items())
        return await self.resume(create_run(self.paths, plan, items))

    async def resume(self, run: Run) -> RunInfo:
        """Goes on with ``run``: every item that has no result, and nothing else. Raises as ``run``."""
        with run.owned():
            return await RunSession(self, run, self._profiles).work()


class RunSession:
    """One gpubox's work on one run, from taking its lock to giving the box back."""

    def __init__(self, runner: PlanRunner, run: Run, profiles: ProfileLookup) -> None:
        self.run, self.emit = run, runner.emit
        self.info = run.info
        self.benchmark: Benchmark = make_benchmark(self.info.plan)
        self.items = run.items()
        self.results = run.results()
        self._inherited = None if self.info.restore_pending else pending_restore(runner.paths)
        owing = self._inherited or self.info
        self.target_server = TargetServer(
            runner.paths,
            runner.config,
            profiles,
            self.emit,
            on_restore_point=self._owe,
            before=owing.before,
            restore_pending=owing.restore_pending,
            applied_argv=owing.applied_argv,
            target_profiles=target_profiles_of(owing.plan),
            stop_now=runner.stop_now,
        )
        self._targets = {target.name: target for target in self.info.plan.targets}
        self._clock = time.monotonic()
        self._before = self.info.seconds
        self._work = 0.0
        """Weight of the items finished in this session."""
        self._began: float | None = None
        """When its first item did."""
        self._guards: InterferenceMonitor | None = None

    async def work(self) -> RunInfo:
        self._save(replace(self.info, state="running", message="", ended_at=""))
        self.emit(RunStarted(self.info, len(self.results)))
        state, message = "interrupted", "interrupted"
        try:
            self._guards = await asyncio.to_thread(InterferenceMonitor, self.target_server)
            sandbox = await self.benchmark.sandbox(self.target_server)
            self._at(read_machine(self._guards.driver, sandbox, self._guards.other_gpu_processes))
            for flag in self._guards.at_once():
                self._flag(flag)
            await self._score_left()
            await self._execute_all()
            state, message = "finished", ""
        except GpuboxError as error:
            if error.code != ExitCode.INTERRUPTED:
                state, message = "failed", error.message
            raise
        finally:
            if self._guards:
                self._guards.close()
            try:
                await self._end(state, message)
            finally:
                self.emit(RunEnded(self.info))
        return self.info

    def _at(self, machine: Machine) -> None:
        """The box as it was when the run began stays in the head; what is another now is told."""
        held = self.info.machine
        if held is None:
            self._save(replace(self.info, machine=machine))
        elif differs := [name for name in COMPARED_MACHINE_FIELDS if getattr(held, name) != getattr(machine, name)]:
            self._flag(Flag("setup", f"the box is not what it was when the run began: {', '.join(differs)}"))

    async def _end(self, state: str, message: str) -> None:
        # The head first: a disk that is full or a second Ctrl-C must not keep the old server from coming back.
        head = replace(self.info, state=state, message=message, ended_at=utc_now(), seconds=self._seconds())
        with contextlib.suppress(GpuboxError):
            self._save(head)
        error = await restore_or_report(self.target_server)
        if self._inherited and not self.target_server.restore_pending:
            clear_pending_restores(self.target_server.paths)
        with contextlib.suppress(GpuboxError):
            self._save(replace(self.info, restore_pending=self.target_server.restore_pending))
        if error and state == "finished":
            raise error

    async def _score_left(self) -> None:
        """Replies that were stored and not scored: a crash came between."""
        raws = self.run.raws()
        for item in self.items:
            if item.id in raws and item.id not in self.results:
                await self._finish(item, raws[item.id])

    async def _execute_all(self) -> None:
        todo = pending_items(self.items, self.results)
        last = ("", 0)
        for (name, start), group in groupby(todo, key=lambda item: (item.target, item.start)):
            items = [item for item in group if not self._skipped(item)]
            if not items:
                continue
            name = self.benchmark.target_of(items[0], self._scored())
            target = self._targets[name]
            fresh, last = bool(start) and last != (name, start), (name, start)
            if why := await self._revive(target, fresh=fresh):
                self.emit(Note(f"{name} is left out: {why}"))
                for item in items:
                    self._keep(item, Result(item.id, error=why, skipped=True))
                continue
            if self.info.plan.parallel > 1 and self.benchmark.takes_parallel:
                await self._together(items)
            else:
                for item in items:
                    if not self._skipped(item):
                        await self._execute(item)

    def _skipped(self, item: Item) -> bool:
        scored = self._scored()
        unneeded = self.benchmark.unneeded_reason(item, scored)
        why = unneeded or self.benchmark.skip_reason(item, scored, self.target_server.up)
        if why:
            self._keep(item, Result(item.id, error=why, skipped=True, unneeded=bool(unneeded)))
        return bool(why)

    async def _together(self, items: Sequence[Item]) -> None:
        """Several at once; the guard's flags are the whole group's."""
        assert self._guards is not None
        waiting = iter(items)

        async def worker() -> None:
            for item in waiting:
                if not self._skipped(item):
                    await self._execute(item, guarded=False)

        watch = ItemReadings()
        try:
            async with self._guards.watch("") as watch:
                workers = [asyncio.create_task(worker()) for _ in range(min(self.info.plan.parallel, len(items)))]
                try:
                    await asyncio.gather(*workers)
                finally:
                    for task in workers:
                        task.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)
        finally:  # also of a group that is cut off: its first half stands in the report
            for flag in watch.flags:
                self._flag(flag)
        if foreign := await self._guards.foreign():
            self._flag(foreign)

    async def _execute(self, item: Item, *, guarded: bool = True) -> None:
        """Does one item, twice where its server dies, and keeps what came of it."""
        assert self._guards is not None
        self._began = self._began or time.monotonic()
        self.emit(ItemStarted(item, self._number(item), len(self.items)))
        deaths: list[Flag] = []
        for attempt in range(1, MAX_ATTEMPTS + 1):
            error: GpuboxError | None = None
            data = {}
            started, began = utc_now(), time.monotonic()
            watch = ItemReadings()
            try:
                if guarded:
                    async with self._guards.watch(item.id) as watch:
                        data = dict(await self.benchmark.execute(item, self.target_server))
                else:
                    data = dict(await self.benchmark.execute(item, self.target_server))
            except GpuboxError as caught:
                error = caught
            seconds = time.monotonic() - began
            if chosen := self.target_server.outside_change():
                raise GpuboxError(
                    f"The run ends here: {chosen}.", f"`gpubox bench resume {self.run.id}` goes on from {item.id}."
                )
            if error and is_server_gone(self.target_server, error):
                target = self.target_server.server.target
                if target.url:
                    raise error
                deaths.append(Flag("crash", f"the server died: {error.message}", item.id))
                self._flag(deaths[-1])  # of the run as well: it may not come up again
                if attempt < MAX_ATTEMPTS:
                    self.emit(Note("The server died; it is started again and the item done once more."))
                if why := await self._revive(target):
                    error = GpuboxError(f"{error.message} It does not come up again: {why.rstrip('.')}.")
                elif attempt < MAX_ATTEMPTS:
                    continue
            elif isinstance(error, StreamError) and error.transient and attempt < MAX_ATTEMPTS:
                self.emit(Note(f"{item.id} is done once more: {error.message}"))
                continue
            break
        foreign = await self._guards.foreign() if guarded else None
        flags = (*deaths, *watch.flags, *((replace(foreign, item=item.id),) if foreign else ()))
        words = error.message if error else ""
        raw = RawRecord(item.id, started, round(seconds, 6), data, tuple(watch.samples), flags, words)
        self.run.add_raw(raw)
        await self._finish(item, raw)

    async def _revive(self, target: Target, *, fresh: bool = False) -> str:
        """Has a target up. Returns why it does not come up, where that is a result; else raises."""
        try:
            await self._serve(target, fresh=fresh)
        except GpuboxError as error:
            why = "" if error.code == ExitCode.INTERRUPTED else self.benchmark.load_failure_reason(target, error)
            if not why:
                raise
            return why
        return ""

    async def _serve(self, target: Target, *, fresh: bool = False) -> None:
        assert self._guards is not None
        await self.target_server.serve(target, fresh=fresh)
        await self._guards.begin()
        if target.stopped:
            return
        found = await read_provenance(
            self.target_server.server, self.target_server.paths, lambda text: self.emit(Note(text))
        )
        held = self.info.provenance.get(target.name)
        if held is None:
            self._save(replace(self.info, provenance={**self.info.provenance, target.name: found}))
        elif differs := provenance_changes(held, found):
            self._flag(Flag("setup", f"{target.name} is not what it was when the run began: {', '.join(differs)}"))

    async def _finish(self, item: Item, raw: RawRecord) -> None:
        self._keep(item, await score_record(self.benchmark, item, raw))

    def _keep(self, item: Item, result: Result) -> None:
        self.run.add_result(result)
        self.results[item.id] = result
        self._work += item.weight
        for flag in result.flags:
            self.emit(FlagRaised(flag))
        self.emit(
            ItemFinished(
                item,
                result,
                len(self.results),
                len(self.items),
                self._seconds_left(),
                flagged_headline(self.benchmark, self._scored()),
            )
        )

    def _scored(self) -> list[tuple[Item, Result]]:
        return [(item, self.results[item.id]) for item in self.items if item.id in self.results]

    def _number(self, item: Item) -> int:
        return next(i for i, one in enumerate(self.items, 1) if one.id == item.id)

    def _seconds(self) -> float:
        return round(self._before + time.monotonic() - self._clock, 3)

    def _seconds_left(self) -> float | None:
        left = sum(item.weight for item in self.items if item.id not in self.results)
        return (time.monotonic() - self._began) * left / self._work if self._work and self._began else None

    def _flag(self, flag: Flag) -> None:
        self.emit(FlagRaised(flag))
        if flag not in self.info.flags:
            self._save(replace(self.info, flags=(*self.info.flags, flag)))

    def _owe(self, before: Launch | None, applied_argv: tuple[str, ...]) -> None:
        self._save(replace(self.info, before=before, restore_pending=True, applied_argv=applied_argv))

    def _save(self, info: RunInfo) -> None:
        self.info = info
        self.run.save(info)


def provenance_changes(held: Provenance, found: Provenance) -> list[str]:
    """What of a target is another now. The port is not: of "any free port" each start has its own."""

    def argv(one: Provenance) -> list[str]:
        return ["" if one.argv[i - 1 : i] == ("--port",) else word for i, word in enumerate(one.argv)]

    names = ["env", "engine_version", "engine_sha256", "model_sha256", "dialect", "props"]
    if not (held.model_sha256 and found.model_sha256):
        names.append("model_path")  # all that is known of a server elsewhere
    differs = [name for name in names if getattr(held, name) != getattr(found, name)]
    return differs if argv(held) == argv(found) else ["argv", *differs]


def pending_items(items: Sequence[Item], results: dict[str, Result]) -> list[Item]:
    """The items to execute: those without a result, and the warm-ups of groups that are not complete."""
    open_groups = {item.group for item in items if item.group and item.id not in results and not item.warmup}
    return [item for item in items if item.id not in results or (item.warmup and item.group in open_groups)]


async def score_record(benchmark: Benchmark, item: Item, raw: RawRecord) -> Result:
    """The result of one stored record, its flags and its time with it."""
    if raw.error:
        return Result(item.id, seconds=raw.seconds, flags=raw.flags, error=raw.error)
    try:
        result = await benchmark.score(item, raw)
    except GpuboxError:
        raise
    except Exception as error:  # the reply is kept: `rescore_run` gives it its numbers when the scorer is mended
        why = f"its reply could not be scored ({type(error).__name__}: {sanitize_line(str(error))[:120]})"
        return Result(item.id, seconds=raw.seconds, flags=raw.flags, error=why)
    return replace(result, seconds=raw.seconds, flags=(*raw.flags, *result.flags))


async def rescore_run(run: Run, config: Config) -> tuple[int, list[str]]:
    """Scores every stored reply again: how many, and the items whose result is another than before.

    Raises GpuboxError; the old results then target_server.
    """
    with run.owned():
        benchmark = make_benchmark(run.info.plan)
        benchmark.config = config
        old, raws = run.results(), run.raws()
        fresh = dict(old)
        await benchmark.prepare([(item, raws[item.id]) for item in run.items() if item.id in raws])
        for item in run.items():
            if item.id in raws:
                fresh[item.id] = await score_record(benchmark, item, raws[item.id])
        changed = [name for name, result in fresh.items() if old.get(name) != result]
        if changed:
            run.replace_results(list(fresh.values()))
        return len(raws), changed
