"""``speed --streams``: several requests at the same moment, as agents or several people send them; and their report.

An item is one repeat with N streams: N requests, sent at once, each with a prompt of its own, no shared prefix and the
same number of tokens. Aggregate tg is the tokens of all streams after the very first one, over the time from that first
token to the last token of all; so it includes the time that the server spends on reading other prompts meanwhile. tg
and TTFT of a stream are those of its reply (see ``measured_request``); a stream that waits for a free slot shows the
wait in its TTFT. The knee is the smallest number of streams that no larger measured number beats by KNEE_MARGIN.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox import units
from gpubox.bench.events import Note
from gpubox.bench.kinds.shared import closing_notes, report_doubts, timing_notes
from gpubox.bench.kinds.speed.workloads import SpeedOptions
from gpubox.bench.measured_request import MeasuredReply, energy_note, energy_values, measure_request, stored_reply
from gpubox.bench.model import Doubt, Item, RawRecord, Result, RunInfo, ScoredItems
from gpubox.bench.prompts import CHAT_PROMPTS
from gpubox.bench.questions import TEMPLATE_TOKENS, no_speed_reason, text_at_depth, uncached_text, unmet_conditions
from gpubox.bench.report.chart import estimate_series
from gpubox.bench.report.formatting import format_ratio, request_words, stream_words
from gpubox.bench.report.model import Metric, Report, ReportTable, Series, Value
from gpubox.bench.report.prompt_metrics import Measures, start_estimate, start_means
from gpubox.bench.stats import PairedRatio, paired_ratio
from gpubox.bench.target_server import TargetServer

STREAM_TOKENS = 128
"""Per answer, without ``--max-tokens``."""
WARMUP_TOKENS = 8
_PROMPTS = CHAT_PROMPTS["code"]


@dataclass(frozen=True, slots=True)
class StreamsWorkload:
    """So many requests at once: one row of the report."""

    streams: int
    depth: int
    """Tokens of context before each prompt."""
    max_tokens: int
    sampling: Mapping[str, int | float]
    thinking: bool = False
    repeat: int = 0
    """Stream number i of this repeat asks prompt repeat + i, so that no number of streams has prompts of its own."""

    @property
    def id(self) -> str:
        return f"{self.streams}-streams/d{self.depth}"

    @property
    def needed_context(self) -> int:
        """Tokens of one stream's prompt and answer."""
        return self.depth + self.max_tokens + TEMPLATE_TOKENS


def is_streams_item(item: Item) -> bool:
    """Whether ``item`` belongs to ``--streams``."""
    return "streams" in item.values


def streams_of(item: Item) -> StreamsWorkload:
    """The workload of a streams item."""
    return msgspec.convert(item.values, StreamsWorkload)


def streams_items(options: SpeedOptions, target: str, prefix: str, start: int, seed: int) -> list[Item]:
    """The items of one start: a short warm-up of each number of streams, then rounds in which each occurs once.

    The order in a round is random, so that no number of streams always runs on the warmest card.
    """
    tokens = options.max_tokens or STREAM_TOKENS
    cells = [(depth, count) for depth in options.depths for count in options.streams]
    order = random.Random(f"streams {seed} {start}")

    def item(cell: tuple[int, int], name: str, repeat: int, max_tokens: int, *, warmup: bool) -> Item:
        depth, count = cell
        workload = StreamsWorkload(count, depth, max_tokens, options.sampling, options.thinking, repeat)
        group = f"{prefix}{workload.id}"
        weight = count * (max_tokens + depth / 10)
        return Item(f"{group}/{name}", target, msgspec.to_builtins(workload), warmup, group, weight, start)

    items = [item(cell, "w1", 0, min(tokens, WARMUP_TOKENS), warmup=True) for cell in cells]
    for repeat in range(options.repeats):
        items += [item(cell, str(repeat + 1), repeat, tokens, warmup=False) for cell in order.sample(cells, len(cells))]
    return items


async def execute_streams(item: Item, target_server: TargetServer, contexts: dict[int, str]) -> dict[str, Any]:
    """Sends all requests at once and waits for all answers. Raises GpuboxError as ``measure_request``."""
    workload = streams_of(item)
    slots = target_server.active.props.get("total_slots")
    slots = slots if isinstance(slots, int) else None
    if item.warmup and slots and slots < workload.streams:
        count = f"{slots} slot{'s' if slots > 1 else ''}"
        target_server.emit(Note(f"The server has {count}: of {workload.streams} streams, some have to wait."))
    bodies = [await _body(item, workload, number, target_server, contexts) for number in range(workload.streams)]
    began = time.perf_counter()

    async def ask(number: int) -> dict[str, Any]:
        at = time.perf_counter() - began
        label = f"stream {number + 1} of {workload.streams}: "
        return {"at": at, **await measure_request(target_server, item.id, bodies[number], label=label)}

    tasks = [asyncio.create_task(ask(number)) for number in range(workload.streams)]
    try:
        replies = await asyncio.gather(*tasks)
    except BaseException:
        target_server.token_count_unknown = True  # the server counts the tokens of answers that are broken off here
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"streams": replies, "slots": slots}


