"""The events of one turn as frozen values. As JSON each is one object; its field ``event`` names it.

A turn is TurnStarted, rounds, then TurnFinished or TurnFailed. A round is RoundStarted, PrefillProgress, deltas,
tools, RoundFinished. In the turn of a hosted agent a round is one of its requests as the gateway saw it: only
RoundFinished, when it is over. MessageAdded and MessageShortened record the changes of the prompt: a Conversation
rebuilt from them renders the same prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec

from gpubox.agent.tools import OwnerQuestion, ToolCall, ToolOutput

EndReason = Literal["answered", "rounds", "tokens", "wall", "stopped", "repetition", "length"]
"""Why a turn ended: it answered; it reached the limit of rounds, tokens or wall time; the owner stopped it; the model
repeated itself; max_tokens cut the answer off."""


def snake_case(name: str) -> str:
    """``RoundStarted`` -> ``round_started``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Event(msgspec.Struct, frozen=True, tag_field="event", tag=snake_case):
    pass


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the prompt. Every later request sends it again."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning_content: str = ""
    """Thinking of an assistant message. It is sent back, because the template may render it into the prefix."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Native tool calls of an assistant message. Their arguments are valid JSON."""
    tool_call_id: str = ""
    """The call that a tool message answers."""
    partial: bool = False
    """The owner stopped the message, or the stream broke."""
    fixed: bool = False
    """It stays when the conversation is compacted: the project's AGENTS.md."""
    images: tuple[str, ...] = ()
    """Images of a user message: names of files in the folder of the chat."""

    @property
    def characters(self) -> int:
        """Of the text that a template renders."""
        calls = sum(len(str(call.arguments)) + len(call.name) for call in self.tool_calls)
        return len(self.content) + len(self.reasoning_content) + calls


class RoundTiming(msgspec.Struct, frozen=True):
    """Where the wall time of one round went. The other ``_seconds`` fields add up to ``wall_seconds``.

    Prefill and generation times are the server's (``timings.prompt_ms``, ``predicted_ms``) if it sends them, else the
    client's. New and reprocessed prefill share the prefill time in proportion to their tokens. Thinking and answer
    share the generation time by the server's timings at the last thinking delta, else by the arrival of the deltas.
    """

    wall_seconds: float = 0.0
    queue_seconds: float = 0.0
    """From the request to the start of prefill."""
    prefill_new_seconds: float = 0.0
    prefill_reprocessed_seconds: float = 0.0
    thinking_seconds: float = 0.0
    answer_seconds: float = 0.0
    """Visible text and tool calls."""
    tool_seconds: float = 0.0
    """Wall time: tools that run in parallel count once."""
    approval_seconds: float = 0.0
    """Waiting for the owner."""
    loop_seconds: float = 0.0
    """The rest of the wall time."""
    prefill_new_tokens: int | None = None
    """None, as the two below: the server does not say what it reused; then all prefill time counts as new."""
    prefill_reprocessed_tokens: int | None = None
    """Tokens that were in the server's cache after the round before and were processed again."""
    reread_from: str = ""
    """Where the first of them stands: "the system prompt", "message 3: ...". Empty: none was processed again."""
    cached_tokens: int | None = None
    generated_tokens: int = 0
    thinking_tokens: int | None = None
    """The server's count at the last thinking delta, else the number of thinking deltas."""
    tg_tokens_per_second: float | None = None
    pp_tokens_per_second: float | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None
    from_server: bool = True
    """False: the server sent no timings, and times and counts are the client's."""

    @property
    def context_tokens(self) -> int | None:
        """The conversation after the round: its prompt and the answer."""
        new, cached = self.prefill_new_tokens, self.cached_tokens
        if new is None or cached is None:
            return None
        return new + (self.prefill_reprocessed_tokens or 0) + cached + self.generated_tokens


class TurnTotals(msgspec.Struct, frozen=True):
    """Sums over the rounds of a turn."""

    rounds: int = 0
    timing: RoundTiming = RoundTiming()
    effective_tokens_per_second: float | None = None
    """Generated tokens per second of the turn's wall time without approvals."""
    tool_calls: int = 0
    failed_tool_calls: int = 0


class TurnStarted(_Event, frozen=True):
    """The turn starts. ``why`` says why ``protocol`` was chosen; ``context_size_tokens`` is the size of one slot."""

    protocol: str
    why: str = ""
    model: str = ""
    tools: tuple[str, ...] = ()
    context_size_tokens: int | None = None


class RoundStarted(_Event, frozen=True):
    """Round ``round`` (from 1) of at most ``rounds``, and what the turn has used of its other budgets."""

    round: int
    rounds: int
    generated_tokens: int = 0
    max_generated_tokens: int = 0
    seconds: float = 0.0
    """Without the time that the owner thought."""
    max_seconds: float = 0.0


class PrefillProgress(_Event, frozen=True):
    """``processed`` of ``total`` prompt tokens are in the KV cache; ``cached`` of them were there before."""

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
    """The server's counts and rates of this round so far, a few times per second while the model writes."""

    generated_tokens: int
    tg_tokens_per_second: float | None = None
    draft_tokens: int | None = None
    draft_tokens_accepted: int | None = None


class RoundRestarted(_Event, frozen=True):
    """The request of the round is repeated; its deltas so far are void. ``why`` is a sentence for the owner."""

    round: int
    why: str
    timing: RoundTiming = RoundTiming()
    """Of the request that is given up. TurnTotals include it."""


