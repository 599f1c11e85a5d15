"""Makes a long conversation short: the model sums it up, and only its last turns stay.

The summary is asked for in the live conversation, so that only the request for it is read. Then the middle is cut out:
what is fixed stays, the last turns, the request and the summary. All of that is in the server's cache, though at other
places: ``n_cache_reuse`` has llama-server move it, where the model allows that, instead of reading it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from gpubox import units
from gpubox.agent.completion import CHARACTERS_PER_TOKEN, CompletionRequester, open_requester
from gpubox.agent.conversation import Conversation
from gpubox.agent.events import AgentEvent, Compacted, Emit, Message, Notice, RoundFinished, RoundTiming, TurnStarted
from gpubox.agent.reply_text import without_repetition
from gpubox.agent.settings import AgentSettings
from gpubox.agent.timing import TurnTimings
from gpubox.agent.tools import Tool
from gpubox.concurrency import Stoppable
from gpubox.errors import GpuboxError, UsageError
from gpubox.server.client import LlamaClient
from gpubox.server.stream import StreamError

COMPACT_AT = 0.7
"""Share of the context at which a turn's end compacts: a turn of some rounds needs the rest, and in the middle of a
turn the owner would wait for it."""
KEPT_SHARE = 1 / 8
"""Share of the context that the last turns may keep."""
SUMMARY_SHARE = 1 / 16
MAX_SUMMARY_TOKENS = 1024
WORTH_SHARE = 1 / 8
"""Share of the context that must become free: less is not worth a summary."""
UNKNOWN_CONTEXT_TOKENS = 8192
SUMMARY_REQUEST = (
    "The conversation gets too long. All before this message will be forgotten, but for the newest part. Write in at "
    "most {words} words what is needed to go on: the task, what was decided, what you found out, which files and "
    "functions you changed, what is left to do. Only that text, no call and no code."
)
MOVED = "Where the server can, it moves what stays in its cache and does not read it again, which is nearly the same."
"""A moved piece was read after what is gone now, and keeps a trace of it: the owner is told."""
GO_ON = "Go on."


@dataclass(frozen=True, slots=True)
class CompactionCost:
    """What a compaction costs, estimated."""

    read_tokens: int
    """At most so many are read again; none but the request where the server can move its cache."""
    seconds: float | None
    """``None``: it is not known how fast the server reads."""
    freed_tokens: int


def compaction_cost(
    conversation: Conversation, context_tokens: int | None, pp_tokens_per_second: float | None
) -> CompactionCost:
    """The cost of a compaction now."""
    context = context_tokens or UNKNOWN_CONTEXT_TOKENS
    start = _kept_from(conversation.messages, context)
    read = _tokens(conversation.messages[start:]) + _summary_tokens(context)
    seconds = read / pp_tokens_per_second if pp_tokens_per_second else None
    return CompactionCost(read, seconds, _tokens(_droppable(conversation.messages, start)))


def wants_compaction(conversation: Conversation, context_tokens: int | None) -> bool:
    """Whether the end of a turn is the time to compact."""
    context = context_tokens or 0
    return conversation.server_cache_tokens > COMPACT_AT * context > 0 and _is_worth_it(conversation, context)


async def compact(
    conversation: Conversation, settings: AgentSettings, tools: Sequence[Tool], client: LlamaClient, emit: Emit
) -> Compacted:
    """Compacts between two turns; the event is emitted as well. Raises GpuboxError: then nothing has changed."""
    timings = TurnTimings(conversation, time.perf_counter)
    requester = await open_requester(client, conversation, settings, tools, emit, timings)
    context = requester.context_tokens or UNKNOWN_CONTEXT_TOKENS
    if not _droppable(conversation.messages, _kept_from(conversation.messages, context)):
        raise GpuboxError("The conversation is short: there is nothing to compact.")
    if event := await sum_up(requester):
        return event
    raise GpuboxError("The model gave no summary.", "Try again, or go on: nothing has changed.")


async def read_ahead(
    conversation: Conversation, settings: AgentSettings, tools: Sequence[Tool], client: LlamaClient
) -> RoundTiming:
    """Has the server read the prompt that the next question will continue. It may be cancelled at any time."""
    timings = TurnTimings(conversation, time.perf_counter)
    requester = await open_requester(client, conversation, settings, tools, lambda _: None, timings)
    return await requester.read_ahead()


async def compact_in_turn(requester: CompletionRequester, max_tokens: int, question: Message | None) -> None:
    """Compacts in the middle of a turn if the context is nearly full. ``question`` stays, and the model goes on."""
    context = requester.context_tokens
    if not context or not requester.nearly_full(max_tokens) or not _is_worth_it(requester.conversation, context):
        return
    with contextlib.suppress(StreamError):  # the next request tells what is wrong, and makes room in another way
        if await sum_up(requester, question):
            requester.emit(requester.conversation.add(Message("user", GO_ON)))
            await requester.read_ahead()


async def sum_up(requester: CompletionRequester, question: Message | None = None) -> Compacted | None:
    """Asks for the summary and cuts the conversation. ``None``: the model gave none, and nothing has changed."""
    conversation, context = requester.conversation, requester.context_tokens or UNKNOWN_CONTEXT_TOKENS
    start = _kept_from(conversation.messages, context)
    limit = _summary_tokens(context)
    request = SUMMARY_REQUEST.format(words=limit // 2)
    reply = await requester.ask_aside(request, limit)
    timing = requester.timings.end_round(reply.measurements)
    summary = without_repetition(reply.visible).strip() if reply.repetitive else reply.visible.strip()
    if not summary:
        return None
    freed = _tokens(_droppable(conversation.messages, start))
    question_at = next((i for i, message in enumerate(conversation.messages) if message is question), None)
    event = Compacted(summary, start, request, question_at, timing)
    conversation.apply(event)
    requester.emit(event)
    said = f"The conversation was summed up: about {freed:,} tokens are free again. {MOVED}"
    requester.emit(Notice("compacted", said))
    return event


def _summary_tokens(context_tokens: int) -> int:
    return max(64, min(int(context_tokens * SUMMARY_SHARE), MAX_SUMMARY_TOKENS))


def _kept_from(messages: Sequence[Message], context_tokens: int) -> int:
    """Where the last whole turns begin that fit; if none does in the middle of a turn, its last whole rounds."""
    in_turn = bool(messages) and messages[-1].role == "tool"
    turn_start, round_start, tokens = None, len(messages), 0
    for index in range(len(messages) - 1, -1, -1):
        tokens += _tokens(messages[index : index + 1])
        if tokens > KEPT_SHARE * context_tokens or messages[index].fixed:
            break
        if messages[index].role == "user":  # the server moves only what follows the fixed part as it did before
            turn_start = index
        elif in_turn and messages[index].role == "assistant":
            round_start = index
    return round_start if turn_start is None else turn_start


def _droppable(messages: Sequence[Message], start: int) -> list[Message]:
    return [message for message in messages[:start] if not message.fixed]


def _is_worth_it(conversation: Conversation, context_tokens: int) -> bool:
    dropped = _droppable(conversation.messages, _kept_from(conversation.messages, context_tokens))
    return _tokens(dropped) >= WORTH_SHARE * context_tokens


def _tokens(messages: Sequence[Message]) -> int:
    return sum(message.characters for message in messages) // CHARACTERS_PER_TOKEN


class AfterTurn:
    """What happens between two turns of one chat. ``rest`` before the conversation is used again."""

    def __init__(self) -> None:
        self._context_tokens: int | None = None
        self._pp: float | None = None
        self.summing_up = Stoppable()
        self._ahead: asyncio.Task[object] | None = None

    def observe(self, event: AgentEvent) -> None:
        """Keeps what the events of a turn say about the server."""
        if isinstance(event, TurnStarted):
            self._context_tokens = event.context_size_tokens
        elif isinstance(event, RoundFinished):
            self._pp = event.timing.pp_tokens_per_second or self._pp

    def cost(self, conversation: Conversation) -> str:
        """What a compaction costs and frees now, a sentence. Raises UsageError if it would free nothing."""
        cost = compaction_cost(conversation, self._context_tokens, self._pp)
        if not cost.freed_tokens:
            raise UsageError("The conversation is short: there is nothing to compact.")
        seconds = f", {units.duration(cost.seconds)}" if cost.seconds is not None else ""
        return (
            f"The model sums up what was said: about {cost.freed_tokens:,} tokens become free, at most about "
            f"{cost.read_tokens:,} are read again{seconds}."
        )

    async def ending(
        self, conversation: Conversation, settings: AgentSettings, tools: Sequence[Tool], client: LlamaClient
    ) -> AsyncGenerator[AgentEvent, None]:
        """The events of a compaction at the end of a turn, if it is time for one."""
        if not wants_compaction(conversation, self._context_tokens):
            return
        yield Notice("compacting", self.cost(conversation))
        try:
            for event in await self.compact(conversation, settings, tools, client):
                yield event
        except GpuboxError as error:
            yield Notice("compacting", f"It was not summed up: {error.message}")

    async def compact(
        self, conversation: Conversation, settings: AgentSettings, tools: Sequence[Tool], client: LlamaClient
    ) -> list[AgentEvent]:
        """Sums the conversation up and returns the events that record it. Raises GpuboxError, also if stopped."""
        events: list[AgentEvent] = []
        await self.summing_up.run(compact(conversation, settings, tools, client, events.append))
        self._ahead = asyncio.create_task(read_ahead(conversation, settings, tools, client))
        return [event for event in events if isinstance(event, Compacted | Notice)]

    async def rest(self) -> None:
        """Ends what runs beside the chat."""
        task, self._ahead = self._ahead, None
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # what it did not read, the next question reads