async def _body(
    item: Item, workload: StreamsWorkload, number: int, target_server: TargetServer, contexts: dict[int, str]
) -> dict[str, Any]:
    prompt = _PROMPTS[(workload.repeat + number) % len(_PROMPTS)]
    text = await text_at_depth(prompt, workload.depth, target_server, contexts)
    text = f"[{number + 1}] {uncached_text(text, item, target_server)}"  # from the first token on, no two are equal
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": workload.max_tokens,
        **workload.sampling,
        "cache_prompt": False,
        "ignore_eos": True,
        "chat_template_kwargs": {"enable_thinking": workload.thinking},
    }


def score_streams(item: Item, raw: RawRecord) -> Result:
    """The numbers of one repeat."""
    workload = streams_of(item)
    stored: Sequence[Mapping[str, Any]] = raw.data["streams"]
    replies = [stored_reply(data) for data in stored]
    doubts: list[Doubt] = []
    for reply in replies:
        doubts += [doubt for doubt in unmet_conditions(item, reply, workload.max_tokens) if doubt not in doubts]
    for reply in replies:
        if why := no_speed_reason(reply):
            return Result(item.id, doubts=tuple(doubts), error=why)
    ends = [data["at"] + reply.wall_seconds for data, reply in zip(stored, replies, strict=True)]
    firsts = [data["at"] + (reply.ttft_seconds or 0.0) for data, reply in zip(stored, replies, strict=True)]
    first, end = min(firsts), max(ends)
    generated = sum(reply.generated_tokens or 0 for reply in replies)
    if end <= first or generated < 2:
        return Result(item.id, doubts=tuple(doubts), error="too few tokens were generated to measure a speed")
    slots = raw.data.get("slots")
    waited = max(0, workload.streams - slots) if isinstance(slots, int) and slots > 0 else None
    prompt = sum(reply.prompt_tokens or 0 for reply in replies)
    energy = energy_values(raw, first, end, prompt=0, generated=generated)
    values = {
        "aggregate": (generated - 1) / (end - first),
        "tg": statistics.fmean(reply.tg or 0.0 for reply in replies),
        "ttft_seconds": statistics.fmean(_ttfts(replies)),
        "ttft_slowest_seconds": max(_ttfts(replies)),
        "streams": [
            {"tg": reply.tg, "ttft_seconds": reply.ttft_seconds, "generated_tokens": reply.generated_tokens}
            for reply in replies
        ],
        "waited": waited,
        "slots": slots,
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "draft_tokens": _total(reply.draft_tokens for reply in replies),
        "draft_tokens_accepted": _total(reply.draft_tokens_accepted for reply in replies),
        "timed_by": replies[0].timed_by,
        **energy,
    }
    return Result(item.id, values, doubts=tuple(doubts))


def _ttfts(replies: Sequence[MeasuredReply]) -> list[float]:
    return [reply.ttft_seconds for reply in replies if reply.ttft_seconds is not None]


def _total(counts: Any) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


KNEE_MARGIN = 0.05
AGGREGATE = "aggregate tg"
_MEASURES: Measures = (
    (AGGREGATE, "aggregate", "tok/s", "higher"),
    ("tg", "tg", "tok/s", "higher"),
    ("TTFT", "ttft_seconds", "s", "lower"),
    ("slowest TTFT", "ttft_slowest_seconds", "s", "lower"),
    ("energy", "joules_per_token", "J/token", "lower"),
)


@dataclass(frozen=True, slots=True)
class StreamsLevel:
    """One number of streams at one depth, on one target."""

    target: str
    workload: StreamsWorkload
    metrics: Mapping[str, Metric]
    waited: int | None
    """Requests that found no free slot; ``None`` if the server does not say how many slots it has."""
    slots: int | None
    acceptance: float | None
    """Accepted over drafted tokens, in %."""

    @property
    def streams(self) -> int:
        return self.workload.streams


