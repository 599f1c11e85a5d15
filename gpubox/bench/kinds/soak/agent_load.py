"""An agent's load: conversations that grow by tool results and start anew, as fast as the server answers."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from gpubox.bench.measured_request import measure_request
from gpubox.bench.model import Item
from gpubox.bench.prompts import CHAT_PROMPTS, filler_text
from gpubox.bench.target_server import TargetServer
from gpubox.errors import GpuboxError
from gpubox.server.other_server import LLAMA

SYSTEM_PROMPT = "You are a coding agent. Work step by step; after each step a tool's output is shown to you."
FILE_WORDS, OUTPUT_WORDS = (300, 900), (40, 300)
TURNS = (5, 12)
ROOM_TOKENS = 256


@dataclass(slots=True)
class LoadConversation:
    """One conversation; its shape depends on its number alone."""

    number: int
    dice: random.Random
    messages: list[dict[str, str]] = field(default_factory=list)
    turns_left: int = 0
    sent: int = 0
    """How many messages the last request held: what follows is new."""
    tokens: int = 0
    """Of the conversation, as the server counted."""


def new_conversation(number: int, seed: int) -> LoadConversation:
    """A task, and the file it is about."""
    dice = random.Random(f"{seed}/{number}")
    task = dice.choice(CHAT_PROMPTS["code"])
    text = f"{task}\n\nThe file:\n{filler_text(dice.randint(*FILE_WORDS), seed=dice.randrange(1 << 30))}"
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]
    return LoadConversation(number, dice, messages, turns_left=dice.randint(*TURNS))


class AgentLoad:
    """Goes on with one conversation over several items of one session."""

    def __init__(self, seed: int, max_tokens: int, context_tokens: int) -> None:
        self._seed, self._max_tokens, self._context = seed, max_tokens, context_tokens
        self._talk: LoadConversation | None = None

    async def run(self, item: Item, target_server: TargetServer, seconds: float) -> dict[str, Any]:
        """Asks for ``seconds``, at least once. Returns every request and reply, and what the server's process holds.

        Raises GpuboxError where the server refuses or is gone.
        """
        began = time.monotonic()
        answered: list[dict[str, Any]] = []
        while True:
            at = time.monotonic() - began
            if answered and at >= seconds:
                break
            answered.append({"at": round(at, 3), **await self._turn(item, target_server)})
        return {"answers": answered, "rss_bytes": _resident(target_server)}

    async def _turn(self, item: Item, target_server: TargetServer) -> dict[str, Any]:
        talk = self._next(item, target_server)
        body = {
            "messages": talk.messages,
            "max_tokens": self._max_tokens,
            "temperature": 0.6,
            "seed": talk.number,
            "cache_prompt": True,
            "ignore_eos": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        self._talk = None  # should the server refuse, the next try is another conversation
        data = await measure_request(target_server, item.id, body)
        reply = data["reply"]
        talk.tokens = sum(reply[name] or 0 for name in ("prompt_tokens", "cached_tokens", "generated_tokens"))
        # Whole requests would be stored again and again: of each the messages that are new, and how many were before.
        request = {**data["request"], "messages": talk.messages[talk.sent :], "messages_before": talk.sent}
        talk.sent = len(talk.messages)
        output = filler_text(talk.dice.randint(*OUTPUT_WORDS), seed=talk.dice.randrange(1 << 30))
        talk.messages = [
            *talk.messages,
            {"role": "assistant", "content": reply["text"] or reply["reasoning"]},
            {"role": "user", "content": f"Output:\n{output}\n\nGo on."},
        ]
        talk.turns_left -= 1
        self._talk = talk
        return {"talk": talk.number, "request": request, "reply": reply}

    def _next(self, item: Item, target_server: TargetServer) -> LoadConversation:
        size = target_server.active.context_tokens
        most = min(self._context, size) if size else self._context
        room = self._max_tokens + 2 * OUTPUT_WORDS[1] + ROOM_TOKENS  # a word of the filler is at most two tokens
        talk = self._talk
        if talk and talk.turns_left > 0 and talk.tokens + room < most:
            return talk
        if talk is None:
            number = 1000 * int(item.values["window"])  # also after a resume: never one that was asked before
            talk = new_conversation(number, self._seed)
        else:
            talk = new_conversation(talk.number + 1, self._seed)
        if size and size < 2 * FILE_WORDS[1] + room:  # a small context takes a small file
            talk.messages[1]["content"] = talk.messages[1]["content"][: max(64, 2 * (size - self._max_tokens - 96))]
        return talk


def _resident(target_server: TargetServer) -> int | None:
    """Bytes of RAM that the server's process and its children hold."""
    if target_server.running is None or target_server.running.process is None or target_server.active.dialect != LLAMA:
        return None
    try:
        process = psutil.Process(target_server.running.process.pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return None


def window_answers(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The answers of a stored window. Raises GpuboxError where there are none."""
    found = data.get("answers")
    if not isinstance(found, list):
        raise GpuboxError("This window of the soak holds no answers.")
    return found
