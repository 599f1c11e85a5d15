"""Lines of a chat file -> the chat as it stands: a tree of turns, and the prompt so far. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from gpubox.agent.events import (
    AgentEvent,
    Folded,
    Message,
    MessageAdded,
    ReasoningDelta,
    TextDelta,
    TurnFailed,
    TurnFinished,
    TurnStarted,
)
from gpubox.agent.events import decode as decode_event
from gpubox.agent.tools import ToolCall
from gpubox.agent.transcript.records import FORMAT, VERSION, Asked, Choices, Chosen, Happened, Opened, Rewound, decode
from gpubox.errors import UsageError

CUT = "This call was cut off: it is not known what it did."
"""What the model reads for a call that gpubox did not live to see the end of."""


@dataclass(slots=True)
class Turn:
    """One question and what came of it."""

    asked: Asked
    events: list[AgentEvent] = field(default_factory=list)
    """In order. Deltas are only those that no message holds: what was said when it was cut off."""

    @property
    def id(self) -> str:
        return self.asked.turn

    @property
    def parent(self) -> str:
        return self.asked.parent

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
    def answered(self) -> bool:
        """Whether the model said anything."""
        return any(message.role == "assistant" for message in self.messages())

    @property
    def answer(self) -> str:
        """The last visible text the model gave."""
        if isinstance(self.ended, TurnFinished) and self.ended.text:
            return self.ended.text
        said = [message.content for message in self.messages() if message.role == "assistant" and message.content]
        return said[-1] if said else ""

    def messages(self) -> list[Message]:
        """What it added to the prompt, in order; whole, whatever broke it off."""
        found = [event.message for event in self.events if isinstance(event, MessageAdded)]
        if not any(message.role == "user" for message in found):
            found.append(Message("user", self.asked.text))
        text = "".join(event.text for event in self.events if isinstance(event, TextDelta))
        thought = "".join(event.text for event in self.events if isinstance(event, ReasoningDelta))
        if text or thought:
            found.append(Message("assistant", text, reasoning=thought, partial=True))
        return _answered(found)


@dataclass(slots=True)
class ChatLog:
    """A chat as its file tells it."""

    name: str
    opened_at: str = ""
    choices: Choices = field(default_factory=Choices)
    turns: dict[str, Turn] = field(default_factory=dict)
    """Every turn by its id, those of other branches too, in the order they were asked."""
    head: str = ""
    """The turn that the next one goes on from; empty: none."""
    damaged: int = 0
    """Lines that could not be read."""
    unknown: int = 0
    """Lines of a newer gpubox, skipped."""

    def path(self) -> list[Turn]:
        """The turns from the first to ``head``."""
        found: list[Turn] = []
        seen: set[str] = set()
        turn = self.turns.get(self.head)
        while turn and turn.id not in seen:
            seen.add(turn.id)
            found.append(turn)
            turn = self.turns.get(turn.parent)
        return found[::-1]

    def beside(self, turn: str) -> list[str]:
        """The turns that were asked at the same place as ``turn``, itself among them: retries and branches."""
        found = self.turns.get(turn)
        return [other.id for other in self.turns.values() if found and other.parent == found.parent]

    def messages(self) -> list[Message]:
        """The prompt so far, as it was sent: what was folded is folded. A turn without any answer is not in it."""
        found: list[Message] = []
        for turn in self.path():
            found += turn.messages() if turn.answered else []
            for event in turn.events:
                if isinstance(event, Folded) and 0 <= event.index < len(found):
                    found[event.index] = msgspec.structs.replace(found[event.index], content=event.content)
        return found

    def unanswered(self) -> list[str]:
        """What was asked last and got no word of an answer: to be said again with the next question.

        Two questions in a row are an error to many templates, and to leave one out loses what it said.
        """
        found: list[str] = []
        for turn in self.path()[::-1]:
            if turn.answered:
                break
            found.append(turn.asked.text)
        return found[::-1]


def fold(name: str, lines: Iterable[bytes]) -> ChatLog:
    """The chat of these lines. A line that is damaged or unknown is counted and left out.

    Raises UsageError where the first line says that this is no chat, or one of another version.
    """
    log, current, first = ChatLog(name), None, True
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
        if first and not (isinstance(record, Opened) and record.format == FORMAT and record.version == VERSION):
            made_by = f" of gpubox {record.gpubox}" if isinstance(record, Opened) else ""
            raise UsageError(f"{name} is no chat that this gpubox can read{made_by}.")
        first = False
        match record:
            case Opened():
                log.opened_at = log.opened_at or record.at
            case Chosen():
                log.choices = record.choices
            case Rewound():
                log.head, current = record.turn, None
            case Asked():
                current = log.turns[record.turn] = Turn(record)
                log.head = record.turn
            case Happened() if current is not None:
                _happen(log, current, record)
    return log


def _happen(log: ChatLog, turn: Turn, record: Happened) -> None:
    try:
        event = decode_event(bytes(record.event))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        log.unknown += 1
        return
    if isinstance(event, MessageAdded) and event.message.role == "assistant":
        turn.events = [one for one in turn.events if not isinstance(one, (TextDelta, ReasoningDelta))]
    turn.events.append(event)


class _Named(msgspec.Struct):
    record: str


def _names_a_record(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _answered(messages: list[Message]) -> list[Message]:
    """Every call has its answer right behind it: a template without one is an error, or a model that waits."""
    whole: list[Message] = []
    open_calls: list[ToolCall] = []
    for message in messages:
        if message.role == "tool":
            open_calls = [call for call in open_calls if call.id != message.call_id]
        else:
            whole += [Message("tool", CUT, call_id=call.id) for call in open_calls]
            open_calls = list(message.calls)
        whole.append(message)
    return [*whole, *(Message("tool", CUT, call_id=call.id) for call in open_calls)]
