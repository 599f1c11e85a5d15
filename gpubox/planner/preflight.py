"""Before a start or switch, while the old server still answers: would the profile fit? Refuses only what is certain."""

from __future__ import annotations

from collections.abc import Sequence

from gpubox import units
from gpubox.errors import ExitCode, GpuboxError
from gpubox.planner.plan import MemoryPlan, Solution
from gpubox.planner.planner import Planner, Situation
from gpubox.planner.solve import solutions
from gpubox.profiles.profile import Profile
from gpubox.server.state import RunningServer

_NEAR_BYTES = 2 * units.GIB
"""A dry run is worth its second only if less than this is left without the compute buffers."""
_SOLUTION_DRY_RUNS = 2


def check_fits(planner: Planner, profile: Profile, *, replaces: Sequence[RunningServer]) -> str:
    """A note about the memory of ``profile``; empty if it is unknown.

    Raises GpuboxError with WOULD_NOT_FIT and the flags that would fit, only if it is certain that a device has too
    little memory. Whatever goes wrong in here is no reason to refuse a start.
    """
    try:
        situation = planner.situation(profile, replaces=replaces)
        plan = _plan(planner, situation)
        short = plan.verdict == "short"
        answers = solutions(planner, situation, dry_runs=_SOLUTION_DRY_RUNS) if short else ()
    except Exception:
        return ""
    if short:
        raise refusal(plan, answers)
    return plan.summary if plan.verdict in ("fits", "tight") else ""


def refusal(plan: MemoryPlan, answers: tuple[Solution, ...]) -> GpuboxError:
    """The error for a plan that is short, with the flags that would fit."""
    device = plan.tightest
    assert device is not None
    needs, free = units.memory(device.total_bytes), units.memory(device.free_bytes)
    message = f"{plan.profile} would not fit: {plan.summary} (it needs {needs}, {free} would be free)."
    ways = "; ".join(f"{flag_words(answer)} ({answer.cost})" for answer in answers)
    return GpuboxError(message, f"It would fit with {ways}." if ways else "", code=ExitCode.WOULD_NOT_FIT)


def flag_words(solution: Solution) -> str:
    """``n-cpu-moe=22``, as ``--set`` takes it."""
    return " ".join(f"{name}={value}" for name, value in solution.flags.items())


def _plan(planner: Planner, situation: Situation) -> MemoryPlan:
    plan = planner.plan_in(situation, {})
    cards = [device.spare_bytes for device in plan.devices if device.kind != "host"]
    near = any(spare is not None and spare < _NEAR_BYTES for spare in cards)
    if plan.verdict != "short" and plan.compute_certainty in ("near", "unknown") and near:
        return planner.plan_in(situation, {}, may_dry_run=True)
    return plan
