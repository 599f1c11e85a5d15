"""The slots of one run of a server: what they hold, the gateway's own requests to them, and which one a state goes to.

The clients' requests are never changed. llama-server chooses the slot that holds most of a prompt by itself, and
compares its tokens before it uses them, so a wrong guess here costs time and never text. The gateway does not name a
slot (``id_slot``): build 11434 may load another prompt into a slot that is busy, whose answer then goes on wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpubox.clock import utc_now
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.prefix import PromptHead
from gpubox.gateway.reply_observer import AnswerTokens, tokens_of
from gpubox.gateway.upstream import ask_server
from gpubox.sequences import shared_length
from gpubox.server.kept_kv import KeptKv
from gpubox.server.responses import Slot, read_slots
from gpubox.server.state import RunningServer
from gpubox.storage import read_json

OWN_NAME = "gpubox"
"""The client of the gateway's own requests in the ledger."""
READ_SECONDS = 180.0
PATIENCE_SECONDS = 2.0
"""A server that reads a prompt answers between its batches; a request waits no longer for a look at the slots."""
EMPTY_TOKENS = 64
"""A slot with fewer tokens holds no conversation: gpubox's own probe, or what a cleared slot shows."""
MARGIN_TOKENS = 4
"""Left out at the end of a head: they could become other tokens together with the text behind them."""


class NotKept(Exception):
    """The request goes on as it is. The text is a sentence for the owner."""


@dataclass(slots=True)
class LaunchSlots:
    """One run of one server."""

    running: RunningServer
    api_key: str | None
    kv: KeptKv
    record: Callable[[FinishedRequest], None]
    """Gets the gateway's own requests, so that the ledger has every token that a server has read."""
    off: str = ""
    """Why its slots are left alone."""
    sent: int = 0
    """How many requests it was sent."""
    last_task: int = -1
    """The newest task that was seen in a slot."""
    has_ram_cache: bool = True
    heads: dict[str, set[int]] = field(default_factory=dict)
    """Head -> the requests that begin with it and are not over."""
    readings: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Head -> its reading; one that is over and stays here was for nothing."""
    placing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while states are moved."""
    filled: dict[int, int] = field(default_factory=dict)
    """Slot -> its last task when a state was restored into it: /slots does not show that before its next task."""

    @property
    def id(self) -> str:
        return self.running.launch_id

    async def slots(self) -> dict[int, Slot]:
        """Its slots now, by id. Raises as ``post``, and NotKept without them."""
        url = self.running.launch.base_url
        status, body = await ask_server(url, self.api_key, "GET", "/slots", seconds=PATIENCE_SECONDS)
        if status != 200:
            self.off = f"the server answers /slots with HTTP {status}"
            raise NotKept(f"KV caches are not kept: {self.off}")
        slots = {slot.index: slot for slot in read_slots(read_json(body)) or ()}
        self.last_task = max([self.last_task, *(task_of(slot) for slot in slots.values())])
        return slots

    async def post(self, path: str, values: object) -> dict[str, Any]:
        """Raises UpstreamFailed, TimeoutError, and ValueError if the server refuses."""
        body = values if isinstance(values, bytes) else msgspec.json.encode(values)
        url = self.running.launch.base_url
        status, answer = await ask_server(url, self.api_key, "POST", path, body, seconds=READ_SECONDS)
        if status != 200:
            raise ValueError(f"the server refuses {path} (HTTP {status})")
        return msgspec.json.decode(answer, type=dict[str, Any])

    async def read(self, path: str, values: object) -> tuple[int, int]:
        """Has the server read a prompt. Returns its tokens and its slot, which only /completion names (build 11434).

        Raises as ``post``.
        """
        began = time.monotonic()
        answer, profile = await self.post(path, values), self.running.launch.profile
        tokens = tokens_of(answer) or AnswerTokens()
        self.record(
            FinishedRequest(
                utc_now(), OWN_NAME, profile, path, 200, "done", seconds=round(time.monotonic() - began, 6),
                prompt_tokens=tokens.prompt_tokens, cached_tokens=tokens.cached_tokens,
                generated_tokens=tokens.generated_tokens,
            )
        )  # fmt: skip
        return tokens.prompt_tokens or 0, answer.get("id_slot", -1)

    async def tokens_of(self, head: PromptHead) -> list[int]:
        """The tokens with which the prompts of all requests with this head begin. Raises as ``post``."""

        async def tokens_of(probe: bytes) -> list[int]:
            prompt = (await self.post("/apply-template", probe)).get("prompt")
            values = {"content": prompt, "add_special": True, "parse_special": True}
            return msgspec.convert((await self.post("/tokenize", values)).get("tokens"), list[int])

        first, second = await asyncio.gather(*map(tokens_of, head.probes()))
        return first[: max(0, shared_length(first, second) - MARGIN_TOKENS)]


def choose_slot(slots: Sequence[Slot], filled: Mapping[int, int]) -> Slot | None:
    """The idle slot that a state goes to: an empty one, else the one that was used longest ago. None: all are busy.

    ``filled``: slot -> its last task when a state was restored into it, which /slots does not show.
    """

    def rank(slot: Slot) -> tuple[bool, bool, int, int]:
        is_filled = filled.get(slot.index) == task_of(slot)
        return is_filled or not is_empty(slot), is_filled, task_of(slot), slot.index

    return min((slot for slot in slots if not slot.busy), key=rank, default=None)


def task_of(slot: Slot) -> int:
    """Its last task, which counts up with the tasks of the server; -1: none yet."""
    return -1 if slot.task is None else slot.task


def is_empty(slot: Slot) -> bool:
    """Whether an idle slot holds no conversation, as far as /slots shows."""
    return slot.task is None if slot.context_used_tokens is None else slot.context_used_tokens < EMPTY_TOKENS
