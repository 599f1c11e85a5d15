"""Runs for tests of the Bench screen: real run files, but no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpubox.bench.kinds.sweep.sweep import grid_targets, parse_axis, with_own_flags
from gpubox.bench.kinds.tune.live import tune_progress
from gpubox.bench.kinds.tune.progress import TuneProgress
from gpubox.bench.model import Item, Plan, Result
from gpubox.bench.plan_outline import PlanOutline
from gpubox.bench.report.model import RunSummary
from gpubox.bench.report.run_summaries import RunFollower, RunProgress, run_summaries
from gpubox.bench.run_store import Run, find_run
from gpubox.bench.saved_profile import default_profile_name, target_to_save
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import ProfileCatalog
from gpubox.profiles.profile import Profile
from gpubox.tui.bench.bench_runs import BenchRuns
from gpubox.tui.workshop.profile_files import WorkshopService
from tests.bench_course import store_run
from tests.tui.fake import PROFILES, FakeServices


def sweep_run(paths: Paths, profile: str = "qwen36-mtp-16gb") -> Run:
    """A sweep over ``n-cpu-moe``; 4 is the best."""
    axis = parse_axis("n-cpu-moe=4,8")
    targets = with_own_flags(grid_targets(profile, [axis]), profile, {"n-cpu-moe": 8})
    plan = Plan("sweep", tuple(targets), {"axes": [axis.flag], "prompts": 1, "own_values": {"n-cpu-moe": 8}})

    def answer(item: Item) -> Result:
        tg = 40.0 if item.target.endswith("4") else 20.0
        return Result(item.id, {"tg": tg, "pp": 9 * tg, "load_seconds": 4.0}, 2.0)

    run = store_run(paths, plan, answer)
    run.save(replace(run.info, seconds=20.0))
    renamed = Run(run.folder.rename(run.folder.with_name("20261122-120000-sweep")))  # later than every other run
    renamed.save(replace(renamed.info, id=renamed.id))
    return renamed


class FakeBench(BenchRuns):
    """Reads the runs as the real service does; records in ``asked`` what it should run."""

    def __init__(self, paths: Paths) -> None:
        super().__init__(paths, Config())
        self.asked: list[tuple[str, ...]] = []
        self._tune: TuneProgress | None = None
        self.working: Run | None = None
        """The active run."""
        self.answered: tuple[str, ...] = ()
        self.planned = PlanOutline(45, ("qwen36-mtp-16gb",), "qwen36-mtp-16gb", 212.0)
        self.ended = asyncio.Event()
        self.problem = ""
        """Why a run fails."""
        self.taken = {"mine"}
        """Names of existing profiles."""

    async def summaries(self) -> list[RunSummary]:
        return [self._at_work(head) for head in reversed(run_summaries(self.paths))]

    def _at_work(self, head: RunSummary) -> RunSummary:
        if self.working and head.info and head.id == self.working.id:
            return replace(head, info=replace(head.info, state="running"))
        return head

    async def active(self) -> RunProgress | None:
        if self.working is None:
            return None
        live = RunFollower(self.working).read()
        items, plan = self.working.items(), live.info.plan
        if plan.kind == "tune" and self._tune is None:  # the tests add no results to it
            self._tune = tune_progress(plan, self.working.scored(), active=True)
        running = replace(live.info, state="running")
        return replace(
            live,
            info=running,
            now=next((item.id for item in items[live.done :]), live.now),
            owner=4711,
            tune=self._tune,
        )

    def profile(self, name: str) -> Profile:
        return ProfileCatalog({profile.name: profile for profile in PROFILES}, {}).get(name)

    def _profiles(self) -> Callable[[str], Profile]:
        return self.profile

    async def outline(self, arguments: Sequence[str]) -> PlanOutline:
        return self.planned

    async def busy(self) -> tuple[str, ...]:
        return self.answered

    async def run(self, arguments: Sequence[str], *, now: bool) -> None:
        self.asked.append((*arguments, "--now") if now else tuple(arguments))
        await self.ended.wait()
        if self.problem:
            raise GpuboxError(self.problem)

    async def stop(self, live: RunProgress) -> None:
        self.asked.append(("stop", live.info.id))
        self.working = None

    async def delete(self, run: str) -> None:
        find_run(self.paths, run).remove()

    async def best_cell(self, run: str) -> tuple[str, str]:
        target = target_to_save(find_run(self.paths, run))
        name = default_profile_name(self.profile(target.profile), target)
        return target.name, name

    async def save_as_profile(self, run: str, name: str) -> None:
        if name in self.taken:
            raise UsageError(f"There is a profile {name!r} already.")
        self.asked.append(("keep", run, name))

    async def restore(self) -> str:
        self.asked.append(("restore",))
        for head in run_summaries(self.paths):
            if head.info and head.info.restore_pending:
                find_run(self.paths, head.id).save(replace(head.info, restore_pending=False))
        return "qwen36-256k"

    async def export(self, view: str, runs: Sequence[str], form: str) -> str:
        self.asked.append(("export", view, *runs, form))
        return f"{view}.{form}"


class BenchServices(FakeServices):
    """All services, with these runs."""

    def __init__(self, paths: Paths) -> None:
        super().__init__()
        self.bench = FakeBench(paths)
        self.shop = WorkshopService(paths, Config, self.run_operation)

    def workshop_service(self) -> WorkshopService:
        return self.shop

    def bench_service(self) -> FakeBench:
        return self.bench
