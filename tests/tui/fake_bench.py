"""Runs made up for tests of the Bench screen: a folder of real run files, and no process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gpubox.bench.keep import default_name, target_to_keep
from gpubox.bench.model import Plan, Result
from gpubox.bench.planning import Outline
from gpubox.bench.report.build import Told, compared, ranked, told
from gpubox.bench.report.compare import RunComparison
from gpubox.bench.report.heads import Head, heads
from gpubox.bench.report.leaderboard import Board
from gpubox.bench.report.live import Follower, LiveRun
from gpubox.bench.store import Run, create_run, find_run
from gpubox.bench.sweep.kind import Sweep
from gpubox.bench.sweep.plan import cells, parse_axis
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.profiles.loader import Catalog
from gpubox.profiles.model import Profile
from gpubox.tui.bench.service import Best, Ended
from tests.tui.fake import PROFILES, FakeServices


def sweep_run(paths: Paths, profile: str = "qwen36-mtp-16gb") -> Run:
    """A sweep over ``n-cpu-moe``; 4 is the best."""
    axis = parse_axis("n-cpu-moe=4,8")
    plan = Plan("sweep", tuple(cells(profile, [axis])), {"axes": [axis.flag], "prompts": 1})
    items = Sweep(plan).items()
    run = create_run(paths, plan, items)
    with run.owned():
        for item in items:
            tg = 40.0 if item.target.endswith("4") else 20.0
            run.add_result(Result(item.id, {"tg": tg, "pp": 9 * tg, "load_seconds": 4.0}, 2.0))
        run.save(replace(run.info, state="finished", seconds=20.0))
    found = Run(run.folder.rename(run.folder.with_name("20261122-120000-sweep")))  # the newest, whenever this is
    found.save(replace(found.info, id=found.id))
    return found


class FakeBench:
    """Reads the runs as the real one does; what is to be run is written down in ``asked``."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.read_only = ""
        self.url: str | None = None
        self.asked: list[tuple[str, ...]] = []
        self.working: Run | None = None
        """The run that somebody works on."""
        self.answered: tuple[str, ...] = ()
        self.planned = Outline(45, ("qwen36-mtp-16gb",), "qwen36-mtp-16gb", 212.0)
        self.ended = asyncio.Event()
        self.end = Ended(True, "")
        self.taken = {"mine"}
        """Names that profiles have already."""

    async def heads(self) -> list[Head]:
        return [self._at_work(head) for head in reversed(heads(self.paths))]

    def _at_work(self, head: Head) -> Head:
        if self.working and head.info and head.id == self.working.id:
            return replace(head, info=replace(head.info, state="running"))
        return head

    async def active(self) -> LiveRun | None:
        if self.working is None:
            return None
        live = Follower(self.working).read()
        items = self.working.items()
        return replace(live, info=replace(live.info, state="running"), now=items[live.done].id, owner=4711)

    def profile(self, name: str) -> Profile:
        return Catalog({profile.name: profile for profile in PROFILES}, {}).get(name)

    async def told(self, run: str) -> Told:
        return told(find_run(self.paths, run), self.profile)

    async def compared(self, first: str, second: str) -> RunComparison:
        return compared(find_run(self.paths, first), find_run(self.paths, second))

    async def ranked(self) -> list[Board]:
        return ranked(self.paths)

    async def outline(self, words: Sequence[str]) -> Outline:
        return self.planned

    async def busy(self) -> tuple[str, ...]:
        return self.answered

    async def run(self, words: Sequence[str], *, now: bool) -> Ended:
        self.asked.append((*words, "--now") if now else tuple(words))
        await self.ended.wait()
        return self.end

    async def stop(self, live: LiveRun) -> None:
        self.asked.append(("stop", live.info.id))
        self.working = None

    async def remove(self, run: str) -> None:
        find_run(self.paths, run).remove()

    async def best(self, run: str) -> Best:
        target = target_to_keep(find_run(self.paths, run))
        return Best(target.name, default_name(self.profile(target.profile), target))

    async def keep(self, run: str, name: str) -> None:
        if name in self.taken:
            raise UsageError(f"There is a profile {name!r} already.")
        self.asked.append(("keep", run, name))

    async def give_back(self) -> str:
        self.asked.append(("give back",))
        for head in heads(self.paths):
            if head.info and head.info.owed:
                find_run(self.paths, head.id).save(replace(head.info, owed=False))
        return "qwen36-256k"

    async def export(self, what: Sequence[str], form: str) -> str:
        self.asked.append(("export", *what, form))
        return f"{what[0]}.{form}"


class BenchServices(FakeServices):
    """The whole box, with these runs."""

    def __init__(self, paths: Paths) -> None:
        super().__init__()
        self.benches_ = FakeBench(paths)

    def benches(self) -> FakeBench:
        return self.benches_
