"""``speed --streams``: several requests at the same moment, as agents or several people send them.

An item is one repeat with N streams: N requests, sent at once, each with a prompt of its own, no shared prefix and the
same number of tokens. Aggregate tg is the tokens of all streams after the very first one, over the time from that first
token to the last token of all; so it includes the time that the server spends on reading other prompts meanwhile. tg
and TTFT of a stream are those of its reply (see ``measured_request``); a stream that waits for a free slot shows the
wait in its TTFT.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpubox.bench.energy import energy_values
from gpubox.bench.events import Note
from gpubox.bench.kinds.speed.workloads import SpeedOptions
from gpubox.bench.measured_request import MeasuredReply, measure_request, stored_reply
from gpubox.bench.model import Doubt, Item, RawRecord, Result
from gpubox.bench.prompts import CHAT_PROMPTS
from gpubox.bench.questions import TEMPLATE_TOKENS, no_speed_reason, text_at_depth, uncached_text, unmet_conditions
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
