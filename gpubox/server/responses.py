"""What one llama-server answered, as values. Apart from the client: who only holds them needs no httpx."""

from __future__ import annotations

from dataclasses import dataclass

DEFERRED, PROCESSING = "requests_deferred", "requests_processing"
"""Requests that wait for a slot, and those that have one: the two gauges that no scrape resets."""


@dataclass(frozen=True, slots=True)
class Health:
    """What ``/health`` answered: ``ok``, ``loading``, ``unreachable`` or ``error``, and why."""

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
    """Prompt tokens read for this request so far, without the reused ones."""
    predict_limit: int | None = None
    """The request's ``n_predict``; -1 or ``None``: no limit."""

    def __str__(self) -> str:
        if not self.generated_tokens:
            return f"slot {self.index} is reading a prompt ({self.context_used_tokens or 0:,} tokens so far)"
        return f"slot {self.index} is answering ({self.generated_tokens:,} tokens so far)"
