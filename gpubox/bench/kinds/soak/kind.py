"""``soak``: minutes of an agent's load in windows; a window is what a crash can cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox import units
from gpubox.bench.benchmark import Benchmark, check_items, check_numbers
from gpubox.bench.kinds.soak.agent_load import AgentLoad, window_answers
from gpubox.bench.kinds.soak.summary import summarise
from gpubox.bench.measured_request import stored_reply
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, Sample
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import TargetServer
from gpubox.errors import UsageError

WINDOW_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """Of one soak."""

    minutes: float = 15.0
    max_tokens: int = 128
    """Of each answer."""
    context_tokens: int = 16384
    """A conversation begins anew before it is longer, or the slot's context is full."""
    window_seconds: float = WINDOW_SECONDS


def parse_options(values: Mapping[str, Any]) -> SoakOptions:
    """The options as a plan keeps them. Raises UsageError for one that cannot be."""
    try:
        options = msgspec.convert(values, SoakOptions)
    except msgspec.ValidationError as error:
        raise UsageError(f"These options of a soak cannot be: {error}.") from None
    check_numbers(values)
    if options.minutes <= 0 or options.window_seconds <= 0 or options.max_tokens < 2 or options.context_tokens < 512:
        raise UsageError("A soak needs minutes above 0, answers of 2 tokens and a context of 512 at least.")
    check_items(math.ceil(min(options.minutes * 60 / options.window_seconds, 1e12)))
    return options


class Soak(Benchmark):
    """See ``load``."""

    kind = "soak"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.options = parse_options(plan.options)
        self._loads: dict[str, AgentLoad] = {}

    def items(self) -> Sequence[Item]:
        left = self.options.minutes * 60
        count = max(1, math.ceil(left / self.options.window_seconds))
        made = []
        for target in self.plan.targets:
            mark = f"{target.name}:" if len(self.plan.targets) > 1 else ""
            group = target.name
            made.append(Item(f"{mark}warm-up", target.name, {"window": 0, "seconds": 0}, True, group, 0.1))
            for number in range(1, count + 1):
                rest = left - (number - 1) * self.options.window_seconds
                values = {"window": number, "seconds": min(self.options.window_seconds, rest)}
                made.append(Item(f"{mark}{number:03d}", target.name, values, False, group))
        return made

    async def execute(self, item: Item, target_server: TargetServer) -> Mapping[str, Any]:
        options = self.options
        made = AgentLoad(self.plan.seed, options.max_tokens, options.context_tokens)
        load = self._loads.setdefault(item.target, made)
        return await load.run(item, target_server, float(item.values["seconds"]))

    async def score(self, item: Item, raw: RawRecord) -> Result:
        rows = []
        for answer in window_answers(raw.data):
            got = stored_reply(answer)
            if got.tg is None or not got.generated_tokens:
                continue
            depth = (got.prompt_tokens or 0) + (got.cached_tokens or 0) + got.generated_tokens // 2
            rows.append(
                {
                    "at": answer["at"],
                    "tg": got.tg,
                    "context_tokens": depth,
                    "ttft_seconds": got.ttft_seconds,
                    "generated_tokens": got.generated_tokens,
                    "draft_tokens": got.draft_tokens,
                    "draft_tokens_accepted": got.draft_tokens_accepted,
                }
            )
        if not rows:
            return Result(item.id, error="nothing was generated that could be timed")
        return Result(item.id, {"answers": rows, "rss_bytes": raw.data.get("rss_bytes"), **_box(raw.samples)})

    def summarise(self, info: RunInfo, results: Sequence[tuple[Item, Result]]) -> Report:
        return summarise(self.options.window_seconds, info, results)

    def headline(self, results: Sequence[tuple[Item, Result]]) -> str:
        last = next((result for _, result in reversed(results) if result.ok), None)
        if last is None:
            return ""
        rate = statistics.fmean(answer["tg"] for answer in last.values["answers"])
        heat = last.values.get("temperature_celsius")
        return f"tg {units.rate(rate)} tok/s" + (f", {heat} °C" if heat is not None else "")


def _box(samples: Sequence[Sample]) -> dict[str, Any]:
    """A window's readings as one each: the hottest, the fullest, the middle clock and power."""

    def of(name: str) -> list[Any]:
        return [value for sample in samples if (value := getattr(sample, name)) is not None]

    heat, vram, clock, watts, ram = map(
        of, ("temperature_celsius", "vram_used_bytes", "clock_sm_mhz", "power_watts", "ram_available_bytes")
    )
    return {
        "temperature_celsius": max(heat, default=None),
        "vram_bytes": max(vram, default=None),
        "clock_sm_mhz": statistics.median(clock) if clock else None,
        "power_watts": statistics.fmean(watts) if watts else None,
        "ram_available_bytes": min(ram, default=None),
    }
