"""Needle retrieval: one sentence with a number in a long filler text, and a question for the number."""

from __future__ import annotations

import random
import re
from typing import Any

from gpubox.bench.measured_request import measure_request, stored_reply
from gpubox.bench.model import Item, RawRecord, Result
from gpubox.bench.questions import TEMPLATE_TOKENS, context_filler, uncached_text
from gpubox.bench.target_server import TargetServer

ANSWER_TOKENS = 128
PLACES = ("lighthouse", "bakery", "observatory", "windmill", "museum", "ferry", "greenhouse", "clock tower")


def needed_context(item: Item) -> int:
    """Tokens of the question with its text, and of the answer."""
    return int(item.values["tokens"]) + ANSWER_TOKENS + TEMPLATE_TOKENS


def needle_of(item: Item) -> tuple[str, str]:
    """The place and its number; the same for every target."""
    values = item.values
    dice = random.Random(f"needle {values['tokens']} {values['depth']} {values['number']}")
    return dice.choice(PLACES), str(dice.randrange(100_000, 1_000_000))


def haystack(text: str, item: Item) -> str:
    """``text`` with the needle after the sentence that ends at its depth."""
    place, number = needle_of(item)
    sentences = re.split(r"(?<=\.) ", text)
    at = round(len(sentences) * item.values["depth"] / 100)
    return " ".join([*sentences[:at], f"The code of the {place} is {number}.", *sentences[at:]])


async def execute(item: Item, target_server: TargetServer, fillers: dict[int, str]) -> dict[str, Any]:
    """Asks for the number. ``fillers`` caches the filler text by length. Raises as ``measure_request``."""
    tokens = item.values["tokens"]
    if tokens not in fillers:
        fillers[tokens] = await context_filler(target_server, tokens)
    place, _ = needle_of(item)
    text = f"{haystack(fillers[tokens], item)}\n\nWhat is the code of the {place}? Answer with the number only."
    body = {
        "messages": [{"role": "user", "content": uncached_text(text, item, target_server)}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0.0,
        "top_k": 1,
        "seed": 1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return await measure_request(target_server, item.id, body)


def score(item: Item, raw: RawRecord) -> Result:
    """Whether the answer has the number."""
    text = stored_reply(raw.data).text
    numbers = re.findall(r"\d+", text.replace(",", ""))
    return Result(item.id, {"retrieved": needle_of(item)[1] in numbers, "answer": text.strip()[:80]})
