"""An agent's load: conversations that grow by tool output and start anew, as fast as the server answers."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from gpubox.bench.measured_request import measure_request
from gpubox.bench.model import Item
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.bench.target_server import TargetServer
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
