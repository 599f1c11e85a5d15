"""The lines of a chat file. Each is one JSON object; ``record`` names it. What is not known is skipped, not refused.

A file is Opened, then Chosen, Asked, Happened and Rewound in the order things happened. A turn is an Asked and the
Happened lines that follow it; its ``parent`` is the turn it goes on from, so that a retry or a branch loses nothing.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from gpubox.agent.settings import AgentSettings, ProtocolName

FORMAT = "gpubox-chat"
VERSION = 1

Approvals = Literal["ask", "workspace", "never"]
"""Writes in the workspace: the owner is asked for each, they are allowed, they are refused."""


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class ChatRecord(msgspec.Struct, frozen=True, tag_field="record", tag=_tag, omit_defaults=True):
    """One line."""


class ChatHeader(ChatRecord, frozen=True):
    """The first line."""

    format: str
    version: int
    gpubox: str
    at: str


class ChatSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was changed for this chat. ``None`` and empty: as the profile and gpubox have it."""

    system_prompt: str | None = None
    thinking: bool | None = None
    thinking_budget_tokens: int | None = None
    sampling: dict[str, Any] = {}
    """Fields of the request as llama-server names them."""
    rounds: int | None = None
    max_tokens: int | None = None
    protocol: ProtocolName | None = None
    tools: bool = True
    workdir: str = ""
    """The workspace; empty: none, a program runs in a folder of its own."""
    approvals: Approvals = "ask"

    def settings(self, profile_system: str) -> AgentSettings:
        """The settings of a turn, where ``profile_system`` is the profile's own system prompt or empty."""
        base = AgentSettings()
        system = self.system_prompt if self.system_prompt is not None else profile_system or base.system_prompt
        return AgentSettings(
            rounds=self.rounds or base.rounds,
            max_tokens=self.max_tokens or base.max_tokens,
            protocol=(self.protocol or "auto") if self.tools else "none",
            thinking=self.thinking,
            thinking_budget_tokens=self.thinking_budget_tokens,
            sampling=dict(self.sampling),
            system_prompt=system,
        )


class SettingsChanged(ChatRecord, frozen=True):
    """From here on the chat has these settings."""

    settings: ChatSettings
    at: str


class TurnHeader(ChatRecord, frozen=True):
    """A turn begins: what the owner said, and who is about to answer."""

    turn: str
    parent: str
    """The turn before it; empty for a first one."""
    at: str
    text: str
    profile: str = ""
    build: str = ""
    model: str = ""


class LoggedEvent(ChatRecord, frozen=True):
    """One event of the turn that was asked last; deltas are joined."""

    event: msgspec.Raw
    at: str = ""


class HeadMoved(ChatRecord, frozen=True):
    """The next turn goes on from ``turn``; empty: from the beginning."""

    turn: str
    at: str


AnyChatRecord = ChatHeader | SettingsChanged | TurnHeader | LoggedEvent | HeadMoved

_decoder: msgspec.json.Decoder[AnyChatRecord] = msgspec.json.Decoder(AnyChatRecord)


def encode(record: ChatRecord) -> bytes:
    """The line of a record, with its end."""
    return to_json(record) + b"\n"


def to_json(value: msgspec.Struct) -> bytes:
    """``value`` as JSON on one line. Half of a surrogate pair, which no file can hold, becomes a question mark."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def decode(line: bytes) -> AnyChatRecord:
    """The record of one line. Raises ``msgspec.DecodeError`` or UnicodeDecodeError."""
    return _decoder.decode(line)
