"""A memory plan in words: its verdict, what would make it fit, the table of its devices, and its JSON."""

from __future__ import annotations

from typing import Any

from gpubox import units
from gpubox.planner.plan import DevicePlan, MemoryPlan, Solution
from gpubox.planner.verdict import judge
from gpubox.views.fields import json_fields
from gpubox.views.marks import MEMORY
from gpubox.views.rows import Table


def memory_line(plan: MemoryPlan) -> str:
    """The verdict with its mark, and the first flags that would make it fit."""
    verdict = judge(plan)
    line = MEMORY[verdict.fit].before(verdict.words)
    return f"{line}; fits with {plan.solutions[0].flag_words}" if plan.solutions and plan.solutions[0].fits else line


def short_words(plan: MemoryPlan) -> str:
    """The verdict in a few words, for a narrow column that has the mark."""
    verdict = judge(plan)
    if plan.solutions and plan.solutions[0].fits:
        return f"with {', '.join(f'{name} {value}' for name, value in plan.solutions[0].flags.items())}"
    if verdict.fit == "unknown":
        return "memory unknown"  # why is a sentence, and has no room here
    if verdict.fit == "disk":
        return f"~{units.memory(verdict.read_bytes_per_token)} a token from disk"
    spare = verdict.spare_bytes or 0
    if spare < 0:
        return f"{units.memory(-spare)} too large" if plan.adapts else f"short by {units.memory(-spare)}"
    about = "~" if plan.is_estimated else ""
    return f"{about}{units.memory(spare)} to spare"


def solution_line(solution: Solution) -> str:
    """What would make it fit, or at least read less from the disk, and what that costs."""
    words = solution.flag_words
    if not solution.fits:
        return f"better with {words}: {solution.cost}"
    cost = f"; {solution.cost}" if solution.cost and words else ""
    fits = f"fits with {words}" if words else "fits as it is"
    return f"{fits}: {units.memory(solution.spare_bytes)} to spare{cost}"


def device_table(plan: MemoryPlan) -> Table:
    """What the launch takes of each device, by kind."""
    driver = any(device.unaccounted_bytes for device in plan.devices)
    header = ("", "weights", "KV", "state", "compute", "draft", *(["driver"] if driver else []))
    return Table([_row(device, driver) for device in plan.devices], (*header, "needs", "free", "spare"))


def plan_lines(plan: MemoryPlan) -> list[str]:
    """The verdict as a sentence, and what it rests on; without the devices and the solutions."""
    verdict = judge(plan)
    source = "from the model's header" if plan.method == "formula" else "from a dry run of the engine"
    if plan.doubts and verdict.fit != "unknown":  # else the verdict itself says it
        source += f"; unclear: {'; '.join(plan.doubts)}"
    lines = [f"{plan.profile}: {verdict.words.rstrip('.')}."]
    return [
        *lines,
        *([f"  {source}"] if plan.devices else []),
        *(f"  {note}" for note in (*plan.notes, *verdict.remarks)),
    ]


def other_programs(plan: MemoryPlan) -> list[str]:
    """Who else holds memory on the devices."""
    return [
        f"other programs on {device.device}: "
        + ", ".join(f"{name} {units.memory(size)}" for name, size in device.other_processes[:5])
        for device in plan.devices
        if device.other_processes
    ]


def plan_fields(plan: MemoryPlan) -> dict[str, Any]:
    """The plan and its verdict for JSON."""
    verdict = judge(plan)
    return {
        **json_fields(plan, without=("devices", "draft_head")),
        "devices": [_device_fields(device) for device in plan.devices],
        "verdict": verdict.fit,
        "summary": verdict.words,
        "spare_bytes": verdict.spare_bytes,
        "short_device": verdict.device if verdict.fit == "short" else None,
        "read_bytes_per_token": verdict.read_bytes_per_token or None,
        "remarks": list(verdict.remarks),
    }


def _device_fields(device: DevicePlan) -> dict[str, Any]:
    others = [{"name": name, "vram_bytes": size} for name, size in device.other_processes]
    return {**json_fields(device, "total_bytes", "spare_bytes"), "other_processes": others}


def _row(device: DevicePlan, driver: bool) -> tuple[str, ...]:
    parts = (device.weights_bytes, device.kv_bytes, device.recurrent_bytes, device.compute_bytes, device.draft_bytes)
    sums = (device.total_bytes, device.free_bytes, device.spare_bytes)
    shown = (*parts, *([device.unaccounted_bytes] if driver else []), *sums)
    return (device.device, *map(units.memory, shown))
