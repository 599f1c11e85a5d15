"""The values of a streamed completion, and decoded JSON -> Chunk. Pure.

Fields of OpenAI-compatible servers, llama-server's (b11434) on top. A missing field is empty or ``None``; what makes no
sense is the same as missing, never raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of one native tool call. ``index`` says of which; id and name come once, arguments in pieces."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class StreamedPromptProgress:
    """``prompt_progress``: prompt tokens, read in ``seconds`` so far. ``processed`` counts the cached ones too."""

    total: int
    cached: int
    processed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    """``timings`` (tools/server/server-common.cpp): the server's own figures of one request."""

    cached_tokens: int
    prompt_tokens: int
    """Prompt tokens that were read, the cached ones not among them."""
    prompt_seconds: float
    generated_tokens: int
    generation_seconds: float
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None

    @property
    def tg_tokens_per_second(self) -> float | None:
        """As the server computes it; ``None`` before the second token."""
        return self.generated_tokens / self.generation_seconds if self.generation_seconds > 1e-5 else None

    @property
    def pp_tokens_per_second(self) -> float | None:
        """As the server computes it; ``None`` where nothing was read."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_tokens and self.prompt_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Usage:
    """``usage``: what any OpenAI-compatible server counts."""

    prompt_tokens: int | None
    generated_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of the stream."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    finish_reason: str = ""
    progress: StreamedPromptProgress | None = None
    timings: Timings | None = None
    usage: Usage | None = None
    model: str = ""
    error: str = ""
    """What went wrong at the server in the middle of the answer."""
    done: bool = False
    """``[DONE]``: nothing follows."""


def chunk_of(values: dict[str, Any]) -> Chunk:
    """The Chunk of one decoded object: chat deltas, plain completions and errors. Never raises."""
    choices = values.get("choices")
    choice = _dict(choices[0]) if isinstance(choices, list) and choices else {}
    delta = _dict(choice.get("delta")) or _dict(choice.get("message"))
    calls = delta.get("tool_calls")
    return Chunk(
        text=plain_text(delta.get("content") if delta else choice.get("text")),
        reasoning=plain_text(delta.get("reasoning_content") or delta.get("reasoning")),
        calls=tuple(_call(i, _dict(item)) for i, item in enumerate(calls)) if isinstance(calls, list) else (),
        finish_reason=_text(choice.get("finish_reason")),
        progress=_progress(values.get("prompt_progress")),
        timings=timings_of(values.get("timings")),
        usage=_usage(values.get("usage")),
        model=_text(values.get("model")),
        error=_error(values.get("error")),
    )


def plain_text(content: Any) -> str:
    """``content`` as text: a string, a list of parts with ``text``, one such part; anything else is empty."""
    if isinstance(content, list):
        return "".join(plain_text(part) for part in content[:1000])
    if isinstance(content, dict):
        content = content.get("text")
    return _text(content)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode(errors="replace").decode()  # lone surrogates cannot be written


def _call(position: int, item: dict[str, Any]) -> CallDelta:
    function = _dict(item.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # some servers send them decoded
        arguments = msgspec.json.encode(arguments).decode()
    index = _whole(item.get("index"))
    return CallDelta(
        position if index is None else index, _text(item.get("id")), _text(function.get("name")), _text(arguments)
    )


def _progress(item: Any) -> StreamedPromptProgress | None:
    item = _dict(item)
    total = _whole(item.get("total"))
    if total is None:
        return None
    return StreamedPromptProgress(
        total, _whole(item.get("cache")) or 0, _whole(item.get("processed")) or 0, (_number(item.get("time_ms")) / 1000)
    )


def timings_of(item: Any) -> Timings | None:
    """The Timings of a ``timings`` object; ``None`` where there is none."""
    item = _dict(item)
    if "predicted_n" not in item and "prompt_n" not in item:
        return None
    return Timings(
        cached_tokens=_whole(item.get("cache_n")) or 0,
        prompt_tokens=_whole(item.get("prompt_n")) or 0,
        prompt_seconds=_number(item.get("prompt_ms")) / 1000,
        generated_tokens=_whole(item.get("predicted_n")) or 0,
        generation_seconds=_number(item.get("predicted_ms")) / 1000,
        draft_tokens=_whole(item.get("draft_n")),
        draft_tokens_accepted=_whole(item.get("draft_n_accepted")),
    )


def _usage(item: Any) -> Usage | None:
    item = _dict(item)
    if not item:
        return None
    details = _dict(item.get("prompt_tokens_details"))
    return Usage(
        _whole(item.get("prompt_tokens")), _whole(item.get("completion_tokens")), _whole(details.get("cached_tokens"))
    )


def _error(item: Any) -> str:
    if isinstance(item, dict):
        return _text(item.get("message"))[:300] or "an error without a message"
    return _text(item)[:300]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
    return float(value) if good else 0.0
