"""What a plan will do, known before it runs: items, server starts, and an estimate of its time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from gpubox import units
from gpubox.bench.benchmark import find_kind, make_benchmark
from gpubox.bench.compare.words import about_time
from gpubox.bench.model import Plan
from gpubox.bench.run_store import list_runs
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.instance import observe


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """A plan in numbers."""

    items: int
    starts: tuple[str, ...]
    """The targets in the order in which they are started."""
    restored_profile: str | None
    """The profile that runs again afterwards; ``None``: nothing runs now, nor afterwards."""
    seconds: float | None
    """From the last finished run with these options, else by tokens from the last one of these targets."""
    without_server: tuple[str, ...] = ()
    """The targets that a program measures while no server runs."""
    always_restarts: bool = False
    """Whether each target is started anew even if its server already runs."""
    tokens: float | None = None
    """Tokens to generate, plus the cost of the prompts; ``None`` if the kind does not count tokens."""
    about: tuple[str, ...] = ()
    """Sentences of the plan, in place of the number of items and starts."""

    def sentences(self, tokens_per_second: float | None = None) -> list[str]:
        """What the run will do, for people. ``tokens_per_second`` helps to estimate the time of a first run."""
        seconds, rate = self.seconds, ""
        if not seconds and self.tokens and tokens_per_second:
            seconds = self.tokens / tokens_per_second
            rate = f" at {units.rate(tokens_per_second)} tok/s"
        items = f"{self.items:,} measurement{'s' * (self.items != 1)}"
        sentences = list(self.about) or [f"It makes {items}; {self._servers}."]
        if seconds and self.about:
            sentences.append(f"It takes about {about_time(seconds)}{rate}.")
        elif seconds:
            sentences[0] = f"It takes about {about_time(seconds)}{rate}, for {items}; {self._servers}."
        if self.starts or (self.without_server and self.restored_profile):
            restored = self.restored_profile
            sentences.append(f"Afterwards {restored} runs again." if restored else "Afterwards nothing runs, as now.")
        return sentences

    @property
    def _servers(self) -> str:
        """What happens to servers."""
        count = len(self.starts)
        if count == 1:
            unless = "" if self.always_restarts else ", unless it runs with the same flags"
            return f"{self.starts[0]} is started{unless}"
        if count:
            kept = "" if self.always_restarts else "; one that runs with the same flags goes on"
            names = list(dict.fromkeys(self.starts))
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            return f"{count} starts of {', '.join(names[:6])}{more}{kept}"
        if self.without_server:
            return f"{self.restored_profile} is stopped meanwhile" if self.restored_profile else "no server is started"
        return "no server is started or stopped"


def outline_plan(plan: Plan, paths: Paths) -> PlanOutline:
    """The outline of ``plan``. Raises UsageError if an option is invalid."""
    benchmark = make_benchmark(plan)
    batch = next(benchmark.course())
    items, most = batch.items, len(batch.items) + batch.later
    unstarted = {target.name for target in plan.targets if target.url or target.stopped}
    starts: list[str] = []
    last = ("", 0)
    for item in items:
        if item.target not in unstarted and last != (item.target, item.start):
            starts.append(item.target)
        last = (item.target, item.start)
    tokens = _tokens(plan)
    running = observe(paths, MAIN_INSTANCE).running
    return PlanOutline(
        most,
        tuple(starts),
        running.launch.profile if running else None,
        _seconds_before(plan, tokens, paths),
        tuple(target.name for target in plan.targets if target.stopped),
        always_restarts=any(item.start for item in items) and bool(starts),
        tokens=tokens,
        about=plan.about,
    )


def _tokens(plan: Plan) -> float | None:
    """``None`` if the kind does not count them."""
    if not find_kind(plan.kind).counts_tokens:
        return None
    batch = next(make_benchmark(plan).course())
    return (len(batch.items) + batch.later) * statistics.fmean(item.weight for item in batch.items)


def _seconds_before(plan: Plan, tokens: float | None, paths: Paths) -> float | None:
    scaled = None
    for run in reversed(list_runs(paths)):
        try:
            info = run.info
        except GpuboxError:
            continue
        done = info.seconds if (info.state, info.plan.kind) == ("finished", plan.kind) else None
        if done and info.plan.options == plan.options and len(info.plan.targets) == len(plan.targets):
            return done
        if done and tokens and not scaled and info.plan.targets == plan.targets:
            scaled = done * tokens / (_tokens(info.plan) or tokens)
    return scaled


async def busy_slots(paths: Paths, config: Config) -> tuple[str, ...]:
    """The requests that the active server is answering, a sentence each: a run would delay or abort them."""
    from gpubox.server.status import read_status

    status = await read_status(paths, config, MAIN_INSTANCE)
    return tuple(f"{status.profile}: {slot}" for slot in status.slots or () if slot.busy)
