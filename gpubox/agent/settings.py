"""The settings of one turn: limits, protocol and sampling. The same settings give the same prompt prefix."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ProtocolName = Literal["auto", "native", "fenced", "none"]
"""How the model calls tools: as its chat template does, in a ```python block, not at all. ``auto``: see ``/props``."""

SYSTEM_PROMPT = (
    "You are a careful programmer. "
    "Before you answer a question about code, write it, run it and look at what it printed."
)


class AgentSettings(msgspec.Struct, frozen=True):
    """Budgets of one turn, and the parameters of its requests. At the end of a budget the owner is asked to go on."""

    rounds: int = 30
    """A repeated request does not count."""
    max_tokens: int = 4096
    """Generated tokens of one request, thinking included."""
    max_turn_tokens: int = 65536
    """Generated tokens of one turn."""
    max_turn_seconds: float = 1800.0
    """Wall time of one turn without the time in which the owner thinks."""
    silence_seconds: float = 300.0
    """How long the server may send nothing. During prefill it sends progress."""
    max_output_characters: int = 8000
    """How much of one tool output the model reads: head and tail, half of it each."""
    protocol: ProtocolName = "auto"
    thinking: bool | None = None
    """On, off, or as the chat template does by itself."""
    thinking_budget_tokens: int | None = None
    """Thinking ends after so many tokens."""
    sampling: dict[str, Any] = {}
    """Fields of the request with llama-server's names (``temperature``, ``top_k``, ``seed`` ...)."""
    system_prompt: str = SYSTEM_PROMPT
