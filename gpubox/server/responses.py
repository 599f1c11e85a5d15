"""Values that a llama-server answers with, and helpers to read unchecked JSON. Needs no httpx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFERRED, PROCESSING = "requests_deferred", "requests_processing"
"""Requests that wait for a slot, and requests that have one: the two gauges of ``/metrics`` that no scrape resets."""

MAX_COUNT = 2**53
"""From here on a JSON number is not exact, and nothing is so many."""

QUIET_SECONDS = 1.1
"""A llama-server (build 11434, ``recv_with_timeout`` in server-queue.cpp) looks whether the client of a request without
a stream has gone once it has answered nobody for a second. So nobody asks it after such a client has gone."""
LEFT_NAME = "left"
"""The file in the gateway's folder that the gateway touches then."""


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of ``/health``: ``ok``, ``loading``, ``unreachable`` or ``error``, and why."""

    status: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """One item of ``/slots`` (tools/server/server-context.cpp)."""

    index: int
    busy: bool
    context_size_tokens: int | None
    context_used_tokens: int | None
    generated_tokens: int | None
    task: int | None = None
    processed_tokens: int | None = None
    """Prompt tokens of this request processed so far, without the reused ones."""
    predict_limit: int | None = None
    """The request's ``n_predict``; -1 or ``None``: no limit."""

    def __str__(self) -> str:
        if not self.generated_tokens:
            used = self.context_used_tokens
            so_far = "" if used is None else f" ({used:,} tokens so far)"
            return f"slot {self.index} is reading a prompt{so_far}"
        return f"slot {self.index} is answering ({self.generated_tokens:,} tokens so far)"


def json_object(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def context_size(props: object) -> int | None:
    """Tokens of one slot's context, from the answer of ``/props``; ``None`` if it does not say."""
    return json_count(json_object(json_object(props).get("default_generation_settings")).get("n_ctx")) or None


def json_integer(value: Any) -> int | None:
    """``value`` if it is an integer (JSON's true and false are none), else ``None``."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def json_count(value: Any) -> int | None:
    """``value`` if it is an integer that can count something, else ``None``: a server can answer anything."""
    number = json_integer(value)
    return number if number is not None and 0 <= number < MAX_COUNT else None


def read_slots(items: Any) -> list[Slot] | None:
    """The slots in the answer to ``/slots``; ``None`` if it says nothing about who is busy."""
    if not isinstance(items, list):
        return None
    slots = [_slot(item) for item in items if isinstance(item, dict) and item.keys() & {"is_processing", "state"}]
    return slots if slots or not items else None


def _slot(item: dict[str, Any]) -> Slot:
    next_token = item.get("next_token")
    next_token = next_token[0] if isinstance(next_token, list) and next_token else next_token
    params = json_object(item.get("params"))
    return Slot(
        index=json_integer(item.get("id")) or 0,
        busy=bool(item.get("is_processing", item.get("state"))),  # ik_llama.cpp's state: 0 is idle
        context_size_tokens=json_count(item.get("n_ctx")),
        context_used_tokens=json_count(item.get("n_prompt_tokens")),
        generated_tokens=json_count(json_object(next_token).get("n_decoded")),
        task=json_integer(item.get("id_task")),
        processed_tokens=json_count(item.get("n_prompt_tokens_processed")),
        predict_limit=json_integer(params.get("n_predict", params.get("max_tokens"))),
    )
