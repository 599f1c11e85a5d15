"""The records of a chat file, and from them the chat: a tree of turns, and the prompt of the current branch. Pure.

One JSON object per line; its field ``record`` names the type; unknown types are skipped. A file is a ChatHeader, then
SettingsChanged, TurnHeader, LoggedEvent and HeadMoved in the order of time. A turn is a TurnHeader and the LoggedEvents
after it. ``parent_id`` names the turn before it: the turns form a tree, and a retry or a branch deletes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import (
    AgentEvent,
    Compacted,
    Message,
    MessageAdded,
    MessageShortened,
    ReasoningDelta,
    RoundRestarted,
    TextDelta,
    TurnFailed,
    TurnFinished,
    decode_event,
    snake_case,
)
from gpubox.agent.settings import AgentSettings, ProtocolName
from gpubox.errors import UsageError
from gpubox.storage import DECODE_ERRORS, json_line

FORMAT = "gpubox-chat"
VERSION = 1

Apply = Literal["ask", "turn", "plan"]
"""What becomes of a turn's changes: the owner decides; they are taken at its end, but for conflicts and what runs by
itself; or nothing is written at all."""


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
    apply: Apply = "ask"
    agent: str = ""
    """The hosted agent that answers, by its name in the registry; empty: gpubox's own."""
    agent_choices: dict[str, str] = {}
    """What the owner chose of it: the id of an AgentChoice -> the id of the option."""

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
    agent: str = ""
    """The hosted agent that answers; empty: gpubox's own."""


class LoggedEvent(ChatRecord, frozen=True):
    """One event of the newest turn. Consecutive deltas are joined."""

    event: msgspec.Raw
    at: str = ""


class HeadMoved(ChatRecord, frozen=True):
    """The next turn follows ``turn_id``; empty: it is a first turn."""

    turn_id: str
    at: str
    step: Literal["", "undo", "redo"] = ""
    """Why; empty: the owner goes on from there."""


class OwnerNote(ChatRecord, frozen=True):
    """What the model reads before the next question: that the owner dropped a change, and why."""

    text: str
    at: str


class FilesTaken(ChatRecord, frozen=True):
    """Changes that the workspace now has: path -> diff, shortened. Without any: all before were committed."""

    diffs: dict[str, str]
    at: str


class AgentSession(ChatRecord, frozen=True):
    """A hosted agent remembers this chat under ``session_id``."""

    agent: str
    session_id: str
    at: str


AnyChatRecord = (
    ChatHeader | SettingsChanged | TurnHeader | LoggedEvent | HeadMoved | OwnerNote | FilesTaken | AgentSession
)

_decoder: msgspec.json.Decoder[AnyChatRecord] = msgspec.json.Decoder(AnyChatRecord)


def encode(record: ChatRecord) -> bytes:
    """The line of a record with its line break."""
    return json_line(record) + b"\n"


def decode(line: bytes) -> AnyChatRecord:
    """The record of one line. Raises DECODE_ERRORS."""
    return _decoder.decode(line)


INTERRUPTED_CALL_OUTPUT = "This call was cut off: it is not known what it did."
"""Tool output on replay for a call that a crash of gpubox interrupted."""


@dataclass(slots=True)
class Turn:
    """One question and its events."""

    header: TurnHeader
    events: list[AgentEvent] = field(default_factory=list)
    """In order. Deltas are left only if no message followed them: the turn was cut off there."""

    @property
    def id(self) -> str:
        return self.header.turn_id

    @property
    def parent_id(self) -> str:
        return self.header.parent_id

    @property
    def ended(self) -> TurnFinished | TurnFailed | None:
        """How it ended; ``None``: the turn is running, or gpubox was killed."""
        for event in reversed(self.events):  # a compaction may follow it
            if isinstance(event, (TurnFinished, TurnFailed)):
                return event
        return None

    @property
    def state(self) -> str:
        """An EndReason, ``failed`` or ``cut off``."""
        ended = self.ended
        if ended is None:
            return "cut off"
        return ended.reason if isinstance(ended, TurnFinished) else "failed"

    @property
    def answer(self) -> str:
        """The model's last visible text."""
        if isinstance(self.ended, TurnFinished) and self.ended.text:
            return self.ended.text
        answers = [message.content for message in self.messages() if message.role == "assistant" and message.content]
        return answers[-1] if answers else ""

    def messages(self) -> list[Message]:
        """The messages of this turn in order, in full length."""
        conversation = Conversation()
        self.replay(conversation, in_full=True)
        return conversation.messages

    def replay(self, conversation: Conversation, *, in_full: bool = False) -> None:
        """Repeats this turn's changes of the prompt and completes them if the turn was cut off.

        ``in_full``: no message is shortened or summed up.
        """
        if not any(isinstance(event, MessageAdded) and event.message.role == "user" for event in self.events):
            conversation.add(Message("user", self.header.text))
        for event in self.events:
            if not (in_full and isinstance(event, (MessageShortened, Compacted))):
                conversation.apply(event)
        for call in conversation.unanswered_calls():
            conversation.add(Message("tool", INTERRUPTED_CALL_OUTPUT, tool_call_id=call.id))
        text = "".join(event.text for event in self.events if isinstance(event, TextDelta))
        thinking = "".join(event.text for event in self.events if isinstance(event, ReasoningDelta))
        if text or thinking:
            conversation.add(Message("assistant", text, reasoning_content=thinking, partial=True))


