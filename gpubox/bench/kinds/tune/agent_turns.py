"""The load of the goal ``agent``: a few agents at once that share a long system prompt, each for a few turns.

All streams begin together. Each sends the shared prefix and a file, gets an answer of a fixed length, appends a tool's
output and goes on; the cache is used as an agent would. The rate is turns per minute: all turns over the time from the
first request to the last token. It pays for reading the prefix (once per slot), for new text at depth, for generation
beside other streams, and for waiting if there are fewer slots than streams.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from gpubox.bench.measured_request import measure_request, stored_reply
from gpubox.bench.model import Item, RawRecord, Result
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.bench.questions import context_filler

if TYPE_CHECKING:
    from gpubox.bench.kinds.tune.protocol import Protocol
    from gpubox.bench.target_server import TargetServer

FILE_WORDS, OUTPUT_WORDS = 150, 60
_TOKENS_PER_WORD = 2
"""At most, of filler text."""
_TEMPLATE_TOKENS = 256


def needed_context(load: Protocol) -> int:
    """Tokens of the longest conversation, at most."""
    words = FILE_WORDS + OUTPUT_WORDS * load.turns
    return load.context_tokens + _TOKENS_PER_WORD * words + load.turns * load.max_tokens + _TEMPLATE_TOKENS


async def run_load(load: Protocol, item: Item, target_server: TargetServer) -> dict[str, Any]:
    """Puts the load on the active target: every turn and the time of all. Raises GpuboxError as ``measure_request``."""
    prefix = await context_filler(target_server, load.context_tokens)
    began = time.perf_counter()
    streams = [asyncio.create_task(_stream(number, prefix, load, item, target_server, began))
               for number in range(load.streams)]  # fmt: skip
    try:
        turns = [turn for own in await asyncio.gather(*streams) for turn in own]
    finally:
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return {"turns": turns, "wall_seconds": time.perf_counter() - began}


async def _stream(
    number: int, prefix: str, load: Protocol, item: Item, target_server: TargetServer, began: float
) -> list[dict[str, Any]]:
    """The turns of one agent. Its texts depend on its number alone, so every start gets the same load."""
    tasks = CHAT_PROMPTS["code"]
    task = f"{tasks[number % len(tasks)]}\n\nThe file:\n{filler_text(FILE_WORDS, seed=1000 + number)}"
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": task}]
    turns = []
    for turn in range(load.turns):
        at = time.perf_counter() - began
        body = {
            "messages": messages,
            "max_tokens": load.max_tokens,
            "temperature": 0.0,
            "top_k": 1,
            "seed": 1,
            "cache_prompt": True,
            "ignore_eos": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        reply = (await measure_request(target_server, item.id, body))["reply"]
        turns.append({"stream": number, "turn": turn, "at": round(at, 3), "reply": reply})
        output = filler_text(OUTPUT_WORDS, seed=2000 + 100 * number + turn)
        messages = [
            *messages,
            {"role": "assistant", "content": reply["text"] or reply["reasoning"]},
            {"role": "user", "content": f"Output:\n{output}\n\nGo on."},
        ]
    return turns


def load_result(item: Item, raw: RawRecord) -> Result:
    """The result of one load: turns per minute, and medians of its turns."""
    replies = [stored_reply(turn) for turn in raw.data["turns"]]
    seconds = float(raw.data["wall_seconds"])
    if not replies or seconds <= 0 or any(not reply.generated_tokens for reply in replies):
        return Result(item.id, error="a turn had no answer")
    values: dict[str, Any] = {
        "agent": 60 * len(replies) / seconds,
        "turn_seconds": statistics.median(reply.wall_seconds for reply in replies),
        "generated_tokens": sum(reply.generated_tokens or 0 for reply in replies),
        "cached_tokens": sum(reply.cached_tokens or 0 for reply in replies),
        "prompt_tokens": sum(reply.prompt_tokens or 0 for reply in replies),
    }
    for name in ("ttft_seconds", "tg", "pp"):
        known = [value for reply in replies if (value := getattr(reply, name)) is not None]
        values[name] = statistics.median(known) if known else None
    return Result(item.id, values)