class ToolRequested(_Event, frozen=True):
    """The model calls a tool."""

    call: ToolCall


class QuestionAsked(_Event, frozen=True):
    """The turn waits until the owner answers."""

    question: OwnerQuestion


class ToolFinished(_Event, frozen=True):
    """The call is over, whether it ran, failed or was refused."""

    call: ToolCall
    output: ToolOutput


class MessageAdded(_Event, frozen=True):
    """``message`` is now the last one of the conversation."""

    message: Message


class MessageShortened(_Event, frozen=True):
    """To fit the context, message ``index`` of the conversation now has ``content``."""

    index: int
    content: str


class Compacted(_Event, frozen=True):
    """The messages before ``kept_from`` are gone, but for the fixed ones and the question of the running turn.

    ``request`` and ``summary`` are now the last messages.
    """

    summary: str
    kept_from: int
    request: str = ""
    question_at: int | None = None
    """The question of the turn in whose middle this is; ``None``: it is between two turns."""
    timing: RoundTiming = RoundTiming()
    """Of the summary. TurnTotals include it."""


class ChangedFile(msgspec.Struct, frozen=True):
    """One file that a turn changed."""

    path: str
    kind: str
    """A Change's: ``new``, ``changed``, ``removed``, ``mode``, ``link``, ``folder``."""
    added: int = 0
    """Lines."""
    removed: int = 0


class FilesChanged(_Event, frozen=True):
    """What the turn changed, before its last event. It waits for the owner unless it was taken at once."""

    files: tuple[ChangedFile, ...]


class PlanStep(msgspec.Struct, frozen=True):
    """One step of a hosted agent's plan."""

    text: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class PlanChanged(_Event, frozen=True):
    """A hosted agent's whole plan, as it is now."""

    steps: tuple[PlanStep, ...]


class AgentCommand(msgspec.Struct, frozen=True):
    """A command of a hosted agent, sent as a prompt: ``/name what it wants``."""

    name: str
    description: str = ""
    hint: str = ""
    """What it wants after its name; empty: nothing."""


class AgentChoice(msgspec.Struct, frozen=True):
    """What the owner may choose of a hosted agent: its mode, its model, how long it thinks."""

    id: str
    name: str
    value: str
    """The id of the option that holds."""
    options: tuple[tuple[str, str], ...] = ()
    """(id, name) of each."""


class AgentOffers(_Event, frozen=True):
    """What a hosted agent offers now."""

    commands: tuple[AgentCommand, ...] = ()
    choices: tuple[AgentChoice, ...] = ()


class UsageReported(_Event, frozen=True):
    """What a hosted agent says of its context, in tokens by its own count."""

    used_tokens: int
    size_tokens: int | None = None


class RoundFinished(_Event, frozen=True):
    """The round is over, its tools included."""

    round: int
    timing: RoundTiming
    finish_reason: str = ""
    """The server's (``stop``, ``length``, ``tool_calls``), or ``program`` if a complete fenced program ended the reply;
    empty if the stream broke or was stopped."""


class Notice(_Event, frozen=True):
    """Something did not go as planned: one sentence for the owner."""

    kind: str
    """For statistics. Of a tool call: ``repaired``, ``text_call``, ``unknown_tool``, ``bad_arguments``, ``truncated``,
    ``repeated``, ``refused``. Of the turn: ``repetition``, ``compacted``, ``wall``, ``journal``,
    ``filtered``, ``rules``, ``reread``, ``left`` (a change that was not taken), ``stopped``, ``compacting``."""
    text: str


class TestFinished(_Event, frozen=True):
    """The project's test command ran over what the turn changed, before TurnFinished, or when the owner asked."""

    __test__: ClassVar[bool] = False  # pytest must not take it for a test
    command: str
    output: ToolOutput


class TurnFinished(_Event, frozen=True):
    """The turn is over, and the conversation can continue."""

    totals: TurnTotals
    reason: EndReason
    text: str = ""
    """The last visible answer, without thinking."""


class TurnFailed(_Event, frozen=True):
    """The turn broke. ``messages_kept`` of its messages stay in the conversation."""

    message: str
    hint: str = ""
    messages_kept: int = 0
    totals: TurnTotals = TurnTotals()
    by_model: bool = False
    """The server works: the model gave no answer, or the conversation does not fit its context."""


AgentEvent = (
    TurnStarted
    | RoundStarted
    | PrefillProgress
    | ReasoningDelta
    | TextDelta
    | GenerationStats
    | RoundRestarted
    | ToolRequested
    | QuestionAsked
    | ToolFinished
    | MessageAdded
    | MessageShortened
    | Compacted
    | FilesChanged
    | PlanChanged
    | AgentOffers
    | UsageReported
    | RoundFinished
    | Notice
    | TestFinished
    | TurnFinished
    | TurnFailed
)
Emit = Callable[[AgentEvent], None]

_decoder: msgspec.json.Decoder[AgentEvent] = msgspec.json.Decoder(AgentEvent)


def decode_event(line: bytes | str) -> AgentEvent:
    """The event in one JSON object. Raises DECODE_ERRORS for anything else."""
    return _decoder.decode(line)


def event_values(event: AgentEvent) -> dict[str, Any]:
    """The event as a dict, for ``--json``."""
    values: dict[str, Any] = msgspec.to_builtins(event)
    return values