@dataclass(slots=True)
class ChatLog:
    """The contents of a chat file."""

    name: str
    created_at: str = ""
    settings: ChatSettings = field(default_factory=ChatSettings)
    turns: dict[str, Turn] = field(default_factory=dict)
    """All turns by id, those of other branches too, oldest first."""
    head: str = ""
    """Id of the turn that the next one follows; empty: none."""
    damaged_lines: int = 0
    """Lines that could not be read."""
    unknown_lines: int = 0
    """Lines that a newer gpubox wrote."""
    undone: list[str] = field(default_factory=list)
    """The heads that ``redo`` goes back to, the next one last."""
    notes: list[str] = field(default_factory=list)
    """What the model reads before the next question."""
    taken: dict[str, str] = field(default_factory=dict)
    """The diffs of what was taken and not committed since, by path."""
    taken_ever: set[str] = field(default_factory=set)
    """All paths that were taken."""
    sessions: dict[str, str] = field(default_factory=dict)
    """Name of a hosted agent -> the id of its session."""
    _newest: Turn | None = None
    """The turn that events belong to."""

    def apply_record(self, record: AnyChatRecord) -> None:
        """Adds the next record of the file."""
        match record:
            case ChatHeader():
                self.created_at = self.created_at or record.at
            case SettingsChanged():
                self.settings = record.settings
            case HeadMoved():
                if record.step == "undo":
                    self.undone.append(self.head)
                else:
                    self.undone = self.undone[:-1] if record.step else []
                self.head = record.turn_id
            case TurnHeader():
                self.turns[record.turn_id] = self._newest = Turn(record)
                self.head = record.turn_id
                self.undone, self.notes = [], []
            case OwnerNote():
                self.notes.append(record.text)
            case FilesTaken():
                self.taken = {**self.taken, **record.diffs} if record.diffs else {}
                self.taken_ever.update(record.diffs)
            case AgentSession():
                self.sessions[record.agent] = record.session_id
            case LoggedEvent():
                try:
                    self.apply_event(decode_event(bytes(record.event)))
                except DECODE_ERRORS:
                    self.unknown_lines += 1

    def apply_event(self, event: AgentEvent) -> None:
        """Adds the next event of the newest turn."""
        turn = self._newest
        if turn is None:
            return
        complete = isinstance(event, MessageAdded) and event.message.role == "assistant"
        if complete or isinstance(event, RoundRestarted):  # the deltas so far are in the message, or void
            turn.events = [old for old in turn.events if not isinstance(old, (TextDelta, ReasoningDelta))]
        turn.events.append(event)

    def path(self, turn_id: str | None = None) -> list[Turn]:
        """The turns from the first to ``turn_id``; without it, to the head."""
        turns: list[Turn] = []
        seen: set[str] = set()
        turn = self.turns.get(self.head if turn_id is None else turn_id)
        while turn and turn.id not in seen:
            seen.add(turn.id)
            turns.append(turn)
            turn = self.turns.get(turn.parent_id)
        return turns[::-1]

    def conversation(self) -> Conversation:
        """The prompt of the path to the head, as it was sent."""
        conversation = Conversation()
        for turn in self.path():
            turn.replay(conversation)
        return conversation


def read_chat_log(name: str, lines: Iterable[bytes]) -> ChatLog:
    """The chat in these lines. Damaged and unknown lines are counted and left out.

    Raises UsageError if the first line is not the header of a chat of this version.
    """
    log, first = ChatLog(name), True
    for line in lines:
        if not line.strip():
            continue
        try:
            record = decode(line)
        except DECODE_ERRORS:
            if first:
                raise UsageError(f"{name} is not a chat of gpubox.") from None
            if _has_record_type(line):
                log.unknown_lines += 1
            else:
                log.damaged_lines += 1
            continue
        if first and not (isinstance(record, ChatHeader) and record.format == FORMAT and record.version == VERSION):
            writer = f" It was written by gpubox {record.gpubox_version}." if isinstance(record, ChatHeader) else ""
            raise UsageError(f"{name} is not a chat that this gpubox can read.{writer}")
        first = False
        log.apply_record(record)
    return log


class _RecordType(msgspec.Struct):
    record: str


def _has_record_type(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=_RecordType)
    except DECODE_ERRORS:
        return False
    return True
