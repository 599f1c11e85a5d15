"""``speed``: what a client gets of the served path - TTFT, pp, tg, acceptance - under one fixed protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpubox import units
from gpubox.bench import stats
from gpubox.bench.benchmark import Benchmark, check_items
from gpubox.bench.kinds.speed import llama_bench
from gpubox.bench.kinds.speed.summary import summarise
from gpubox.bench.kinds.speed.workloads import Workload, parse_options, workloads_of
from gpubox.bench.measured_request import MeasuredReply, measure_request, stored_reply
from gpubox.bench.model import Flag, Item, Plan, RawRecord, Result, RunInfo
from gpubox.bench.questions import TEMPLATE_TOKENS, context_filler, no_speed_reason, reply_values, unmet_conditions
from gpubox.bench.report.model import Report
from gpubox.bench.start_comparison import random_order
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.server.other_server import LLAMA


class Speed(Benchmark):
    """See ``cells``."""

    kind = "speed"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)
        self._filler: dict[tuple[str, int], str] = {}

    def items(self) -> Sequence[Item]:
        cells, options = workloads_of(self.options), self.options
        count = sum(cell.warmups + cell.repeats for cell in cells)
        check_items(len(self.plan.targets) * options.starts * count)
        served = [target for target in self.plan.targets if not target.stopped]
        several = len(self.plan.targets) > 1
        order = random_order(len(served), options.starts, self.plan.seed) if options.starts > 1 else range(len(served))
        made = []
        for start, place in enumerate(order, 1):
            target = served[place]
            mark = f"{target.name}:" if several else ""
            mark += f"{start:02d}/" if options.starts > 1 else ""
            number_of = start if options.starts > 1 else 0
            for cell in cells:
                group, values = f"{mark}{cell.id}", msgspec.to_builtins(cell)
                for number in range(cell.warmups):
                    name = f"{group}/w{number + 1}"
                    made.append(Item(name, target.name, values, True, group, cell.weight, number_of))
                for number in range(cell.repeats):
                    name = f"{group}/{number + 1}"
                    made.append(Item(name, target.name, values, False, group, cell.weight, number_of))
        for target in self.plan.targets:
            if target.stopped:
                mark = f"{target.name}:" if several else ""
                made.append(Item(f"{mark}llama-bench", target.name, {"depths": list(options.depths)}, weight=2000))
        return made

    def skip_reason(self, item: Item, results: Sequence[tuple[Item, Result]], server: ActiveTarget | None) -> str:
        if "prompt" not in item.values or server is None or server.target.name != item.target:
            return ""
        cell, size = workload_of(item), server.context_tokens
        needs = cell.depth + cell.max_tokens + TEMPLATE_TOKENS
        return f"needs a context of {needs:,} tokens; a slot has {size:,}" if size and size < needs else ""

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        if target_server.active.target.stopped:
            return await llama_bench.execute(item, target_server)
        cell = workload_of(item)
        text = cell.text
        if cell.depth:
            text = f"{await self._context(target_server, cell.depth)}\n\nLeave the text above aside. {text}"
        if target_server.active.dialect != LLAMA and cell.prefix == "cold":
            text = f"[{item.id}]\n{text}"  # no switch for its cache: what is first must be new
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": cell.max_tokens,
            **{name: int(v) if name in ("top_k", "seed") else v for name, v in cell.sampling.items()},
            "cache_prompt": cell.prefix == "warm",
            "chat_template_kwargs": {"enable_thinking": cell.thinking},
        }
        if cell.fixed_length:
            body["ignore_eos"] = True
        return await measure_request(target_server, item.id, body)

    async def score(self, item: Item, raw: RawRecord) -> Result:
        if "prompt" not in item.values:
            return llama_bench.score(item, raw)
        cell, got = workload_of(item), stored_reply(raw.data)
        flags = _doubts(item, cell, got)
        if why := no_speed_reason(got):
            return Result(item.id, flags=flags, error=why)
        return Result(item.id, reply_values(raw, got), flags=flags)

    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        return summarise(self.options, info, results, self.history)

    def headline(self, results: Sequence[tuple[Item, Result]]) -> str:
        rates = [r.values["tg"] for i, r in results if r.ok and not i.warmup and r.values.get("tg")]
        return f"tg {units.rate(stats.estimate(rates).value)} tok/s" if rates else ""

    async def _context(self, target_server: TargetServer, tokens: int) -> str:
        """Made-up prose of so many tokens, as the target counts them."""
        key = (target_server.active.target.name, tokens)
        if key not in self._filler:
            self._filler[key] = await context_filler(target_server, tokens)
        return self._filler[key]


def workload_of(item: Item) -> Workload:
    """The cell that ``item`` repeats."""
    return msgspec.convert(item.values, Workload)


def _doubts(item: Item, cell: Workload, got: MeasuredReply) -> tuple[Flag, ...]:
    """What the request asked for and did not get."""
    found = unmet_conditions(item, got, cell.max_tokens if cell.fixed_length else None, cold=cell.prefix == "cold")
    prompt = (got.prompt_tokens or 0) + (got.cached_tokens or 0)
    if cell.prefix == "warm" and not item.warmup and (got.cached_tokens or 0) < prompt / 2:
        why = f"only {got.cached_tokens or 0:,} of {prompt:,} prompt tokens were cached"
        return Flag("cache", why, item.id), *found
    return found
