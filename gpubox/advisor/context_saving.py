"""What a smaller context would free: the planner's answer to the rule "context". Blocks; its caller caches it."""

from __future__ import annotations

from dataclasses import replace

from gpubox.advisor.evidence import ContextSaving
from gpubox.errors import GpuboxError
from gpubox.planner.launch_flags import ALL_LAYERS, LaunchFlags
from gpubox.planner.plan import DevicePlan, MemoryPlan
from gpubox.planner.planner import Planner, changed_flags
from gpubox.planner.solve import solve
from gpubox.profiles.profile import Profile
from gpubox.server.state import RunningServer


def context_saving(
    planner: Planner, profile: Profile, flags: LaunchFlags, running: RunningServer | None, now: int, then: int
) -> ContextSaving | None:
    """What ``then`` instead of ``now`` tokens of context would free on the device that gains most.

    ``profile``: with the flags of the launch. ``flags``: the same, read. None if the planner cannot say.
    Runs no engine.
    """
    try:
        situation = planner.situation(profile, replaces=[running] if running else (), ask_devices="never")
    except GpuboxError:
        return None
    before, after = (planner.plan_in(situation, {"ctx-size": tokens}) for tokens in (now, then))
    freed = _freed(before, after)
    if before.problem or after.problem or not freed:
        return None
    device, gained = max(freed.items(), key=lambda item: item[1])
    layers, experts = flags.cpu_expert_layers, None
    if 0 < layers < ALL_LAYERS and not after.doubts:
        smaller = replace(profile, flags=changed_flags(situation.profile.flags, {"ctx-size": then}))
        try:
            answer = solve(planner, replace(situation, profile=smaller), "n-cpu-moe")
        except GpuboxError:
            answer = None
        fewest = int(str(answer.flags.get("n-cpu-moe", 0))) if answer else layers
        experts = (layers, fewest) if fewest < layers else None
    return ContextSaving(then, device, gained, experts)


def _freed(before: MemoryPlan, after: MemoryPlan) -> dict[str, int]:
    later = {device.device: device for device in after.devices}
    pairs = [(device, later[device.device]) for device in before.devices if device.device in later]
    freed = {now.device: _growing(now) - _growing(then) for now, then in pairs}
    return {name: size for name, size in freed.items() if size > 0}


def _growing(device: DevicePlan) -> int:
    """What grows with the context."""
    return device.kv_bytes + device.draft_bytes + (device.compute_bytes or 0)
