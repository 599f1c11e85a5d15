"""Plans models whose header alone is here: the verdict before a download.

``models.remote_header`` makes a stand-in with the real header, which the planner reads as any model, and an engine can
measure in a dry run. What only a dry run could tell is estimated otherwise, so that many quants are planned quickly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.interchange.importing import default_flags
from gpubox.models.header_cache import read_model
from gpubox.paths import Paths
from gpubox.planner.cache_sizes import effective_ubatch
from gpubox.planner.compute import MASK_BYTES
from gpubox.planner.launch_flags import LaunchFlags
from gpubox.planner.plan import DEFAULT_KEEP_FREE_BYTES, DevicePlan, MemoryPlan
from gpubox.planner.planner import Planner, Situation, changed_flags, no_plan, read_flags
from gpubox.planner.solve import solutions
from gpubox.planner.verdict import judge
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.state import RunningServer

_DRAFT_HEAD_NOTE = "it contains a draft head (MTP): spec-type draft-mtp uses it"
_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class LaunchIdea:
    """How a model would be launched that has no profile yet."""

    flags: Mapping[str, FlagValue | None]
    """Set over those that a new profile gets; None removes one."""
    engine: str = ""
    replaces: Sequence[RunningServer] = ()
    """The servers that would stop first."""
    keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES


class HeaderPlanner(Planner):
    """A Planner that estimates compute buffers which were never measured, from the header."""

    def plan_in(
        self, situation: Situation, overrides: Mapping[str, FlagValue | None], *,
        keep_free_bytes: int = DEFAULT_KEEP_FREE_BYTES, may_dry_run: bool = False,
    ) -> MemoryPlan:  # fmt: skip
        plan = super().plan_in(situation, overrides, keep_free_bytes=keep_free_bytes, may_dry_run=may_dry_run)
        if plan.compute_certainty != "unknown" or not plan.devices:
            return plan
        return _with_estimate(plan, situation, read_flags(situation, overrides))


def plan_model(
    planner: HeaderPlanner, name: str, path: Path, paths: Paths, idea: LaunchIdea, *, may_dry_run: bool = False
) -> MemoryPlan:
    """The plan of a model with the flags that a new profile for it gets, and what would make it fit if it does not.

    Blocks. Never raises: a problem is part of the plan.
    """
    try:
        model = read_model(path, paths)
        flags = changed_flags(default_flags(model), idea.flags)
        profile = Profile(name=name, model=str(path), engine=idea.engine, flags=flags)
        situation, plan = planner.prepare(
            profile, replaces=idea.replaces, keep_free_bytes=idea.keep_free_bytes, may_dry_run=may_dry_run
        )
    except GpuboxError as error:
        return no_plan(name, error, idea.keep_free_bytes)
    if (
        may_dry_run and judge(plan).fit == "unknown"
    ):  # the engine could not measure it: an estimate is better than nothing
        plan = planner.plan_in(situation, {}, keep_free_bytes=idea.keep_free_bytes)
    if model.metadata.get(f"{model.architecture}.nextn_predict_layers", 0):
        plan = replace(plan, draft_head=True, notes=(*plan.notes, _DRAFT_HEAD_NOTE))
    if (judge(plan).spare_bytes or 0) >= 0:
        return plan
    return replace(plan, solutions=solutions(planner, situation, keep_free_bytes=idea.keep_free_bytes))


def _with_estimate(plan: MemoryPlan, situation: Situation, flags: LaunchFlags) -> MemoryPlan:
    cards = any(device.weights_bytes for device in plan.devices if device.kind != "host")
    bytes_ = _compute_estimate(situation, flags)

    def estimated(device: DevicePlan) -> DevicePlan:
        used = device.weights_bytes > 0 if device.kind != "host" else not cards
        return replace(device, compute_bytes=bytes_ if used else bytes_ // 4)

    return replace(plan, devices=tuple(map(estimated, plan.devices)), compute_certainty="near")


def _compute_estimate(situation: Situation, flags: LaunchFlags) -> int:
    """About what the compute buffers take: rows of the widest layer for each token of a batch, and the mask.

    Measured with llama.cpp build 11434, flash attention on, a dense, a hybrid MoE and a sliding-window model at 4K and
    32K: 3 to 12 % more than the engine takes, never less.
    """
    metadata, architecture = situation.model.file.metadata, situation.model.file.architecture

    def number(key: str) -> int:
        value = metadata.get(f"{architecture}.{key}", 0)
        widest = max(value, default=0) if isinstance(value, tuple) else value
        return int(widest) if isinstance(widest, int) and 0 < widest < 1 << 24 else 0

    experts = number("expert_feed_forward_length") * number("expert_used_count")
    rows = 4 * number("embedding_length") + 4 * max(number("feed_forward_length"), experts)
    context = flags.context or situation.model.shape.trained_context
    return effective_ubatch(flags, context) * (_F32_BYTES * rows + MASK_BYTES * context)
