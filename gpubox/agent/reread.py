"""Names the part of a prompt that the server read again although it had it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from gpubox.agent.conversation import UNDERSTOOD
from gpubox.storage import json_line

MIN_TOKENS = 16
"""Fewer are the end of a template, or an answer that was made of other tokens than its text is read as."""
EXCERPT_CHARACTERS = 40


def reread_from(before: Mapping[str, Any], after: Mapping[str, Any], cached_tokens: int, prompt_tokens: int) -> str:
    """Where in the request ``after`` the first token stands that was read again; ``before`` is the request before it.

    It is the first part that the two do not share. If they share all, the server has lost its cache: then it is the
    part at the share of tokens that were still cached.
    """
    old, new = _parts(before), _parts(after)
    for index, (was, now) in enumerate(zip(old, new, strict=False)):
        if not now.startswith(was.removesuffix(b"}").removesuffix(b'"')):
            return _name(index, after)
    ends = list(accumulate(map(len, new)))
    place = cached_tokens / prompt_tokens * ends[-1] if prompt_tokens else 0
    return _name(next((index for index, end in enumerate(ends) if end > place), len(ends) - 1), after)


def _parts(body: Mapping[str, Any]) -> list[bytes]:
    """The tools, which most templates put first, then each message."""
    return [json_line(body.get("tools") or []), *map(json_line, body.get("messages", ()))]


def _name(index: int, body: Mapping[str, Any]) -> str:
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    if index == 0:
        return "the tools"
    message = messages[index - 1]
    match message["role"]:
        case "system":
            return "the system prompt"
        case "user" if index < len(messages) and messages[index].get("content") == UNDERSTOOD:
            return "AGENTS.md"
        case "user":
            content = message["content"] if isinstance(message["content"], str) else "an image"
            text = " ".join(content.split())
            excerpt = text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}..."
            return f'message {index}, "{excerpt}"'
        case "tool":
            return f"message {index}, a tool's output"
    return f"message {index}, an answer"
