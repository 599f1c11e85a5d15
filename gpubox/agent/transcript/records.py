"""The records of a chat file, one JSON object per line. Its field ``record`` names the type; unknown types are skipped.

A file is a ChatHeader, then SettingsChanged, TurnHeader, LoggedEvent and HeadMoved in the order of time. A turn is a
TurnHeader and the LoggedEvents after it. ``parent_id`` names the turn before it: the turns form a tree, and a retry or
a branch deletes nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gpubox.agent.events import snake_case
from gpubox.agent.settings import AgentSettings, ProtocolName
from gpubox.storage import json_line

FORMAT = "gpubox-chat"
VERSION = 1

Approvals = Literal["ask", "workspace", "never"]
"""Writes in the workspace: the owner is asked each time, all are allowed, all are refused."""


class ChatRecord(msgspec.Struct, frozen=True, tag_field="record", tag=snake_case, omit_defaults=True):
    """One line."""


class ChatHeader(ChatRecord, frozen=True):
    """The first line."""

    format: str
    version: int
    gpubox_version: str
    at: str
    """ISO-8601 UTC, here and in all records."""


class ChatSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What differs in this chat from the profile and from gpubox's defaults. ``None`` or empty: no difference."""

    system_prompt: str | None = None
    thinking: bool | None = None
    thinking_budget_tokens: int | None = None
    sampling: dict[str, Any] = {}
    """Fields of the request with llama-server's names."""
    rounds: int | None = None
    max_tokens: int | None = None
    protocol: ProtocolName | None = None
    tools: bool = True
    workdir: str = ""
    """The workspace; empty: none, and programs run in a scratch folder."""
    approvals: Approvals = "ask"

    def agent_settings(self, profile_system_prompt: str) -> AgentSettings:
        """The settings of a turn. ``profile_system_prompt`` may be empty: then gpubox's default holds."""
        defaults = AgentSettings()
        system_prompt = self.system_prompt
        if system_prompt is None:
            system_prompt = profile_system_prompt or defaults.system_prompt
        return AgentSettings(
            rounds=self.rounds or defaults.rounds,
            max_tokens=self.max_tokens or defaults.max_tokens,
            protocol=(self.protocol or "auto") if self.tools else "none",
            thinking=self.thinking,
            thinking_budget_tokens=self.thinking_budget_tokens,
            sampling=dict(self.sampling),
            system_prompt=system_prompt,
        )


class SettingsChanged(ChatRecord, frozen=True):
    """From here on the chat has these settings."""

    settings: ChatSettings
    at: str


class TurnHeader(ChatRecord, frozen=True):
    """A turn starts: what the owner asked, and which server answers."""

    turn_id: str
    parent_id: str
    """The turn before it; empty for a first turn."""
    at: str
    text: str
    profile: str = ""
    build: str = ""
    model: str = ""


class LoggedEvent(ChatRecord, frozen=True):
    """One event of the newest turn. Consecutive deltas are joined."""

    event: msgspec.Raw
    at: str = ""


class HeadMoved(ChatRecord, frozen=True):
    """The next turn follows ``turn_id``; empty: it is a first turn."""

    turn_id: str
    at: str


AnyChatRecord = ChatHeader | SettingsChanged | TurnHeader | LoggedEvent | HeadMoved

_decoder: msgspec.json.Decoder[AnyChatRecord] = msgspec.json.Decoder(AnyChatRecord)


def encode(record: ChatRecord) -> bytes:
    """The line of a record with its line break."""
    return json_line(record) + b"\n"


def decode(line: bytes) -> AnyChatRecord:
    """The record of one line. Raises DECODE_ERRORS."""
    return _decoder.decode(line)
