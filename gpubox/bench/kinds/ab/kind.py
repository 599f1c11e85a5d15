"""``ab``: two profiles, or two ways to ask one, with the same prompts, on server starts in random order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpubox.bench.benchmark import Benchmark
from gpubox.bench.kinds.ab.plan import items_of, parse_options
from gpubox.bench.kinds.ab.summary import summarise
from gpubox.bench.kinds.ab.verdict import contrast_of, early_stop_reason
from gpubox.bench.kinds.shared import exceeds_context
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.questions import ask_question, question_of, question_result
from gpubox.bench.report.model import Report
from gpubox.bench.start_comparison import interim_analyses
from gpubox.bench.target_server import ActiveTarget, TargetServer


class Ab(Benchmark):
    """See ``plan``."""

    kind = "ab"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options, plan.targets)
        self._contexts: dict[str, dict[int, str]] = {}
        self._stop_reasons: dict[int, str] = {}
        """By starts of each side: why the run ends there; empty if it continues."""

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
