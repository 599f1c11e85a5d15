"""Lines of a chat file -> the chat as it stands: a tree of turns, and the prompt so far. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import (
    AgentEvent,
    Message,
    MessageAdded,
    MessageShortened,
    ReasoningDelta,
    RoundRestarted,
    TextDelta,
    TurnFailed,
    TurnFinished,
    TurnStarted,
)
from gpubox.agent.events import decode_event as decode_event
from gpubox.agent.transcript.records import (
    FORMAT,
    VERSION,
    AnyChatRecord,
    ChatHeader,
    ChatSettings,
    HeadMoved,
    LoggedEvent,
    SettingsChanged,
    TurnHeader,
    decode,
)
from gpubox.errors import UsageError

INTERRUPTED_CALL_OUTPUT = "This call was cut off: it is not known what it did."
"""What the model reads for a call that gpubox did not live to see the end of."""


@dataclass(slots=True)
class Turn:
    """One question and what came of it."""

    header: TurnHeader
    events: list[AgentEvent] = field(default_factory=list)
    """In order. Deltas are only those that no message holds: what was said when it was cut off."""

    @property
    def id(self) -> str:
        return self.header.turn

    @property
    def parent(self) -> str:
        return self.header.parent

    @property
    def started(self) -> TurnStarted | None:
        return next((event for event in self.events if isinstance(event, TurnStarted)), None)

    @property
    def ended(self) -> TurnFinished | TurnFailed | None:
        """How it ended; ``None``: it runs, or gpubox was killed in it."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, (TurnFinished, TurnFailed)) else None

    @property
    def state(self) -> str:
        """answered | stopped | failed | cut off, or the limit that ended it."""
        ended = self.ended
        if ended is None:
            return "cut off"
        return ended.reason if isinstance(ended, TurnFinished) else "failed"

    @property
    def answer(self) -> str:
        """The last visible text the model gave."""
        if isinstance(self.ended, TurnFinished) and self.ended.text:
            return self.ended.text
        said = [message.content for message in self.messages() if message.role == "assistant" and message.content]
        return said[-1] if said else ""

    def messages(self) -> list[Message]:
        """What was said in it, in order and in full length."""
        made = Conversation()
        self._replay(made, [event for event in self.events if not isinstance(event, MessageShortened)])
        return made.messages

    def replay(self, conversation: Conversation) -> None:
        """Adds to ``conversation`` what this turn added to the prompt: whole, whatever cut it off."""
        self._replay(conversation, self.events)

    def _replay(self, conversation: Conversation, events: list[AgentEvent]) -> None:
        if not any(isinstance(event, MessageAdded) and event.message.role == "user" for event in events):
            conversation.add(Message("user", self.header.text))
        for event in events:
            conversation.apply(event)
        for call in conversation.unanswered():
            conversation.add(Message("tool", INTERRUPTED_CALL_OUTPUT, tool_call_id=call.id))
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        if text or thought:
            conversation.add(Message("assistant", text, reasoning_content=thought, partial=True))


@dataclass(slots=True)
class ChatLog:
    """A chat as its file tells it."""

    name: str
    opened_at: str = ""
    settings: ChatSettings = field(default_factory=ChatSettings)
    turns: dict[str, Turn] = field(default_factory=dict)
    """Every turn by its id, those of other branches too, in the order they were header."""
    head: str = ""
    """The turn that the next one goes on from; empty: none."""
    damaged: int = 0
    """Lines that could not be read."""
    unknown: int = 0
    """Lines of a newer gpubox, skipped."""
    _last: str = ""
    """The turn that was header last: events are its."""

    def apply_record(self, record: AnyChatRecord) -> None:
        """One more record, in the order of the file."""
        match record:
            case ChatHeader():
                self.opened_at = self.opened_at or record.at
            case SettingsChanged():
                self.settings = record.settings
            case HeadMoved():
                self.head = record.turn
            case TurnHeader():
                self.turns[record.turn] = Turn(record)
                self.head = self._last = record.turn
            case LoggedEvent():
                try:
                    self.apply_event(decode_event(bytes(record.event)))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    self.unknown += 1

    def apply_event(self, event: AgentEvent) -> None:
        """One more event of the turn that was header last."""
        turn = self.turns.get(self._last)
        if turn is None:
            return
        said = isinstance(event, MessageAdded) and event.message.role == "assistant"
        if said or isinstance(event, RoundRestarted):
            turn.events = [one for one in turn.events if not isinstance(one, (TextDelta, ReasoningDelta))]
        turn.events.append(event)

    def path(self, head: str | None = None) -> list[Turn]:
        """The turns from the first to ``head``, without it to the chat's own."""
        found: list[Turn] = []
        seen: set[str] = set()
        turn = self.turns.get(self.head if head is None else head)
        while turn and turn.id not in seen:
            seen.add(turn.id)
            found.append(turn)
            turn = self.turns.get(turn.parent)
        return found[::-1]

    def beside(self, turn: str) -> list[str]:
        """The turns that were header at the same place as ``turn``, itself among them: retries and branches."""
        found = self.turns.get(turn)
        return [other.id for other in self.turns.values() if found and other.parent == found.parent]

    def conversation(self) -> Conversation:
        """The prompt of the way to ``head``, as it was sent: what was folded is folded."""
        made = Conversation()
        for turn in self.path():
            turn.replay(made)
        return made


def read_chat_log(name: str, lines: Iterable[bytes]) -> ChatLog:
    """The chat of these lines. A line that is damaged or unknown is counted and left out.

    Raises UsageError where the first line says that this is no chat, or one of another version.
    """
    log, first = ChatLog(name), True
    for line in lines:
        if not line.strip():
            continue
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            known = _names_a_record(line)
            log.unknown, log.damaged = log.unknown + known, log.damaged + (not known)
            if first:
                raise UsageError(f"{name} is no chat of gpubox.") from None
            continue
        if first and not (isinstance(record, ChatHeader) and record.format == FORMAT and record.version == VERSION):
            made_by = f" of gpubox {record.gpubox}" if isinstance(record, ChatHeader) else ""
            raise UsageError(f"{name} is no chat that this gpubox can read{made_by}.")
        first = False
        log.apply_record(record)
    return log


class _Named(msgspec.Struct):
    record: str


def _names_a_record(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
