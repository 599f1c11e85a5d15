"""Whether each profile of a list would fit: from formulas and earlier measurements alone, so that a list is quick."""

from __future__ import annotations

import time
from collections.abc import Iterable

from gpubox.config import Config
from gpubox.paths import Paths
from gpubox.planner.plan import MemoryPlan
from gpubox.planner.planner import Planner
from gpubox.profiles.profile import Profile
from gpubox.server.instance import instance_names, observe, place_of

BUDGET_SECONDS = 0.4
"""After so long the rest of the list stays unknown. Headers that were read are cached, so the next time is quicker."""


def plan_profiles(profiles: Iterable[Profile], paths: Paths, config: Config) -> dict[str, MemoryPlan]:
    """The plans by profile; without those whose verdict is unknown. An engine
    is run once, for its devices. Never raises."""
    planner = Planner(paths, config)
    plans: dict[str, MemoryPlan] = {}
    deadline = time.monotonic() + BUDGET_SECONDS
    try:
        running = {name: observe(paths, name).running for name in instance_names(paths)}
        for profile in profiles:
            if time.monotonic() > deadline:
                break
            replaces = running.get(place_of(profile, running.get(profile.name)))
            plan = planner.plan(profile, replaces=(replaces,) if replaces else (), ask_devices="once")
            if plan.verdict != "unknown":
                plans[profile.name] = plan
    except Exception:  # a list without verdicts is better than none
        return plans
    return plans
