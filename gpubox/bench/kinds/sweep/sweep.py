"""``sweep``: one profile over a grid of flags. The best cells are compared on fresh starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpubox import units
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.load_failures import cell_load_failure, lacked_memory
from gpubox.bench.kinds.shared import exceeds_context
from gpubox.bench.kinds.sweep.grid import (
    Axis,
    SweepGrid,
    finalist_number,
    grid_targets,
    model_labels,
    needs_at_least_as_much,
    parse_axis,
    parse_options,
)
from gpubox.bench.kinds.sweep.ranking import CELL_FIELDS, cell_to_keep, fastest_cell, rank_cells, select_finalists
from gpubox.bench.kinds.sweep.sweep_report import summarise
from gpubox.bench.model import Item, Plan, Provenance, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.bench.overrides import MODEL
from gpubox.bench.plan_targets import check_overrides, model_file, profile_capabilities, random_seed, read_overrides
from gpubox.bench.questions import ask_question, question_of, question_result
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.engines.flag_changes import DRAFT_WINDOW_FLAGS, flag_key
from gpubox.errors import GpuboxError, UsageError
from gpubox.profiles.profile import FlagValue, Profile
from gpubox.server.state import Launch
from gpubox.threads import run_in_thread


def _model_values(launch: Launch) -> dict[str, Any]:
    """Quant, size and parameters of the model that runs, for a table in which models differ."""
    from gpubox.bench.report.post_model import read_model

    model = read_model(Provenance("", model_path=launch.model_path or "", model_bytes=launch.model_bytes))
    return {
        "quant": model.quant,
        "model_bytes": model.size_bytes,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
    }


class Sweep(Benchmark):
    """One item is one question to one start of a cell."""

    kind = "sweep"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.grid = SweepGrid(parse_options(plan.options, plan.targets), plan.targets)
        self._targets = {target.name: target for target in plan.targets}
        self._contexts: dict[int, str] = {}
        self._finalists: list[Target] | None = None

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        profiles = [context.profile(name) for name in dict.fromkeys(given.pop("profiles"))]
        profile = profiles[0]
        axes = [parse_axis(text) for text in given.pop("over", ())]
        overrides = read_overrides(context, profile, given.pop("set", ()))
        capabilities = profile_capabilities(context, profile)
        axes = [replace(axis, flag=flag_key(axis.flag, profile, capabilities)) for axis in axes]
        axes = [_with_model_files(context, profile, axis) if axis.flag == MODEL else axis for axis in axes]
        labels = model_labels([str(value) for axis in axes if axis.flag == MODEL for value in axis.values])
        targets = grid_targets([own.name for own in profiles], axes, overrides, labels)
        flags: dict[str, FlagValue] = {**profile.flags, **overrides}
        if any(axis.flag in DRAFT_WINDOW_FLAGS for axis in axes):
            if flags.get("spec-synth-rates", "") != "":
                raise UsageError(
                    "spec-synth-rates needs exactly as many rates as the draft window is long.",
                    "Sweep the window with --set spec-synth-rates= --set spec-synth-len=2.5",
                )
            given.setdefault("context_tokens", 0)
        targets = [_under_own_names(context, target) for target in targets] if len(profiles) > 1 else targets
        for target in {target.profile: target for target in reversed(targets)}.values():
            check_overrides(context, target)
        given.setdefault("by", "tg")
        given["axes"] = [*(["profile"] if len(profiles) > 1 else []), *(axis.flag for axis in axes)]
        if labels:
            given["labels"] = labels
            flags[MODEL] = model_file(context, profile, profile.model)
        own = {axis.flag: flags[axis.flag] for axis in axes if axis.flag in flags}
        if own and len(profiles) == 1:
            given["profile_values"] = {
                flag: list(value) if isinstance(value, tuple) else value for flag, value in own.items()
            }
        return Plan("sweep", tuple(targets), given, seed=random_seed())

    def items(self) -> Sequence[Item]:
        return self.grid.items(self.plan.seed)

    def target_of(self, item: Item, results: ScoredItems) -> str:
        number = finalist_number(item)
        return item.target if number is None else self._finalists_after(results)[number - 1].name

    def unneeded_reason(self, item: Item, results: ScoredItems) -> str:
        number = finalist_number(item)
        if number is None:
            return ""
        finalists = self._finalists_after(results)
        if len(finalists) < 2:
            return "fewer than two cells could be measured"
        return "" if number <= len(finalists) else f"only {len(finalists)} cells could be measured"

    def _finalists_after(self, results: ScoredItems) -> list[Target]:
        """Called once every cell has had its first start: from then on the finalists stay the same."""
        if self._finalists is None:
            self._finalists = select_finalists(self.grid, results)
        return self._finalists

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        return cell_load_failure(error)

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        cell = self.target_of(item, results)
        for other, result in results:
            if result.ok or result.unneeded:
                continue
            failed = self.target_of(other, results)
            if failed == cell:
                if result.skipped and other.id != item.id and other.group != item.group:
                    return result.error  # it could not load in an earlier start
                if not result.skipped and any(flag.kind == "crash" for flag in result.flags):
                    return f"the server died during {other.id}"
            elif memory := self._lacks_memory(cell, failed, result):
                return f"not tried: it needs at least as much {memory} as {failed}, which ran out of it"
        return exceeds_context(question_of(item).needed_context, cell, active)

    def _lacks_memory(self, cell: str, failed: str, result: Result) -> str:
        """VRAM or RAM, if ``failed`` ran out of it and ``cell`` needs no less of it."""
        memory = lacked_memory(result.error) if result.skipped else ""
        axes, targets = self.grid.options.axes, self._targets
        return memory if memory and needs_at_least_as_much(axes, targets[cell], targets[failed], memory) else ""

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        data = await ask_question(target_server, item, self._contexts)
        if item.warmup and (running := target_server.running):
            vram = sum(used for _, used in running.loaded_vram) or None
            data |= {"load_seconds": running.load_seconds, "vram_bytes": vram}
            if self.grid.options.whole_launches:
                data["context_tokens"] = target_server.active.context_tokens
                data |= await run_in_thread(_model_values, running.launch)
        return data

    async def score(self, item: Item, raw: RawRecord) -> Result:
        return question_result(item, raw, {name: raw.data.get(name) for name in CELL_FIELDS})

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.grid, info, results, self.history)

    def best(self, results: ScoredItems) -> Target | None:
        cell = cell_to_keep(self.grid, rank_cells(self.grid, results))
        return cell.target if cell else None

    def headline(self, results: ScoredItems) -> str:
        best = fastest_cell(self.grid, results)
        if best is None:
            return ""
        return f"best so far {best.target.name}: {self.grid.options.by} {units.rate(best.rate)} tok/s"


def _with_model_files(context: PlanContext, profile: Profile, axis: Axis) -> Axis:
    """The axis ``model`` with the file of each value. Raises GpuboxError if one is missing or no complete model."""
    files = [model_file(context, profile, str(value)) for value in axis.values]
    if len(set(files)) != len(files):
        raise UsageError("--over model names a file twice.")
    return replace(axis, values=tuple(files))


def _under_own_names(context: PlanContext, target: Target) -> Target:
    """``target`` without its profile's flags that an override names in another way (``c`` and ``ctx-size``)."""
    profile = context.profile(target.profile)
    capabilities = profile_capabilities(context, profile)
    keys = {flag_key(name, profile, capabilities) for name in target.overrides}
    removed = {key: "" for key in keys if key in profile.flags and key not in target.overrides}
    return replace(target, overrides={**removed, **target.overrides})
