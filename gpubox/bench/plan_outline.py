"""Before a run: what it will do to the box, how much it asks, and who would be disturbed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from gpubox import units
from gpubox.bench.benchmark import make_benchmark
from gpubox.bench.model import Plan
from gpubox.bench.run_store import Run, list_runs
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import FlagValue
from gpubox.server.instance import observe

MOST_INT = 1 << 63
TOKEN_WEIGHTED_KINDS = ("speed", "ab", "suite")
"""Kinds whose items weigh as many as they generate."""


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """A plan in numbers."""

    items: int
    starts: tuple[str, ...]
    """The targets in the order in which they are brought up."""
    restored_profile: str | None
    """The profile that runs again afterwards; ``None``: nothing runs now, and nothing will."""
    seconds: float | None
    """An estimate from the last finished run of the same kind and options; ``None`` where there is none."""
    fresh: bool = False
    """Each of the starts is one, also where its server runs already: starts are what is compared."""
    tokens: float | None = None
    """To be generated, with what the prompts cost beside them; ``None`` where the kind does not count in tokens."""

    def sentences(self, tokens_per_second: float | None = None) -> list[str]:
        """What the run will do, for people. ``tokens_per_second`` helps to estimate the time of a first run."""
        first = f"{self.items} items. No server is started or stopped."
        if self.starts:
            count = len(self.starts)
            shown = ", ".join(self.starts[:6]) + (f" and {count - 6} more" if count > 6 else "")
            first = f"{self.items} items. {count} {'start' if count == 1 else 'starts'}: {shown}."
            if not self.fresh:
                first += " A server that already runs with the same flags is not restarted."
        sentences = [first]
        if self.starts:
            restored = self.restored_profile
            sentences.append(f"Afterwards {restored} runs again." if restored else "Afterwards nothing runs, as now.")
        if self.seconds:
            sentences.append(f"A run like this took {units.duration(self.seconds)}.")
        elif self.tokens and tokens_per_second:
            duration, rate = units.duration(self.tokens / tokens_per_second), units.rate(tokens_per_second)
            sentences.append(f"It takes ~{duration}: about {self.tokens:,.0f} tokens at {rate} tok/s.")
        return sentences


def outline_plan(plan: Plan, paths: Paths) -> PlanOutline:
    """What ``plan`` comes to. Raises UsageError for a plan that cannot be."""
    items = make_benchmark(plan).items()
    urls = {target.name for target in plan.targets if target.url}
    starts: list[str] = []
    last = ("", 0)
    for item in items:
        if item.target not in urls and last != (item.target, item.start):
            starts.append(item.target)
        last = (item.target, item.start)
    running = observe(paths, MAIN_INSTANCE).running
    return PlanOutline(
        len(items), tuple(starts), running.launch.profile if running else None, _as_before(plan, paths),
        fresh=any(item.start for item in items) and bool(starts),
        tokens=sum(item.weight for item in items) if plan.kind in TOKEN_WEIGHTED_KINDS else None,
    )  # fmt: skip


def _as_before(plan: Plan, paths: Paths) -> float | None:
    for run in reversed(list_runs(paths)):
        try:
            info = run.info
        except GpuboxError:
            continue
        same = (info.plan.kind, info.plan.options, len(info.plan.targets)) == (
            plan.kind, plan.options, len(plan.targets),
        )  # fmt: skip
        if same and info.state == "finished":
            return info.seconds
    return None


async def busy_slots(paths: Paths, config: Config) -> tuple[str, ...]:
    """Who is being answered by the active server now, a sentence each; a run would make them wait or cut them off."""
    from gpubox.server.status import read_status

    status = await read_status(paths, config, MAIN_INSTANCE)
    return tuple(f"{status.profile}: {slot}" for slot in status.slots or () if slot.busy)


def active_run(paths: Paths) -> Run | None:
    """The run that a living gpubox works on: the traffic of now is (also) its. ``None`` where there is none."""
    return next((run for run in reversed(list_runs(paths)) if run.busy), None)


def parse_override(text: str) -> tuple[str, FlagValue]:
    """``flag=value`` of ``--set``: the value as TOML would have it, else a text; an empty one leaves the flag out.

    Raises UsageError.
    """
    name, sign, value = text.partition("=")
    name = name.strip().removeprefix("--")
    if not sign or not name:
        raise UsageError(f"{text!r} sets no flag.", "Write: --set n-cpu-moe=4")
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        found = value.strip()
    if isinstance(found, int | float) and not -MOST_INT < found < MOST_INT:
        found = value.strip()  # nan, inf and what no file can hold: the engine's to refuse
    if isinstance(found, list):
        found = tuple(found)
    if not isinstance(found, bool | int | float | str | tuple):
        raise UsageError(f"{text!r}: no flag takes such a value.")
    return name, found
