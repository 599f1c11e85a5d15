"""``gpubox fit PROFILE``."""

from __future__ import annotations

from typing import Any

import click

from gpubox import units
from gpubox.cli import output
from gpubox.cli.context import Context
from gpubox.cli.options import json_option
from gpubox.errors import ExitCode
from gpubox.paths import MAIN_INSTANCE
from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES, DevicePlan, MemoryPlan, Solution
from gpubox.planner.planner import Planner
from gpubox.planner.settings import parse_settings, parse_size
from gpubox.server.instance import observe
from gpubox.server.supervisor import instance_of


@click.command("fit")
@click.argument("profile")
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="Plan with this flag; may be repeated.")
@click.option("--keep-free", metavar="SIZE", help="What stays free on each card, such as 1GiB. [default: 256MiB]")
@json_option
@click.pass_obj
def command(context: Context, profile: str, settings: tuple[str, ...], keep_free: str | None, as_json: bool) -> int:
    """Predict the memory of PROFILE on each device, and whether it fits.

    What the running server holds counts as free, because a switch stops it first. Exits 5 if it does not fit.
    """
    target = context.profile(profile)
    keep = parse_size(keep_free) if keep_free else DEFAULT_KEEP_FREE_BYTES
    instance = instance_of(target)
    plan = Planner(context.paths, context.config).plan(
        target,
        overrides=parse_settings(settings),
        replaces=observe(context.paths, instance if instance != MAIN_INSTANCE else MAIN_INSTANCE).running,
        keep_free_bytes=keep,
        may_run_engine=True,
    )
    if as_json:
        output.emit_json(plan_values(plan))
    else:
        _print(plan)
    return ExitCode.WOULD_NOT_FIT if plan.verdict == "short" else ExitCode.OK


def plan_values(plan: MemoryPlan) -> dict[str, Any]:
    """The plan for --json."""
    return {
        "profile": plan.profile,
        "devices": [_device_values(device) for device in plan.devices],
        "verdict": plan.verdict,
        "spare_bytes": plan.spare_bytes,
        "short_device": plan.short_device,
        "keep_free_bytes": plan.keep_free_bytes,
        "method": plan.method,
        "summary": plan.summary,
        "doubts": list(plan.doubts),
        "problem": plan.problem or None,
        "solutions": [_solution_values(solution) for solution in plan.solutions],
    }


def _device_values(device: DevicePlan) -> dict[str, Any]:
    return {
        "device": device.device,
        "kind": device.kind,
        "weights_bytes": device.weights_bytes,
        "kv_bytes": device.kv_bytes,
        "recurrent_bytes": device.recurrent_bytes,
        "compute_bytes": device.compute_bytes,
        "draft_bytes": device.draft_bytes,
        "unaccounted_bytes": device.unaccounted_bytes,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "other_processes": [{"name": name, "vram_bytes": size} for name, size in device.other_processes],
    }


def _solution_values(solution: Solution) -> dict[str, Any]:
    flags = {name: list(value) if isinstance(value, tuple) else value for name, value in solution.flags.items()}
    return {"flags": flags, "spare_bytes": solution.spare_bytes, "cost": solution.cost or None}


def _print(plan: MemoryPlan) -> None:
    if plan.devices:
        heading = ("", "weights", "KV", "state", "compute", "draft", "total", "free", "spare")
        output.emit_table([heading, *(_row(device) for device in plan.devices)])
        for device in plan.devices:
            if device.other_processes:
                others = ", ".join(f"{name} {units.memory(size)}" for name, size in device.other_processes[:5])
                output.emit(f"  other programs on {device.device}: {others}")
    output.emit(f"{plan.profile}: {plan.summary}.")
    source = "the model's header" if plan.method == "formula" else "a dry run of the engine"
    if plan.devices:
        output.emit(f"  from {source}" + (f"; unclear: {'; '.join(plan.doubts)}" if plan.doubts else ""))


def _row(device: DevicePlan) -> tuple[str, ...]:
    parts = (
        device.weights_bytes, device.kv_bytes, device.recurrent_bytes, device.compute_bytes, device.draft_bytes,
        device.total_bytes, device.free_bytes, device.spare_bytes,
    )  # fmt: skip
    return (device.device, *(units.memory(part) for part in parts))
