"""Makes the plan of a tune: reads model, engine and machine, and leaves out what would not fit. Starts no server."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import psutil

from gpubox import units
from gpubox.bench.kinds.sweep.grid import parse_axis
from gpubox.bench.kinds.tune.agent_turns import needed_context
from gpubox.bench.kinds.tune.progress import Goal
from gpubox.bench.kinds.tune.protocol import DEFAULT_STREAMS, TuneOptions, parse_options
from gpubox.bench.kinds.tune.space import (
    MAX_OVER_CELLS,
    TuneAxis,
    TuneCell,
    TuneFacts,
    given_axis,
    kv_axis,
    lossy_cells,
    make_axes,
    make_cells,
    thinned,
)
from gpubox.bench.model import Plan, Target
from gpubox.bench.overrides import MODEL, apply_overrides
from gpubox.bench.questions import TEMPLATE_TOKENS
from gpubox.config import Config
from gpubox.engines.capabilities import Capabilities
from gpubox.engines.flag_changes import DRAFT_WINDOW_FLAGS, flag_key
from gpubox.engines.query import read_capabilities
from gpubox.errors import UsageError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.planner.planner import Planner, Situation, read_flags
from gpubox.planner.solve import solve
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.instance import observe
from gpubox.server.launch import check_flags
from gpubox.telemetry.memory_breakdown import HOST

DEFAULT_KEEP_FREE_BYTES = units.GIB
_DRY_RUNS = 3
"""How often the engine may be asked for the smallest n-cpu-moe that fits, if nothing is known of it."""
_DEFAULTS: Mapping[Goal, Mapping[str, int]] = {
    "tg": {"prompts": 2, "max_tokens": 64, "context_tokens": 512},
    "pp": {"prompts": 1, "max_tokens": 8, "context_tokens": 2048},
    "agent": {"prompts": 1, "max_tokens": 48, "context_tokens": 2048},
}
_MIN_PREFIX = 64


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What the owner asks for."""

    goal: Goal = "tg"
    keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES
    over: tuple[str, ...] = ()
    """``FLAG=VALUES``: exactly these axes, instead of those that gpubox chooses."""
    kv_types: tuple[str, ...] = ()
    options: Mapping[str, Any] | None = None
    """Further ones of ``TuneOptions``, such as ``minutes``."""


def plan_tune(profile: Profile, request: TuneRequest, paths: Paths, config: Config) -> Plan:
    """The plan of a tune. Blocks, and may run the engine for its devices. Raises GpuboxError."""
    running = observe(paths, MAIN_INSTANCE).running
    planner = Planner(paths, config)
    situation = planner.situation(profile, replaces=(running,) if running else ())
    capabilities = read_capabilities(situation.engine, paths)
    given = dict(request.options or {})
    facts = _facts(planner, situation, request.keep_free_bytes, capabilities)

    def key(flag: str) -> str:
        return flag_key(flag, profile, capabilities)

    if request.over:
        axes = [_given_axis(text, profile, key) for text in request.over]
        _check_count(axes)
    else:
        axes = make_axes(facts, request.goal, capabilities, key, int(given.get("streams", DEFAULT_STREAMS)))
    if request.kv_types:
        axes.append(kv_axis(request.kv_types, facts, key))
    if len({axis.flag for axis in axes}) != len(axes):
        raise UsageError("A flag is given twice.", "Give each flag one --over with all its values.")
    if not request.over:
        axes = thinned(axes)
    _check_flags(axes, profile, capabilities)
    cells, pruned = _fitting(planner, situation, make_cells(axes), request.keep_free_bytes)
    if len(cells) < 2:
        why = "; ".join(f"{count:,} {reason}" for reason, count in pruned.items())
        raise UsageError(
            f"{profile.name}: there is nothing to tune{f' ({why})' if why else ''}.",
            "Keep less memory free, or name flags and values: --over threads=4,8",
        )
    options = TuneOptions(
        tuple(axis.record for axis in axes), {cell.name: cell.place for cell in cells}, request.goal,
        lossy=tuple(lossy_cells(cells, profile.flags)), pruned=pruned,
        keep_free_mib=request.keep_free_bytes // units.MIB if facts.devices else 0,
    )  # fmt: skip
    values = msgspec.to_builtins(replace(options, **_defaults(options, axes, facts, given)))
    targets = tuple(Target(cell.name, profile.name, cell.overrides) for cell in cells)
    parse_options(values, targets)  # refuses wrong options before anything is stored
    return Plan("tune", targets, values, seed=secrets.randbelow(1 << 31))


