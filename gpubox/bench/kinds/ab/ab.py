"""``ab``: two profiles, or two ways to ask one, with the same prompts, on server starts in random order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.ab.ab_report import summarise
from gpubox.bench.kinds.ab.plan import Side, items_of, parse_options
from gpubox.bench.kinds.ab.verdict import contrast_of, early_stop_reason
from gpubox.bench.kinds.shared import exceeds_context
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.bench.overrides import toggle_mmap, toggle_mtp
from gpubox.bench.plan_targets import (
    cell_target,
    check_overrides,
    profile_capabilities,
    random_seed,
    read_overrides,
    target_by_url,
)
from gpubox.bench.questions import ask_question, question_of, question_result
from gpubox.bench.report.model import Report
from gpubox.bench.start_comparison import interim_analyses
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.engines.flag_changes import with_flag_keys
from gpubox.errors import UsageError


class Ab(Benchmark):
    """See ``plan``."""

    kind = "ab"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self._contexts: dict[str, dict[int, str]] = {}
        self._stop_reasons: dict[int, str] = {}
        """By starts of each side: why the run ends there; empty if it continues."""

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        sides, targets = _sides(
            context, given.pop("first"), given.pop("second", None), given.pop("set", ()), given.pop("vary", None)
        )
        given["sides"] = [msgspec.to_builtins(side) for side in sides]
        return Plan("ab", tuple(targets), given, seed=random_seed())

    def items(self) -> Sequence[Item]:
        return items_of(self.options, self.plan.seed)

    def unneeded_reason(self, item: Item, results: ScoredItems) -> str:
        for analysis in interim_analyses(self.options.starts)[:-1]:
            if item.start > 2 * analysis.starts:
                if analysis.starts not in self._stop_reasons:  # all its results are in and do not change any more
                    reason = early_stop_reason(self.options, results, analysis.starts)
                    self._stop_reasons[analysis.starts] = reason
                if reason := self._stop_reasons[analysis.starts]:
                    return reason
        return ""

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        return exceeds_context(question_of(item).needed_context, item.target, active)

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        data = await ask_question(target_server, item, self._contexts.setdefault(item.target, {}))
        running = target_server.running
        return {**data, "load_seconds": running.load_seconds if running and item.warmup else None}

    async def score(self, item: Item, raw: RawRecord) -> Result:
        return question_result(item, raw, {"load_seconds": raw.data.get("load_seconds")})

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options, info, results, self.history)

    def headline(self, results: ScoredItems) -> str:
        first, second = self.options.sides
        contrast = contrast_of(self.options, results, "tg")
        return f"{second.name} / {first.name}: tg × {contrast.ratio:.3f}" if contrast and contrast.starts > 1 else ""


def _sides(
    context: PlanContext, first: str, second: str | None, settings: Sequence[str], vary: str | None
) -> tuple[list[Side], list[Target]]:
    """The two sides and their targets. Raises UsageError, GpuboxError."""
    if second is None and not settings and not vary:
        raise UsageError("ab needs two sides.", "Name a second profile, or change a flag: --set spec-type=none")
    if first.startswith("http") or (second or "").startswith("http"):
        return _sides_by_address(first, second, changed=bool(settings or vary))
    if vary and (second is not None or settings):
        raise UsageError("--vary changes one setting of A.", "Leave out B and --set.")
    target = Target(first, profile=first)
    profile = context.profile(first)
    check_overrides(context, target)
    if vary in ("thinking", "completion"):
        label = "thinking" if vary == "thinking" else "as plain text"
        other_side = Side(f"{first} {label}", first, thinking=vary == "thinking", raw=vary == "completion")
        return [Side(first, first), other_side], [target]
    if vary:
        capabilities = profile_capabilities(context, profile)
        label, changes = toggle_mtp(profile) if vary == "mtp" else toggle_mmap(profile, capabilities)
        other = Target(f"{first} {label}", first, with_flag_keys(changes, profile, capabilities))
    else:
        name = second or first
        other = cell_target(name, read_overrides(context, context.profile(name), settings))
    check_overrides(context, other)
    return _sides_of(target, other)


def _sides_by_address(first: str, second: str | None, *, changed: bool) -> tuple[list[Side], list[Target]]:
    hint = "Name two addresses: ab http://A http://B"
    if second is None or changed:
        raise UsageError("gpubox cannot change the flags of a server given by its address.", hint)
    for url in (first, second):
        if "://" not in url:  # the name of a profile would be taken for a host
            raise UsageError(f"{url!r} is not the address of a server.", hint)
    return _sides_of(target_by_url(first), target_by_url(second))


def _sides_of(*targets: Target) -> tuple[list[Side], list[Target]]:
    """One target if both sides ask the same server."""
    names = [target.name for target in targets]
    if targets[0] == targets[1]:
        return [Side(names[0], names[0]), Side(f"{names[0]} again", names[0])], [targets[0]]
    return [Side(name, name) for name in names], list(targets)
