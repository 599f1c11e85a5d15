"""``soak``: minutes of an agent's load, split into windows. A crash costs at most one window.

The load: conversations that grow by tool output and start anew, as fast as the server answers.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from gpubox import units
from gpubox.bench.benchmark import Benchmark, check_items
from gpubox.bench.kind import PlanContext
from gpubox.bench.kinds.shared import convert_options, id_prefix
from gpubox.bench.kinds.soak.soak_report import summarise
from gpubox.bench.measured_request import measure_request, stored_reply
from gpubox.bench.model import Item, Plan, RawRecord, Result, RunInfo, Sample, ScoredItems
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.bench.report.model import Report
from gpubox.bench.target_server import TargetServer
from gpubox.errors import UsageError
from gpubox.server.other_server import LLAMA

SYSTEM_PROMPT = "You are a coding agent. Work step by step; after each step a tool's output is shown to you."
FILE_WORDS, OUTPUT_WORDS = (300, 900), (40, 300)
ROUNDS = (5, 12)
TEMPLATE_TOKENS = 256


@dataclass(slots=True)
class LoadConversation:
    """One conversation. Its shape depends on its number and the plan's seed alone."""

    number: int
    dice: random.Random
    messages: list[dict[str, str]] = field(default_factory=list)
    rounds_left: int = 0
    stored_messages: int = 0
    """How many of its messages are in the raw records already."""
    tokens: int = 0
    """Of the whole conversation, as the server counted."""


def new_conversation(number: int, seed: int) -> LoadConversation:
    """A task and the file it is about."""
    dice = random.Random(f"{seed}/{number}")
    task = dice.choice(CHAT_PROMPTS["code"])
    text = f"{task}\n\nThe file:\n{filler_text(dice.randint(*FILE_WORDS), seed=dice.randrange(1 << 30))}"
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]
    return LoadConversation(number, dice, messages, rounds_left=dice.randint(*ROUNDS))


class AgentLoad:
    """Puts the load on one target. A conversation may last over several items."""

    def __init__(self, seed: int, max_tokens: int, context_tokens: int) -> None:
        self._seed, self._max_tokens, self._context_tokens = seed, max_tokens, context_tokens
        self._conversation: LoadConversation | None = None

    async def run(self, item: Item, target_server: TargetServer, seconds: float) -> dict[str, Any]:
        """Asks for ``seconds``, at least once. Returns every request and reply, and the server's resident memory.

        Raises GpuboxError if the server refuses or is gone.
        """
        began = time.monotonic()
        answers: list[dict[str, Any]] = []
        while (at := time.monotonic() - began) < seconds or not answers:
            answers.append({"at": round(at, 3), **await self._ask(item, target_server)})
        return {"answers": answers, "rss_bytes": _resident_bytes(target_server)}

    async def _ask(self, item: Item, target_server: TargetServer) -> dict[str, Any]:
        conversation = self._next_conversation(item, target_server)
        body = {
            "messages": conversation.messages,
            "max_tokens": self._max_tokens,
            "temperature": 0.6,
            "seed": conversation.number,
            "cache_prompt": True,
            "ignore_eos": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        self._conversation = None  # if the server refuses, the next attempt starts another conversation
        data = await measure_request(target_server, item.id, body)
        reply = data["reply"]
        conversation.tokens = sum(reply[name] or 0 for name in ("prompt_tokens", "cached_tokens", "generated_tokens"))
        # Only the new messages are stored: each request repeats all earlier ones.
        stored = conversation.stored_messages
        request = {**data["request"], "messages": conversation.messages[stored:], "messages_before": stored}
        conversation.stored_messages = len(conversation.messages)
        output = filler_text(conversation.dice.randint(*OUTPUT_WORDS), seed=conversation.dice.randrange(1 << 30))
        conversation.messages = [
            *conversation.messages,
            {"role": "assistant", "content": reply["text"] or reply["reasoning"]},
            {"role": "user", "content": f"Output:\n{output}\n\nGo on."},
        ]
        conversation.rounds_left -= 1
        self._conversation = conversation
        return {"conversation": conversation.number, "request": request, "reply": reply}

    def _next_conversation(self, item: Item, target_server: TargetServer) -> LoadConversation:
        slot_tokens = target_server.active.context_tokens
        limit = min(self._context_tokens, slot_tokens or self._context_tokens)
        needed = self._max_tokens + 2 * OUTPUT_WORDS[1] + TEMPLATE_TOKENS  # a filler word is at most two tokens
        current = self._conversation
        if current and current.rounds_left > 0 and current.tokens + needed < limit:
            return current
        # After a resume the window's number gives a conversation that was not asked before.
        number = current.number + 1 if current else 1000 * int(item.values["window"])
        conversation = new_conversation(number, self._seed)
        if slot_tokens and slot_tokens < 2 * FILE_WORDS[1] + needed:  # the file must fit a small context
            characters = max(64, 2 * (slot_tokens - self._max_tokens - 96))
            conversation.messages[1]["content"] = conversation.messages[1]["content"][:characters]
        return conversation


def _resident_bytes(target_server: TargetServer) -> int | None:
    """RAM of the server's process and its children."""
    running = target_server.running
    if running is None or running.process is None or target_server.active.dialect != LLAMA:
        return None
    try:
        process = psutil.Process(running.process.pid)
        return sum(member.memory_info().rss for member in (process, *process.children(recursive=True)))
    except psutil.Error:
        return None


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
        return f"writes {units.rate(rate)} tok/s" + (f" at {temperature} °C" if temperature is not None else "")


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
