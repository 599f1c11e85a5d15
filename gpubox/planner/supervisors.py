"""The one place above ``server`` that makes a Supervisor: each asks the planner before it stops anything.

While the old server still answers: would the profile fit? Refused is only what is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.plan import MemoryPlan, Solution
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import Profile
from gpubox.server.events import ServerEvent
from gpubox.server.state import RunningServer
from gpubox.server.supervisor import Supervisor

if TYPE_CHECKING:
    from gpubox.planner.planner import Planner

_NEAR_BYTES = 2 * units.GIB
"""A dry run is worth its second only if less than this is left without the compute buffers."""


def make_supervisor(
    paths: Paths, config: Config, instance: str = MAIN_INSTANCE,
    emit: Callable[[ServerEvent], None] = lambda event: None, *, anyway: bool = False, planner: Planner | None = None,
    hint: str = "", asked_by: str = "", gives_way: bool = False, cold: bool = False,
) -> Supervisor:  # fmt: skip
    """The Supervisor of an instance, which refuses a profile that would certainly not fit.

    ``anyway``: the owner has decided to try. ``planner``: one that exists already. ``hint``: a way out to offer with a
    refusal. The others as in Supervisor.
    """

    def check(profile: Profile, leaving: Sequence[RunningServer]) -> str:
        if anyway:
            return ""
        from gpubox.planner.planner import Planner

        try:
            return check_fits(planner or Planner(paths, config), profile, replaces=leaving)
        except GpuboxError as error:
            error.hint = f"{error.hint} {hint}".strip()
            raise

    return Supervisor(
        paths, config, instance, emit, check, asked_by=asked_by, gives_way=gives_way, cold=cold,
        full_window=partial(full_window, paths, config),
    )  # fmt: skip


def full_window(paths: Paths, config: Config, running: RunningServer) -> str:
    """What a server would take more in memory with --swa-full, ``1.2 GiB``; empty if that cannot be planned. Blocks."""
    from gpubox.planner.planner import Planner
    from gpubox.profiles.loader import load_catalog

    try:
        planner = Planner(paths, config)
        situation = planner.situation(load_catalog(paths).get(running.launch.profile), ask_devices="never")
        plans = [planner.plan_in(situation, {"swa-full": value}) for value in (True, None)]
        more, less = (sum(device.total_bytes for device in plan.devices) for plan in plans)
        return units.memory(more - less) if more > less else ""
    except Exception:  # the sentence that it is for does without
        return ""


def check_fits(planner: Planner, profile: Profile, *, replaces: Sequence[RunningServer]) -> str:
    """A note about the memory of ``profile``; empty if it is unknown.

    Raises GpuboxError with WOULD_NOT_FIT and the flags that would fit, only if it is certain that a device has too
    little memory. Whatever goes wrong in here is no reason to refuse a start.
    """
    from gpubox.planner.solve import solutions

    try:
        situation, plan = planner.prepare(profile, replaces=replaces)
        if _is_close(plan):
            situation, plan = planner.prepare(profile, replaces=replaces, may_dry_run=True)
        verdict = judge(plan)
        answers = solutions(planner, situation, dry_runs=1) if verdict.fit == "short" else ()
    except Exception:
        return ""
    if verdict.fit == "short":
        raise refusal(plan, answers)
    return "" if verdict.fit == "unknown" else verdict.words


def refusal(plan: MemoryPlan, answers: tuple[Solution, ...]) -> GpuboxError:
    """The error for a plan that is short, with the flags that would fit."""
    verdict = judge(plan)
    device = next(device for device in plan.devices if device.device == verdict.device)
    needs, free = units.memory(device.total_bytes), units.memory(device.free_bytes)
    message = f"{plan.profile} would not fit: {verdict.words} (it needs {needs}, {free} would be free)."
    ways = "; ".join(f"{answer.flag_words} ({answer.cost})" for answer in answers if answer.fits)
    return GpuboxError(message, f"It would fit with {ways}." if ways else "", code=ExitCode.WOULD_NOT_FIT)


def _is_close(plan: MemoryPlan) -> bool:
    """Whether a dry run may change the verdict."""
    if not plan.is_estimated or judge(plan).fit == "short":
        return False
    cards = [device.spare_bytes for device in plan.devices if device.kind != "host"]
    return any(spare is None or spare < _NEAR_BYTES for spare in cards)
