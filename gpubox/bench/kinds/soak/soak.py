"""``soak``: minutes of an agent's load, split into windows. A crash costs at most one window."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubox import units
from gpubox.bench.benchmark import Benchmark, check_items
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.shared import convert_options, id_prefix
from gpubox.bench.kinds.soak.agent_load import AgentLoad
from gpubox.bench.kinds.soak.soak_report import summarise
from gpubox.bench.measured_request import stored_reply
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, Sample, ScoredItems
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import TargetServer
from gpubox.errors import UsageError


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """The options of one soak."""

    minutes: float = 15.0
    max_tokens: int = 128
    """Of each answer."""
    context_tokens: int = 16384
    """A conversation starts anew before it is longer than this or than the slot's context."""
    window_seconds: float = 20.0


def parse_options(values: Mapping[str, Any]) -> SoakOptions:
    """A plan's options. Raises UsageError if one is invalid."""
    options = convert_options(values, SoakOptions)
    if options.minutes <= 0 or options.window_seconds <= 0 or options.max_tokens < 2 or options.context_tokens < 512:
        raise UsageError(
            "A soak needs more than 0 minutes, answers of at least 2 tokens and a context of at least 512."
        )
    check_items(math.ceil(min(options.minutes * 60 / options.window_seconds, 1e12)))
    return options


class Soak(Benchmark):
    """One item is one window of the load."""

    kind = "soak"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)
        self._loads: dict[str, AgentLoad] = {}

    @classmethod
    def make_plan(cls, context: PlanContext, given: dict[str, Any]) -> Plan:
        return super().make_plan(context, {"minutes": SoakOptions().minutes, **given})

    def items(self) -> Sequence[Item]:
        seconds, window_seconds = self.options.minutes * 60, self.options.window_seconds
        items = []
        for target in self.plan.targets:
            prefix = id_prefix(self.plan, target)
            warmup = {"window": 0, "seconds": 0}
            items.append(Item(f"{prefix}warm-up", target.name, warmup, True, target.name, 0.1))
            for number in range(1, max(1, math.ceil(seconds / window_seconds)) + 1):
                values = {"window": number, "seconds": min(window_seconds, seconds - (number - 1) * window_seconds)}
                items.append(Item(f"{prefix}{number:03d}", target.name, values, False, target.name))
        return items

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        if item.target not in self._loads:
            self._loads[item.target] = AgentLoad(self.plan.seed, self.options.max_tokens, self.options.context_tokens)
        return await self._loads[item.target].run(item, target_server, float(item.values["seconds"]))

    async def score(self, item: Item, raw: RawRecord) -> Result:
        rows = []
        for answer in raw.data["answers"]:
            reply = stored_reply(answer)
            if reply.tg is None or not reply.generated_tokens:
                continue
            depth = (reply.prompt_tokens or 0) + (reply.cached_tokens or 0) + reply.generated_tokens // 2
            rows.append(
                {
                    "tg": reply.tg,
                    "context_tokens": depth,
                    "ttft_seconds": reply.ttft_seconds,
                    "generated_tokens": reply.generated_tokens,
                    "draft_tokens": reply.draft_tokens,
                    "draft_tokens_accepted": reply.draft_tokens_accepted,
                }
            )
        if not rows:
            return Result(item.id, error="no answer could be timed")
        return Result(item.id, {"answers": rows, "rss_bytes": raw.data.get("rss_bytes"), **_readings(raw.samples)})

    def summarise(self, info: RunInfo, results: ScoredItems) -> Report:
        return summarise(self.options.window_seconds, info, results)

    def headline(self, results: ScoredItems) -> str:
        last = next((result for _, result in reversed(results) if result.ok), None)
        if last is None:
            return ""
        rate = statistics.fmean(answer["tg"] for answer in last.values["answers"])
        temperature = last.values.get("temperature_celsius")
        return f"tg {units.rate(rate)} tok/s" + (f", {temperature} °C" if temperature is not None else "")


def _readings(samples: Sequence[Sample]) -> dict[str, Any]:
    """A window's readings, one number each: maxima of temperature and VRAM, typical clock and power."""

    def values(name: str) -> list[Any]:
        return [value for sample in samples if (value := getattr(sample, name)) is not None]

    clocks, power = values("clock_sm_mhz"), values("power_watts")
    return {
        "temperature_celsius": max(values("temperature_celsius"), default=None),
        "vram_bytes": max(values("vram_used_bytes"), default=None),
        "clock_sm_mhz": statistics.median(clocks) if clocks else None,
        "power_watts": statistics.fmean(power) if power else None,
    }
