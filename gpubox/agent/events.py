"""The story of one turn, as frozen values. JSON: one object each, ``event`` names it, seconds and tokens are raw.

A turn is TurnStarted, rounds, and TurnFinished or TurnFailed. A round is RoundStarted, PrefillProgress, deltas,
tools, RoundFinished. MessageAdded says what became part of the prompt, verbatim: a Conversation made of those
messages has the same prefix.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from gpubox.agent.tools import ToolCall, ToolOutput

EndReason = Literal["answered", "rounds", "tokens", "wall", "stopped", "repetition", "length"]
"""Why a turn ended: it answered; a limit; the owner stopped it; the model turned in circles; the answer is cut."""


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=_tag):
    pass


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the prompt, as it is sent again in every later request."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning_content: str = ""
    """``reasoning_content`` of an assistant's message: sent back, or the template renders another prefix."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Native tool tool_calls of an assistant's message; their arguments are always valid JSON."""
    tool_call_id: str = ""
    """Of a tool's message: the call it answers."""
    partial: bool = False
    """The owner stopped it, or the stream broke."""


class RoundTiming(msgspec.Struct, frozen=True):
    """Where one round's wall time went. The parts ending in ``_seconds`` sum to ``wall_seconds``.

    Prefill and generation are the server's own (``timings.prompt_ms``, ``predicted_ms``) where it sent them, else
    by this clock. New and re-read prefill share the prompt's time by their tokens; thinking and answer share the
    generation's by the server's clock at the last delta of thinking, else by when deltas came. ``loop_seconds`` is
    what is left.
    """

    wall_seconds: float = 0.0
    queue_seconds: float = 0.0
    """From the request until the server began to read the prompt."""
    prefill_new_seconds: float = 0.0
    prefill_reprocessed_seconds: float = 0.0
    thinking_seconds: float = 0.0
    answer_seconds: float = 0.0
    """Visible text and tool tool_calls."""
    tool_seconds: float = 0.0
    """By the clock: tools that ran side by side count once."""
    approval_seconds: float = 0.0
    """The owner's."""
    loop_seconds: float = 0.0
    prefill_new_tokens: int = 0
    prefill_reprocessed_tokens: int = 0
    """Tokens the server held after the round before, and read again."""
    cached_tokens: int = 0
    generated_tokens: int = 0
    thinking_tokens: int | None = None
    """The server's count when the last of it came, else counted in deltas."""
    tg_tokens_per_second: float | None = None
    pp_tokens_per_second: float | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    from_server: bool = True
    """False: the server sent no timings; the figures are this clock's and this count's."""


class TurnTotals(msgspec.Struct, frozen=True):
    """Sums of a turn's rounds."""

    rounds: int = 0
    timing: RoundTiming = RoundTiming()
    effective_tokens_per_second: float | None = None
    """Generated tokens per second of the turn's wall time without approvals."""
    tools: int = 0
    failed_tool_calls: int = 0


class TurnStarted(_Event, frozen=True):
    """``protocol`` is what was chosen, and ``why``; ``context_size_tokens`` is one slot's."""

    protocol: str
    why: str = ""
    model: str = ""
    tools: tuple[str, ...] = ()
    context_size_tokens: int | None = None


class RoundStarted(_Event, frozen=True):
    """Round ``round`` (from 1) of at most ``rounds``."""

    round: int
    rounds: int


class PrefillProgress(_Event, frozen=True):
    """Prompt tokens: ``processed`` of ``total`` are read, ``cached`` of them were there."""

    processed: int
    total: int
    cached: int


class ReasoningDelta(_Event, frozen=True):
    """More of the model's thinking."""

    text: str


class TextDelta(_Event, frozen=True):
    """More of the visible answer."""

    text: str


class GenerationStats(_Event, frozen=True):
    """A few times a second while the model writes: the server's own figures of this round so far."""

    generated_tokens: int
    tg_tokens_per_second: float | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None


class RoundRestarted(_Event, frozen=True):
    """The round is asked again: its deltas so far are void. ``why`` is a sentence for the owner."""

    round: int
    why: str
    timing: RoundTiming = RoundTiming()
    """Of the attempt that is given up; the Totals count it."""


class ToolRequested(_Event, frozen=True):
    """The model asks for a call that can be made."""

    call: ToolCall


class ApprovalRequested(_Event, frozen=True):
    """The loop waits for the owner."""

    call: ToolCall
    diff: str


class ToolFinished(_Event, frozen=True):
    """The call is over, however."""

    call: ToolCall
    output: ToolOutput


class MessageAdded(_Event, frozen=True):
    """``message`` is now part of the conversation."""

    message: Message


class MessageShortened(_Event, frozen=True):
    """To fit the context, message ``index`` of the conversation now has ``content``."""

    index: int
    content: str


class RoundFinished(_Event, frozen=True):
    """The round is over, its tools too."""

    round: int
    timing: RoundTiming
    finish_reason: str = ""
    """The server's (``stop``, ``length``, ``tool_calls``), ``program`` where a whole fenced program ended the reply;
    empty where the stream broke or was stopped."""


class Notice(_Event, frozen=True):
    """Something the owner should know went other than planned: one sentence. ``kind`` is one word for counting."""

    kind: str
    text: str


class TurnFinished(_Event, frozen=True):
    """The turn is over and the conversation can go on."""

    totals: TurnTotals
    reason: EndReason
    text: str = ""
    """The last visible answer, without thinking."""


class TurnFailed(_Event, frozen=True):
    """The turn broke. What was said stays in the conversation: ``kept`` is how many messages of this turn."""

    message: str
    hint: str = ""
    kept: int = 0
    totals: TurnTotals = TurnTotals()


AgentEvent = (
    TurnStarted
    | RoundStarted
    | PrefillProgress
    | ReasoningDelta
    | TextDelta
    | GenerationStats
    | RoundRestarted
    | ToolRequested
    | ApprovalRequested
    | ToolFinished
    | MessageAdded
    | MessageShortened
    | RoundFinished
    | Notice
    | TurnFinished
    | TurnFailed
)

_decoder: msgspec.json.Decoder[AgentEvent] = msgspec.json.Decoder(AgentEvent)


def encode_event(event: AgentEvent) -> bytes:
    """One JSON object, no line break in it."""
    return msgspec.json.encode(event)


def decode_event(line: bytes | str) -> AgentEvent:
    """The event of one line. Raises ``msgspec.DecodeError`` (ValidationError among them) for anything else."""
    return _decoder.decode(line)


def event_values(event: AgentEvent) -> dict[str, Any]:
    """The same as plain values, for ``--json``."""
    made: dict[str, Any] = msgspec.to_builtins(event)
    return made
