"""What a request's prompt begins with: its system prompt and tools, which agents share, and its first message. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from gpubox.storage import DECODE_ERRORS

MAX_BYTES = 4 * 1024 * 1024
SMALL_BYTES = 1024
"""A request with less to say (a title) is no conversation: it is read in less time than it takes to move it."""
PATHS = ("/v1/chat/completions", "/chat/completions", "/v1/messages", "/v1/responses")
_SYSTEM_ROLES = ("system", "developer")
_TEMPLATE_FIELDS = (
    "tools", "tool_choice", "parallel_tool_calls", "response_format", "json_schema", "grammar", "chat_template_kwargs",
    "reasoning_effort", "reasoning_format", "add_generation_prompt",
)  # fmt: skip
"""The fields of a request that a chat template may write into the prompt (common_chat_params of build 11434)."""
_BILLING = re.compile(r"\A(x-anthropic-billing-header:.*?cch=).{5}(?=;)", re.DOTALL)
"""A stamp of Claude Code that changes with each request: llama-server makes it always the same."""
_CACHE_MARK = re.compile(rb',?\s*"cache_control"\s*:\s*\{[^{}]*\}')
"""Anthropic's clients move these marks to the newest message."""
_USER_TEXTS = ("Hello", "7 of them")
"""Two texts that begin differently: where their prompts part, the shared prefix ends."""


class _Role(msgspec.Struct):
    role: str = ""


class _Metadata(msgspec.Struct):
    user_id: str = ""
    """Claude Code puts the session into it."""


class _Typed(msgspec.Struct):
    type: str = ""
    text: str = ""


class _AnthropicTool(msgspec.Struct):
    name: str = ""
    description: str = ""
    input_schema: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class PromptHead:
    """What a request's prompt begins with, before anything that a user says."""

    key: str
    """Equal for the requests whose prompts begin alike."""
    conversation: str
    """The same for all requests of one conversation."""
    is_first: bool
    """Whether no answer has been given in this conversation."""
    fields: dict[str, msgspec.Raw]
    system: tuple[bytes, ...]
    """The leading system messages, as they were sent."""
    size: int
    """Its bytes."""

    def probes(self) -> tuple[bytes, bytes]:
        """Two bodies for /apply-template, which have only this head in common."""
        first, second = ([*map(msgspec.Raw, self.system), {"role": "user", "content": text}] for text in _USER_TEXTS)
        return (
            msgspec.json.encode({**self.fields, "messages": first}),
            msgspec.json.encode({**self.fields, "messages": second}),
        )


def read_prompt_head(path: str, header: Callable[[str], str], body: bytes, client: str = "") -> PromptHead | None:
    """The head of a chat request, with its conversation; None if it is small, no chat, or cannot be read.

    A conversation is known by its session, as the client names it, and by the messages up to the first answer: titles
    and other agents of a session have a system prompt of their own.
    """
    if path not in PATHS or not SMALL_BYTES <= len(body) <= MAX_BYTES:
        return None
    is_anthropic = path == "/v1/messages"
    try:
        values = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        if "id_slot" in values or bytes(values.get("cache_prompt", b"")) == b"false":
            return None  # the client decides by itself
        messages = msgspec.json.decode(values.get("messages", values.get("input", b"[]")), type=list[msgspec.Raw])
        roles = [msgspec.json.decode(message, type=_Role).role for message in messages]
        if is_anthropic:
            system, fields = _of_anthropic(values)
        else:
            system = tuple(map(bytes, messages[: len([*takewhile(_SYSTEM_ROLES.__contains__, roles)])]))
            fields = {name: values[name] for name in _TEMPLATE_FIELDS if name in values}
        metadata = msgspec.json.decode(values.get("metadata", b"{}"), type=_Metadata)
    except DECODE_ERRORS:
        return None  # the server says what is wrong with it
    begin = 0 if is_anthropic else len(system)
    system_bytes = sum(map(len, system))
    if not roles[begin:] or sum(map(len, messages[begin:])) + system_bytes < SMALL_BYTES:
        return None
    is_first = all(role == "user" for role in roles[begin:]) and "messages" in values
    session = header("x-session-id") or header("x-session-affinity") or metadata.user_id
    opening = _CACHE_MARK.sub(b"", messages[begin])
    return PromptHead(
        key=_digest(*system, *(name.encode() + b"=" + bytes(value) for name, value in fields.items())),
        conversation=_digest(client.encode(), session.encode(), *system, opening),
        is_first=is_first,
        fields=fields,
        system=system,
        size=system_bytes + sum(len(bytes(value)) for value in fields.values()),
    )


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).hexdigest()[:32]


def _of_anthropic(values: dict[str, msgspec.Raw]) -> tuple[tuple[bytes, ...], dict[str, msgspec.Raw]]:
    """System message and fields as llama-server makes them of a request to /v1/messages.

    As server_chat_convert_anthropic_to_oai in tools/server/server-chat.cpp of build 11434. Raises MsgspecError.
    """
    fields = {name: values[name] for name in ("chat_template_kwargs",) if name in values}
    if "tools" in values:
        tools = msgspec.json.decode(values["tools"], type=list[_AnthropicTool])
        functions = (
            {"name": each.name, "description": each.description, "parameters": each.input_schema} for each in tools
        )
        fields["tools"] = msgspec.Raw(
            msgspec.json.encode([{"type": "function", "function": each} for each in functions])
        )
    if "tool_choice" in values:
        kind = msgspec.json.decode(values["tool_choice"], type=_Typed).type
        if choice := {"auto": b'"auto"', "any": b'"required"', "tool": b'"required"'}.get(kind):
            fields["tool_choice"] = msgspec.Raw(choice)
    if "system" not in values:
        return (), fields
    blocks = msgspec.json.decode(values["system"], type=str | list[_Typed])
    texts = [blocks] if isinstance(blocks, str) else [block.text for block in blocks if block.type == "text"]
    text = "".join(_BILLING.sub(r"\1fffff", text) for text in texts)
    return (msgspec.json.encode({"role": "system", "content": text}),), fields
