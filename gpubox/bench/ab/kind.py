"""``ab``: two profiles, or two ways to ask one, under the same prompts in the order A B B A."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpubox.bench import stats
from gpubox.bench.ab.plan import items_of, options_of
from gpubox.bench.ab.summary import pairs_of, summarise
from gpubox.bench.asking import answer_result, ask, question_of, too_long
from gpubox.bench.benchmark import Benchmark
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo
from gpubox.bench.report.model import Report
from gpubox.bench.stand import Server, Stand


class Ab(Benchmark):
    """See ``plan``."""

    kind = "ab"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = options_of(plan.options, plan.targets)
        self._contexts: dict[str, dict[int, str]] = {}

    def items(self) -> Sequence[Item]:
        return items_of(self.options)

    def skip(self, item: Item, results: Sequence[tuple[Item, Result]], server: Server | None) -> str:
        mine = server if server and server.target.name == item.target else None
        return too_long(question_of(item), mine)

    async def execute(self, item: Item, stand: Stand) -> Mapping[str, Any]:
        data = await ask(stand, item, self._contexts.setdefault(item.target, {}))
        running = stand.running
        return {**data, "load_seconds": running.load_seconds if running and item.warmup else None}

    async def score(self, item: Item, raw: RawRecord) -> Result:
        return answer_result(item, raw, {"load_seconds": raw.data.get("load_seconds")})

    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        return summarise(self.options, info, results)

    def headline(self, results: Sequence[tuple[Item, Result]]) -> str:
        first, second = self.options.arms
        pairs = pairs_of(self.options, results, "tg")
        if len(pairs) < stats.FEWEST:
            return ""
        ratio = math.exp(statistics.fmean(pair.log_ratio for pair in pairs))
        return f"{second.name} / {first.name}: tg × {ratio:.3f}"
