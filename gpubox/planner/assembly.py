"""Puts a plan together: the formula, the compute buffers, and the numbers of the engine itself if there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from gpubox.planner.compute import ComputeBuffers, MeasuredRun
from gpubox.planner.devices import DeviceMemoryNow
from gpubox.planner.formula import FormulaParts
from gpubox.planner.launch_flags import LaunchFlags
from gpubox.planner.plan import DevicePlan, MemoryPlan, Method
from gpubox.telemetry.device_memory import HOST
from gpubox.units import MIB

_ENCODER_COMPUTE_BYTES = 512 * MIB
"""What the compute buffers of a picture encoder may take; the engine's table does not count them."""


def assemble(
    name: str, devices: Sequence[DeviceMemoryNow], flags: LaunchFlags, parts: FormulaParts, buffers: ComputeBuffers,
    run: MeasuredRun | None, *, keep_free_bytes: int, doubts: Sequence[str] = (), problem: str = "",
) -> MemoryPlan:  # fmt: skip
    """The plan. ``run`` is a dry run of exactly these flags: it proves the formula, or replaces it.

    ``problem``: why there is no such run, where one was wanted.
    """
    always = (*doubts, *flags.unmeasured)
    unclear = list(always)
    disagreement = _disagreement(parts, run) if run else ""
    method: Method = "formula"
    if run and disagreement:
        method, parts = "dry-run", _from_run(parts, run)
    elif run is None:  # an agreement proves the formula, whatever was doubtful about it
        unclear += [*parts.doubts, *([problem] if problem and parts.doubts else [])]
    plans = [_device_plan(device, parts, buffers, flags) for device in devices]
    shared = sum(
        max(0, plan.total_bytes - device.own_free_bytes)
        for plan, device in zip(plans, devices, strict=True)
        if device.own_free_bytes is not None
    )
    if plans and shared and (host := plans[-1]).free_bytes is not None:  # what a GPU takes of the RAM is not free there
        plans[-1] = replace(host, free_bytes=host.free_bytes - shared)
    keys = {device.key for device in devices}
    missing = [key for key in (*parts.weights, *buffers.main) if key not in keys]
    if missing:
        unclear.append(f"the device {missing[0]}")
    return MemoryPlan(
        profile=name,
        devices=tuple(plans),
        method=method,
        keep_free_bytes=keep_free_bytes,
        doubts=tuple(dict.fromkeys(unclear)),
        is_estimated=buffers.certainty == "near",
        adapts=adapts(flags),
        notes=tuple(filter(None, (disagreement, problem if buffers.certainty == "near" else ""))),
    )


def adapts(flags: LaunchFlags) -> Literal["", "context", "layers"]:
    """What the engine itself reduces to what is free (``--fit``, the default)."""
    if not flags.fit:
        return ""
    if not flags.context_given:
        return "context"
    return "" if flags.gpu_layers_given or flags.tensor_split or flags.overrides else "layers"


def _device_plan(
    device: DeviceMemoryNow, parts: FormulaParts, buffers: ComputeBuffers, flags: LaunchFlags
) -> DevicePlan:
    key = device.key
    encoder = parts.encoder.get(key, 0)
    weights = parts.weights.get(key, 0) + encoder
    draft_compute = buffers.draft.get(key, 0)
    return DevicePlan(
        device=key,
        kind=device.kind,
        weights_bytes=weights,
        kv_bytes=parts.kv.get(key, 0),
        recurrent_bytes=parts.recurrent.get(key, 0),
        compute_bytes=buffers.main.get(key, 0),
        draft_bytes=parts.draft_kv.get(key, 0) + parts.draft_weights.get(key, 0) + draft_compute,
        draft_compute_bytes=draft_compute,
        free_bytes=device.free_bytes,
        total_memory_bytes=device.total_bytes,
        other_processes=device.other_processes,
        unmeasured_bytes=_ENCODER_COMPUTE_BYTES if encoder else 0,
        unaccounted_bytes=device.unaccounted_bytes,
        driver_assumed=device.driver_assumed,
        mapped_bytes=weights if key == HOST and flags.mapped else 0,
        touched_bytes=parts.touched if key == HOST and flags.mapped else 0,
        elastic_bytes=device.elastic_bytes,
    )


def _disagreement(parts: FormulaParts, run: MeasuredRun) -> str:
    """Where the engine's own table differs from the formula; its numbers are rounded down to MiB."""
    pairs = [
        ("weights", parts.weights, run.main.weights),
        ("context", _sum(parts.kv, parts.recurrent), run.main.context),
        ("draft context", parts.draft_kv, run.draft.context),
    ]
    for what, planned, measured in pairs:
        for key in {*planned, *measured}:
            ours, theirs = planned.get(key, 0), measured.get(key, 0)
            slack = MIB + ours // 1000
            if not theirs - slack <= ours <= theirs + MIB + slack:
                return f"{what} on {key}: the formula says {ours // MIB} MiB, the engine {theirs // MIB} MiB"
    return ""


def _from_run(parts: FormulaParts, run: MeasuredRun) -> FormulaParts:
    """The parts as the engine measured them. Its context is divided by the formula's recurrent states."""
    context = run.main.context
    return replace(
        parts,
        weights=run.main.weights,
        kv={key: max(0, size - min(size, parts.recurrent.get(key, 0))) for key, size in context.items()},
        recurrent={key: min(context.get(key, 0), size) for key, size in parts.recurrent.items()},
        draft_kv=run.draft.context,
        draft_weights=run.draft.weights if parts.draft_weights else {},  # a draft head shares the main model's
        doubts=(),
    )


def _sum(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + two.get(key, 0) for key in {*one, *two}}