def summarise_streams(options: SpeedOptions, info: RunInfo, results: ScoredItems) -> Report:
    """The report so far."""
    levels = list(stream_levels(info, results))
    curves = [
        own
        for target in info.plan.targets
        for depth in options.depths
        if (own := [level for level in levels if (level.target, level.workload.depth) == (target.name, depth)])
    ]
    counts = ", ".join(map(str, options.streams))
    return Report(
        kind="speed",
        title=f"{counts} streams at once",
        verdict=" ".join(_verdict(curve, several=len(curves) > 1) for curve in curves if len(curve) > 1),
        metrics=tuple(metric for level in levels for metric in level.metrics.values()),
        tables=tuple(_table(curve, several=len(curves) > 1) for curve in curves),
        series=tuple(line for curve in curves for line in _series(curve, several=len(curves) > 1)),
        notes=tuple(_notes(options, info, results, curves)),
        doubts=report_doubts(info, results),
    )


def _verdict(curve: Sequence[StreamsLevel], *, several: bool) -> str:
    """How many streams are worth it."""
    where = f"{curve[0].target}, depth {curve[0].workload.depth:,}: " if several else ""
    knee = _knee(curve)
    if knee is None:
        return f"{where}The more streams, the more tokens in all, up to {stream_words(curve[-1].streams)}."
    return f"{where}More than {stream_words(knee)} at once give hardly more tokens in all."


def streams_headline(results: ScoredItems) -> str:
    """The best aggregate so far."""
    rates: dict[int, list[float]] = {}
    for item, result in results:
        if result.ok and not item.warmup and is_streams_item(item):
            rates.setdefault(streams_of(item).streams, []).append(result.values["aggregate"])
    if not rates:
        return ""
    count, best = max(((count, statistics.fmean(values)) for count, values in rates.items()), key=lambda pair: pair[1])
    return f"{units.rate(best)} tok/s with {stream_words(count)}"


def knee_of(points: Sequence[tuple[int, float]]) -> int | None:
    """The knee of (streams, aggregate tg); ``None`` if the rate still grows at the largest number, or there is one."""
    for place, (count, rate) in enumerate(points[:-1]):
        if all(later < rate * (1 + KNEE_MARGIN) for _, later in points[place + 1 :]):
            return count
    return None


def stream_levels(info: RunInfo, results: ScoredItems) -> Iterator[StreamsLevel]:
    rows = [(item, result) for item, result in results if is_streams_item(item) and not item.warmup and result.ok]
    for target in info.plan.targets:
        groups: dict[tuple[int, int], list[int]] = {}
        for place, (item, _) in enumerate(rows):
            if item.target == target.name:
                workload = streams_of(item)
                groups.setdefault((workload.depth, workload.streams), []).append(place)
        for (depth, count), places in sorted(groups.items()):
            own = [rows[place] for place in places]
            group = request_words(stream_words(count), depth)
            metrics = {}
            for name, key, unit, better in _MEASURES:
                if estimate := start_estimate(own, key):
                    samples = tuple(
                        (f"{item.id.removeprefix(f'{target.name}:')}", float(result.values[key]))
                        for item, result in own
                        if result.values.get(key) is not None
                    )
                    metrics[name] = Metric(
                        name, group, target.name, unit, better, estimate, samples, start_means(own, key)
                    )
            values = own[-1][1].values
            drafted = sum(result.values.get("draft_tokens") or 0 for _, result in own)
            accepted = sum(result.values.get("draft_tokens_accepted") or 0 for _, result in own)
            yield StreamsLevel(
                target.name, streams_of(own[0][0]), metrics, values.get("waited"), values.get("slots"),
                100 * accepted / drafted if drafted else None,
            )  # fmt: skip


def _table(curve: Sequence[StreamsLevel], *, several: bool) -> ReportTable:
    knee = _knee(curve)
    rows: list[tuple[Value, ...]] = []
    drafted = any(level.acceptance is not None for level in curve)
    energy = any("energy" in level.metrics for level in curve)
    before: StreamsLevel | None = None
    for level in curve:
        own = level.metrics
        gain = _gain(before, level) if before else None
        row: list[Value] = [
            level.streams,
            own[AGGREGATE].estimate.value,
            format_ratio(gain, short=True) if gain else "",
        ]
        shown = (("tg", 1), ("TTFT", 1000), ("slowest TTFT", 1000))
        row += [factor * own[name].estimate.value if name in own else None for name, factor in shown]
        row += [own["energy"].estimate.value if "energy" in own else None] if energy else []
        row += [level.acceptance] if drafted else []
        row += [level.waited, "knee" if level.streams == knee else ""]
        rows.append(tuple(row))
        before = level
    columns = (
        "streams", AGGREGATE, "gain", "tg of each", "TTFT", "slowest",
        *(["J/token"] if energy else []), *(["acceptance %"] if drafted else []), "had to wait", "",
    )  # fmt: skip
    title = "Streams" + (f", {curve[0].target}" if several else "")
    title += f", depth {curve[0].workload.depth:,}" if curve[0].workload.depth else ""
    tokens = f"{curve[0].workload.max_tokens:,} tokens each"
    return ReportTable(
        title, columns, tuple(rows), f"{tokens}; rates in tok/s, TTFT in ms; gain: over the row above, 95 % CI"
    )


