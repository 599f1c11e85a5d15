"""What is asked in one request, and what came of it so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpubox.agent.protocol import ToolProtocol
from gpubox.agent.settings import AgentSettings
from gpubox.agent.thinking import split_thinking
from gpubox.agent.timing import RequestMeasurements


@dataclass(slots=True)
class RawCall:
    """One native call as it was written."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class ModelReply:
    """What the model has said so far in one request. It is filled as the stream comes, so a broken one has its part."""

    marks: RequestMeasurements
    content: str = ""
    """As sent: thinking that came inline is in it."""
    reasoning: str = ""
    calls: dict[int, RawCall] = field(default_factory=dict)
    finish_reason: str = ""
    answering: str = ""
    """The visible part as it came."""
    circles: bool = False
    """It turned in circles, and the stream was closed."""
    model: str = ""

    @property
    def visible(self) -> str:
        """The content without thinking."""
        return split_thinking(self.content)[1]

    @property
    def thought(self) -> bool:
        """Whether there is thinking, wherever it came."""
        return bool(self.reasoning.strip() or split_thinking(self.content)[0].strip())


def request_body(
    messages: list[dict[str, Any]],
    chosen: ToolProtocol,
    settings: AgentSettings,
    *,
    max_tokens: int,
    thinking: bool | None,
    thinking_budget_tokens: int | None,
) -> dict[str, Any]:
    """The request (llama-server b11434's fields). Only the messages grow from one to the next."""
    body: dict[str, Any] = {
        **settings.sampling,
        "messages": messages,
        "max_tokens": max_tokens,
        "cache_prompt": True,
        "return_progress": True,
        "timings_per_token": True,
        "stream_options": {"include_usage": True},
    }
    if chosen.tools:
        body["tools"] = list(chosen.tools)
        body["parallel_tool_calls"] = chosen.parallel
    if thinking is not None:
        given = settings.sampling.get("chat_template_kwargs")
        body["chat_template_kwargs"] = {**(given if isinstance(given, dict) else {}), "enable_thinking": thinking}
    if thinking_budget_tokens is not None:
        body["thinking_budget_tokens"] = thinking_budget_tokens
    if settings.slot is not None:
        body["id_slot"] = settings.slot
    return body
