"""``speed``: TTFT, pp, tg and draft acceptance as a client of the server gets them, under one fixed protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpubox import units
from gpubox.bench.benchmark import Benchmark, check_items
from gpubox.bench.compare.starts import random_order
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.shared import exceeds_context, id_prefix
from gpubox.bench.kinds.speed import KIND
from gpubox.bench.kinds.speed.speed_report import first_rates, first_sentence, summarise
from gpubox.bench.kinds.speed.streams import (
    execute_streams,
    is_streams_item,
    score_streams,
    streams_headline,
    streams_items,
    streams_of,
    summarise_streams,
)
from gpubox.bench.kinds.speed.workloads import (
    PRESET_OVERRIDES,
    PRESETS,
    Workload,
    parse_options,
    quick_streams,
    workloads_of,
)
from gpubox.bench.measured_request import MeasuredReply, measure_request, stored_reply
from gpubox.bench.model import Doubt, Item, Plan, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.overrides import given_targets, random_seed
from gpubox.bench.questions import (
    TEMPLATE_TOKENS,
    no_speed_reason,
    reply_values,
    text_at_depth,
    uncached_text,
    unmet_conditions,
)
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import ActiveTarget, TargetServer
from gpubox.errors import UsageError


class Speed(Benchmark):
    """One item is one repeat of a workload, or all streams of one measurement."""

    kind = "speed"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)
        self._contexts: dict[str, dict[int, str]] = {}

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        url = given.get("url")
        if (prefix := given.pop("prefixes", "both")) != "both":
            given["prefixes"] = [prefix]
        options = {key: value for key, value in given.items() if key not in ("profiles", "url", "model")}
        parse_options(options)
        if url and "starts" in given:
            raise UsageError("gpubox cannot restart a server given by its address.", "Leave out --starts.")
        _check_preset(options)
        targets = given_targets(context, given)
        about = (f"It measures {PRESETS['quick']}.",) if given.get("preset") == "quick" else ()
        return Plan(
            "speed",
            tuple(targets),
            given,
            about=about,
            seed=random_seed() if given.keys() & {"starts", "streams"} else 0,
        )

    def items(self) -> Sequence[Item]:
        options, starts = self.options, self.options.starts
        workloads = [] if options.streams else workloads_of(options)
        per_start = sum(workload.warmups + workload.repeats for workload in workloads)
        per_start += len(options.streams) * len(options.depths) * (1 + options.repeats)
        targets = self.plan.targets
        check_items(len(targets) * starts * per_start)
        order = random_order(len(targets), starts, self.plan.seed) if starts > 1 else range(len(targets))
        items: list[Item] = []
        for number, place in enumerate(order, 1):
            target = targets[place]
            start, prefix = 0, id_prefix(self.plan, target)
            if starts > 1:
                start, prefix = number, f"{prefix}{number:02d}/"
            if options.streams:
                items += streams_items(options, target.name, prefix, start, self.plan.seed)
            for workload in workloads:
                if options.preset == "quick" and workload.depth:  # the longest at the end
                    items += streams_items(quick_streams(options), target.name, prefix, start, self.plan.seed)
                group, values = f"{prefix}{workload.id}", msgspec.to_builtins(workload)
                names = [f"w{n + 1}" for n in range(workload.warmups)] + [str(n + 1) for n in range(workload.repeats)]
                for name in names:
                    warmup = name.startswith("w")
                    reads = workload.depth / 10 if warmup and workload.prefix == "warm" else 0
                    weight = workload.weight + reads
                    items.append(Item(f"{group}/{name}", target.name, values, warmup, group, weight, start))
        return items

    def skip_reason(self, item: Item, results: ScoredItems, active: ActiveTarget | None) -> str:
        if is_streams_item(item):
            slots = active.props.get("total_slots") if active and active.target.name == item.target else None
            if self.options.preset == "quick" and slots == 1:
                return "the server has one slot, so a second request waits"
            return exceeds_context(streams_of(item).needed_context, item.target, active)
        workload = workload_of(item)
        return exceeds_context(workload.depth + workload.max_tokens + TEMPLATE_TOKENS, item.target, active)

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        contexts = self._contexts.setdefault(item.target, {})
        if is_streams_item(item):
            return await execute_streams(item, target_server, contexts)
        workload = workload_of(item)
        text = await text_at_depth(workload.text, workload.depth, target_server, contexts)
        if workload.prefix == "cold":
            text = uncached_text(text, item, target_server)
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": workload.max_tokens,
            **workload.sampling,
            "cache_prompt": workload.prefix == "warm",
            "chat_template_kwargs": {"enable_thinking": workload.thinking},
        }
        if workload.fixed_length:
            body["ignore_eos"] = True
        return await measure_request(target_server, item.id, body)

    async def score(self, item: Item, raw: RawRecord) -> Result:
        if is_streams_item(item):
            return score_streams(item, raw)
        reply = stored_reply(raw.data)
        doubts = _doubts(item, workload_of(item), reply)
        if why := no_speed_reason(reply):
            return Result(item.id, doubts=doubts, error=why)
        return Result(item.id, reply_values(raw, reply), doubts=doubts)

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        summary = summarise_streams if self.options.streams else summarise
        return summary(self.options, info, results)

    def headline(self, results: ScoredItems) -> str:
        if self.options.streams:
            return streams_headline(results)
        if self.options.preset == "quick":
            return first_sentence(results)
        rates = [units.rate(rate) for _, rate in first_rates(self.plan.targets, results).values()]
        return f"writes {' and '.join(rates)} tok/s" if rates else ""


def _check_preset(given: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that the preset fixes: it would be ignored without a message."""
    preset = given.get("preset")
    if preset is None:
        return
    free = PRESET_OVERRIDES[preset]
    if fixed := [key for key in given if key not in ("preset", *free)]:
        names = {option.key or option.name.replace("-", "_"): option.name for option in KIND.options}
        raise UsageError(
            f"The preset {preset} is a fixed protocol: it takes no --{names[fixed[0]]}.",
            f"It takes: {', '.join(f'--{names[key]}' for key in free)}.",
        )


def workload_of(item: Item) -> Workload:
    """The workload that ``item`` repeats."""
    return msgspec.convert(item.values, Workload)


def _doubts(item: Item, workload: Workload, reply: MeasuredReply) -> tuple[Doubt, ...]:
    """The conditions of the request that the reply does not meet."""
    doubts = unmet_conditions(
        item, reply, workload.max_tokens if workload.fixed_length else None, cold=workload.prefix == "cold"
    )
    cached = reply.cached_tokens or 0
    prompt = (reply.prompt_tokens or 0) + cached
    if workload.prefix == "warm" and not item.warmup and cached < prompt / 2:
        return Doubt("cache", f"only {cached:,} of {prompt:,} prompt tokens were cached", item.id), *doubts
    return doubts
