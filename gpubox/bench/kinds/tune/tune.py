"""``tune``: which flags of one profile are the fastest. Each server start is chosen by what the earlier ones showed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gpubox import units
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.load_failures import cell_load_failure
from gpubox.bench.kinds.shared import exceeds_context
from gpubox.bench.kinds.tune.agent_turns import load_result, needed_context, run_load
from gpubox.bench.kinds.tune.course import Course
from gpubox.bench.kinds.tune.outline import tune_outline
from gpubox.bench.kinds.tune.progress import UNITS
from gpubox.bench.kinds.tune.protocol import (
    OWN,
    is_final,
    measured_target,
    outcomes,
    parse_options,
    tune_items,
)
from gpubox.bench.kinds.tune.search import Clock, TuneStep
from gpubox.bench.kinds.tune.tune_report import summarise
from gpubox.bench.kinds.tune.verdict import read_verdict
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems, Target
from gpubox.bench.questions import ask_question, question_of, question_result
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.errors import GpuboxError

_WARMUP_VALUES = ("target", "start_seconds", "load_seconds", "vram_bytes")


class Tune(Benchmark):
    """One item is one question, or one load, to one start of a cell."""

    kind = "tune"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self._items = tune_items(self.options)
        self._steps: dict[tuple[int, int, bool], TuneStep] = {}
        """The choice after so many starts of the search and of the comparison, for one of both parts."""

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        from gpubox.bench.kinds.tune.planning import DEFAULT_KEEP_FREE_BYTES, TuneRequest, plan_tune
        from gpubox.planner.settings import parse_size

        profile = context.profile(given.pop("profile"))
        size = given.pop("keep_free", None)
        keep_free = parse_size(size) if size else DEFAULT_KEEP_FREE_BYTES
        over, kv_types = tuple(given.pop("over", ())), tuple(given.pop("kv_types", ()))
        request = TuneRequest(given.pop("goal", "tg"), keep_free, over, kv_types, given)
        return plan_tune(profile, request, context.paths, context.config)

    def items(self) -> Sequence[Item]:
        return self._items

    def outline(self) -> Sequence[str]:
        return tuple(tune_outline(self.options))

    def course(self, results: ScoredItems) -> Course:
        """The tune after ``results``."""
        search, final = outcomes(self.options, results)
        return Course(self.options.space, 60 * self.options.minutes, search, final, self.plan.seed)

    async def before_start(self, item: Item, results: ScoredItems) -> None:
        await asyncio.to_thread(self._step, item, results)  # fits a model: not in the event loop

    def _step(self, item: Item, results: ScoredItems) -> TuneStep:
        """What the start of ``item`` measures."""
        earlier = [(other, result) for other, result in results if other.start < item.start]
        course = self.course(earlier)
        key = (len(course.search), len(course.final), is_final(item))
        if key not in self._steps:
            self._steps[key] = course.final_step if is_final(item) else course.search_step
        return self._steps[key]

    def target_of(self, item: Item, results: ScoredItems) -> str:
        chosen = measured_target([pair for pair in results if pair[0].start == item.start])
        return chosen or self._step(item, results).cell

    def unneeded_reason(self, item: Item, results: ScoredItems) -> str:
        if measured_target([pair for pair in results if pair[0].start == item.start]):
            return ""
        step = self._step(item, results)
        return "" if step.cell else step.reason

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        cell = self.target_of(item, results)
        for other, result in results:
            same = other.start == item.start and other.id != item.id
            if same and not result.ok and any(flag.kind == "crash" for flag in result.flags):
                return f"the server died during {other.id}"
        agent = self.options.goal == "agent"
        needed = needed_context(self.options) if agent else question_of(item).needed_context
        return exceeds_context(needed, cell, active)

    def load_failure_reason(self, target: Target, error: GpuboxError) -> str:
        return cell_load_failure(error)

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        if self.options.goal == "agent" and not item.warmup:
            data = await run_load(self.options, item, target_server)
        else:
            data = await ask_question(target_server, item, {})
        data |= {"target": target_server.active.target.name}
        if item.warmup and (running := target_server.running):
            vram = sum(used for _, used in running.loaded_vram) or None
            seconds = round(target_server.switch_seconds, 3)
            data |= {"start_seconds": seconds, "load_seconds": running.load_seconds, "vram_bytes": vram}
        return data

    async def score(self, item: Item, raw: RawRecord) -> Result:
        extra = {name: raw.data[name] for name in _WARMUP_VALUES if name in raw.data}
        if self.options.goal == "agent" and not item.warmup:
            result = load_result(item, raw)
            return Result(item.id, {**result.values, **extra}, error=result.error)
        result = question_result(item, raw, extra)
        return result if result.ok else Result(item.id, extra, flags=result.flags, error=result.error)

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options, self.course(results), info, results)

    def best(self, results: ScoredItems) -> Target | None:
        verdict = read_verdict(self.course(results), UNITS[self.options.goal])
        return next((target for target in self.plan.targets if target.name == verdict.keep), None)

    def headline(self, results: ScoredItems) -> str:
        """The verdict; before, the fastest start so far, because fitting a model after every item would take long."""
        if len(results) == len(self._items):
            return read_verdict(self.course(results), UNITS[self.options.goal]).sentence.rstrip(".")
        search, final = outcomes(self.options, results)
        measured = [outcome for outcome in (*search, *final) if not outcome.failure]
        if not measured:
            return ""
        best = max(measured, key=lambda outcome: outcome.log_rate)
        name = "the profile's own flags" if best.cell == OWN else best.cell
        unit = UNITS[self.options.goal]
        return f"fastest start so far {name}: {units.rate(best.rate)} {unit}"

    def seconds_left(self, results: ScoredItems) -> float | None:
        search, final = outcomes(self.options, results)
        clock = Clock(60 * self.options.minutes, (*search, *final))
        left = clock.left(self.options.space.starts_limit)
        ended = {item.start for item, result in results if result.unneeded}
        over = len(ended | {outcome.number for outcome in clock.outcomes}) >= self._items[-1].start
        return 0.0 if over and left is not None else left
