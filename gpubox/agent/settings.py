"""What one turn may do: limits, protocol and sampling. Frozen; the same settings make the same prompt prefix."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ProtocolName = Literal["auto", "native", "fenced", "none"]
"""How tools are called: the template's own way, a ```python block, not at all; ``auto``: what ``/props`` says."""

SYSTEM_PROMPT = (
    "You are a careful programmer. You work on the owner's own machine. "
    "Before you answer a question about code, write it, run it and look at what it printed."
)


class AgentSettings(msgspec.Struct, frozen=True):
    """Limits of one turn, and how the model is asked."""

    rounds: int = 5
    """Requests to the model in one turn, retries of a broken connection not counted."""
    max_tokens: int = 4096
    """Generated tokens of one round, thinking included."""
    turn_tokens: int = 16384
    """Generated tokens of one turn."""
    wall_seconds: float = 900.0
    """Of one turn, the owner's approvals not counted."""
    silence_seconds: float = 300.0
    """Without any sign of life from the server: reading a long prompt shows progress, so it is none."""
    output_characters: int = 8000
    """Of one tool's output that the model reads: half its head, half its tail."""
    protocol: ProtocolName = "auto"
    thinking: bool | None = None
    """On, off, or as the template does by itself."""
    thinking_budget_tokens: int | None = None
    """Thinking is closed after so many tokens (``thinking_budget_tokens``)."""
    sampling: dict[str, Any] = {}
    """Fields of the request as llama-server names them (``temperature``, ``top_k``, ``seed`` ...)."""
    system_prompt: str = SYSTEM_PROMPT
    slot: int | None = None
    """The server's slot to stay in, so that its KV cache is this conversation's; ``None``: the server chooses."""