def _series(curve: Sequence[StreamsLevel], *, several: bool) -> Iterator[Series]:
    first = curve[0]
    where = f"{first.target}, " if several else ""
    where += f"depth {first.workload.depth:,}, " if first.workload.depth else ""
    knee = _knee(curve)
    for chart, names, unit in (
        ("tg", ((AGGREGATE, "all streams together"), ("tg", "each stream")), "tok/s"),
        ("TTFT", (("TTFT", "mean of the streams"), ("slowest TTFT", "the slowest stream")), "s"),
        ("energy", (("energy", "J per generated token"),), "J/token"),
    ):
        for name, words in names:
            own = [(level.streams, level.metrics[name].estimate) for level in curve if name in level.metrics]
            title = f"{chart} over streams: {where}{first.workload.max_tokens:,} tokens each"
            mark = (float(knee), "knee") if knee and name == AGGREGATE else None
            yield from estimate_series(title, words, "streams at once", f"{chart}, {unit}", own, mark)


def _knee(curve: Sequence[StreamsLevel]) -> int | None:
    return knee_of([(level.streams, level.metrics[AGGREGATE].estimate.value) for level in curve])


def _gain(first: StreamsLevel, second: StreamsLevel) -> PairedRatio | None:
    return paired_ratio(first.metrics[AGGREGATE].starts, second.metrics[AGGREGATE].starts)


def _notes(
    options: SpeedOptions,
    info: RunInfo,
    results: ScoredItems,
    curves: Sequence[Sequence[StreamsLevel]],
) -> Iterator[str]:
    for curve in curves:
        prefix = ""
        if len(curves) > 1:
            prefix = f"{curve[0].target}, depth {curve[0].workload.depth:,}: "
        yield from (prefix + sentence for sentence in _knee_sentences(curve))
        if waiting := [level for level in curve if level.waited]:
            slots = waiting[0].slots or 0
            counts = ", ".join(f"{level.waited} of {level.streams}" for level in waiting)
            yield (
                f"{prefix}The server has {slots} slot{'s' if slots != 1 else ''}: {counts} requests had to wait for a "
                f"free one. parallel={waiting[-1].streams} in the profile's flags gives each stream a slot."
            )
        elif any(level.waited is None for level in curve):
            yield f"{prefix}The server does not say how many slots it has, so waiting requests are not counted."
    if options.starts == 1 and curves:
        yield (
            "One start of each server: ranges are of its repeats, and gains have no interval; "
            "another start may be slower" + ("." if _by_address(info) else " (--starts measures it).")
        )
    rows = [result for item, result in results if result.ok and not item.warmup]
    yield from timing_notes(rows)
    yield from energy_note(rows)
    yield from closing_notes(info, results)


def _by_address(info: RunInfo) -> bool:
    return any(target.url for target in info.plan.targets)


def _knee_sentences(curve: Sequence[StreamsLevel]) -> Iterator[str]:
    if len(curve) < 2:
        return
    rule = f"no larger number measured gives {KNEE_MARGIN:.0%} more".replace("%", " %")
    knee = _knee(curve)
    if knee is None:
        last = _gain(curve[-2], curve[-1])
        grown = f" ({format_ratio(last)} from {curve[-2].streams} to {curve[-1].streams})" if last else ""
        yield f"No knee up to {stream_words(curve[-1].streams)}: {AGGREGATE} still grows{grown}."
        return
    level = next(level for level in curve if level.streams == knee)
    beyond = max((own for own in curve if own.streams > knee), key=lambda own: own.metrics[AGGREGATE].estimate.value)
    gain = _gain(level, beyond)
    together = units.rate(level.metrics[AGGREGATE].estimate.value)
    sentence = f"Knee at {stream_words(knee)}, {together} tok/s together: {rule}"
    if gain:
        sentence += f"; {stream_words(beyond.streams)}: {format_ratio(gain)}"
        if gain.high is not None and gain.high > 1 + KNEE_MARGIN:
            sentence += f", so {gain.n} starts leave open whether the knee is higher"
    if level.slots == knee:
        sentence += f". The server has {knee} slot{'s' if knee != 1 else ''}, so further streams only wait"
    yield f"{sentence}."