def _given_axis(text: str, profile: Profile, key: Callable[[str], str]) -> TuneAxis:
    axis = parse_axis(text)
    axis = replace(axis, flag=key(axis.flag))
    if axis.flag == MODEL:
        raise UsageError(
            "A tune keeps the model.", "gpubox bench sweep PROFILE --over model=A.gguf,B.gguf compares some."
        )
    if axis.flag in DRAFT_WINDOW_FLAGS and profile.flags.get("spec-synth-rates", "") != "":
        raise UsageError(
            "spec-synth-rates needs exactly as many rates as the draft window is long.",
            "Give the profile spec-synth-len instead.",
        )
    return given_axis(axis, profile.flags.get(axis.flag))


def _check_count(axes: Sequence[TuneAxis]) -> None:
    count = math.prod(len(axis.levels) for axis in axes)
    if count > MAX_OVER_CELLS:
        raise UsageError(f"That is {count:,} sets of flags.", f"At most {MAX_OVER_CELLS:,}: give fewer values.")


def _facts(planner: Planner, situation: Situation, keep_free: int, capabilities: Capabilities) -> TuneFacts:
    shape, launch = situation.model.shape, read_flags(situation, {})
    cards = [device for device in situation.devices if device.key != HOST]
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    experts = shape.experts
    smallest = most = None
    if cards:
        answer = _solved(planner, situation, "n-cpu-moe" if experts else "n-gpu-layers", keep_free)
        smallest, most = (answer, None) if experts else (None, answer)
    threads_key = flag_key("threads", situation.profile, capabilities)
    given = situation.profile.flags.get(threads_key, situation.env.get("LLAMA_ARG_THREADS"))
    threads = int(str(given)) if given is not None and str(given).isdecimal() and int(str(given)) > 0 else None
    return TuneFacts(
        situation.profile.flags, launch, shape.trunk, experts, shape.draft_layers > 0, len(cards), physical,
        psutil.cpu_count() or physical, threads, smallest, most,
    )  # fmt: skip


def _solved(planner: Planner, situation: Situation, flag: str, keep_free: int) -> int | None:
    """The best value of ``flag`` that fits; ``None`` if that is unknown, or none does."""
    answer = solve(planner, situation, flag, keep_free_bytes=keep_free)
    answer = answer or solve(planner, situation, flag, keep_free_bytes=keep_free, dry_runs=_DRY_RUNS)
    return int(str(answer.flags.get(flag, 0))) if answer else None


def _check_flags(axes: Sequence[TuneAxis], profile: Profile, capabilities: Capabilities) -> None:
    """Raises UsageError if the engine refuses one of the values: known before anything is stopped."""
    for axis in axes:
        for level in axis.levels:
            check_flags(apply_overrides(profile, Target(level.label, profile.name, level.overrides)), capabilities)


def _fitting(
    planner: Planner, situation: Situation, cells: Sequence[TuneCell], keep_free: int
) -> tuple[list[TuneCell], dict[str, int]]:
    """The cells that fit, as far as is known, and why the others were left out. The profile's own flags always stay."""
    reasons: Counter[str] = Counter()
    kept = []
    for cell in cells:
        reason = _misfit(planner, situation, cell.overrides, keep_free) if cell.overrides else ""
        if reason:
            reasons[reason] += 1
        else:
            kept.append(cell)
    return kept, dict(reasons)


def _misfit(planner: Planner, situation: Situation, overrides: Mapping[str, FlagValue], keep_free: int) -> str:
    changes = {flag: None if value == "" else value for flag, value in overrides.items()}
    plan = planner.plan_in(situation, changes, keep_free_bytes=keep_free)
    fit = judge(plan).fit
    if fit == "short":
        return "they would not fit"
    if fit == "disk" and judge(planner.plan_in(situation, {}, keep_free_bytes=keep_free)).fit != "disk":
        return "they would read weights from the disk for each token"
    if fit == "tight" and not plan.adapts:
        on_card = any(device.kind != "host" for device in plan.devices)  # nothing is kept free of the RAM
        return f"they would leave less than {units.memory(keep_free)} free" if on_card else "they may not fit"
    return ""


def _defaults(
    options: TuneOptions, axes: Sequence[TuneAxis], facts: TuneFacts, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The owner's options, and defaults that fit into a slot of the profile."""
    values: dict[str, Any] = {**_DEFAULTS[options.goal], **given}
    if "context_tokens" in given:
        return values
    if options.goal == "tg" and any(axis.flag in DRAFT_WINDOW_FLAGS for axis in axes):
        values["context_tokens"] = 0  # random filler text would make the drafts worse than an owner's texts do
    launch = facts.launch
    slot = launch.context // (1 if launch.unified else launch.slots)
    if not slot:
        return values
    if options.goal == "agent":
        needed, least = needed_context(replace(options, **{**values, "context_tokens": 0})), _MIN_PREFIX
    else:
        needed, least = values["max_tokens"] + TEMPLATE_TOKENS, 0
    return {**values, "context_tokens": min(values["context_tokens"], max(least, slot - needed))}
