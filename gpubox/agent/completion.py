"""The chat completions of one turn: request, streamed reply, and a second request where that helps.

The requests of a turn differ only in the messages at their end, so that the server reuses its KV cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from gpubox.agent.code_answer import ends_with_program
from gpubox.agent.conversation import Conversation, request_messages
from gpubox.agent.events import (
    AgentEvent,
    Emit,
    GenerationStats,
    Message,
    Notice,
    PrefillProgress,
    ReasoningDelta,
    RoundRestarted,
    RoundTiming,
    TextDelta,
)
from gpubox.agent.images import image_urls
from gpubox.agent.reply_text import RepetitionDetector, ThinkingSplitter, split_thinking
from gpubox.agent.settings import AgentSettings
from gpubox.agent.timing import RequestMeasurements, TurnTimings
from gpubox.agent.tools import Tool, ToolProtocol, choose_protocol
from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.server.chunks import CallDelta, Chunk
from gpubox.server.client import LlamaClient
from gpubox.server.other_server import LLAMA, supported_fields
from gpubox.server.responses import context_size, json_object
from gpubox.server.stream import ContextOverflow, StreamError

STATS_INTERVAL_SECONDS = 0.25
MAX_REPLY_CALLS = 32
"""Native calls that are read from one reply; later ones are ignored."""
MAX_REPLY_CHARACTERS = 4_000_000
"""Ends the stream of a server that does not obey max_tokens."""
RETRY_THINKING_TOKENS = 256
"""Thinking budget of a request that must not think: templates without ``enable_thinking`` obey only the budget."""
CHARACTERS_PER_TOKEN = 3
TARGET_FILL = 0.6
"""Share of the context in use after old outputs were dropped. It is low because that costs a new prefill."""
UNKNOWN_EXCESS_CHARACTERS = 10_000
"""What is left out of a prompt that does not fit, if the server does not say by how much."""
NEXT_QUESTION = "..."
"""Stands for the owner's next question, so that the prompt is read up to it."""
CACHE_REUSE_TOKENS = 8
"""Pieces of the cache so long or longer are moved where the prompt has them now."""


@dataclass(slots=True)
class RawToolCall:
    """One native tool call as the model wrote it."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class NoAnswer(GpuboxError):
    """The model gave no answer, also when it was asked a second time."""


@dataclass(slots=True)
class ModelReply:
    """The reply to one request. It grows with the stream, so that a broken stream leaves what was received."""

    measurements: RequestMeasurements
    content: str = ""
    """As received: it includes thinking that the server did not parse."""
    reasoning_content: str = ""
    tool_calls: dict[int, RawToolCall] = field(default_factory=dict)
    """By their ``index`` in the stream."""
    finish_reason: str = ""
    streamed_text: str = ""
    """The visible text emitted so far."""
    repetitive: bool = False
    """The model repeated itself, and the stream was closed."""

    @property
    def visible(self) -> str:
        """The content without thinking."""
        return split_thinking(self.content)[1]

    def problem(self) -> tuple[str, NoAnswer]:
        """Why the reply is empty (as a sentence; "" if it is not), and the error to raise if it stays so."""
        error = NoAnswer("The model gave an empty answer twice.", "Rephrase the question, or try another model.")
        if self.visible.strip() or self.tool_calls:
            return "", error
        if not (self.reasoning_content.strip() or split_thinking(self.content)[0].strip()):
            return "The model gave an empty answer. The request is repeated.", error
        error = NoAnswer("The model only thinks and does not answer.", "Raise max-tokens, or turn thinking off.")
        problem = "The model thought but did not answer."
        if self.repetitive:
            problem = "The model repeated itself while thinking."
        elif self.finish_reason == "length":
            problem = "max_tokens ended the thinking."
        return f"{problem} The request is repeated without thinking.", error


class ReplyCollector:
    """Turns the Chunks of one stream into events and a ModelReply."""

    def __init__(
        self, reply: ModelReply, emit: Emit, clock: Callable[[], float], *, stop_after_program: bool = False
    ) -> None:
        """``stop_after_program``: a complete fenced program ends the reply, before the model invents its output."""
        self.reply, self._emit, self._clock, self._stop_after_program = reply, emit, clock, stop_after_program
        self._splitter = ThinkingSplitter()
        self._repetition = RepetitionDetector()
        self._stats_at = self._last_delta_at = 0.0
        self._characters = 0
        self._slots: dict[int, int] = {}
        """Where the call is whose parts come under a server's index now."""

    def add(self, chunk: Chunk) -> bool:
        """Adds one Chunk to the reply. Returns False if the rest of the stream is not wanted."""
        reply, now = self.reply, self._clock()
        self._measure(chunk, now)
        reply.finish_reason = chunk.finish_reason or reply.finish_reason
        if not (chunk.text or chunk.reasoning or chunk.calls):
            return True
        thinking, visible = self._splitter.feed(chunk.text) if chunk.text else ("", "")
        self._measure_delta(chunk, now, bool(chunk.reasoning or thinking or self._splitter.closing_tag))
        reply.reasoning_content += chunk.reasoning
        reply.content += chunk.text
        self._emit_text(chunk.reasoning + thinking, visible)
        for delta in chunk.calls:
            if delta.index < MAX_REPLY_CALLS:
                call = self._call_of(delta)
                call.id = call.id or delta.id
                call.name = call.name or delta.name
                call.arguments += delta.arguments
        self._emit_stats(now)
        if self._stop_after_program and "\n" in visible and ends_with_program(reply.streamed_text):
            reply.finish_reason = "program"
            return False
        received = chunk.reasoning + chunk.text + "".join(delta.arguments for delta in chunk.calls)
        reply.repetitive = self._repetition.feed(received)
        self._characters += len(received)
        if self._characters > MAX_REPLY_CHARACTERS:
            reply.finish_reason = "length"
            return False
        return not reply.repetitive

    def _call_of(self, delta: CallDelta) -> RawToolCall:
        """The call that a part belongs to: some servers give all calls one index, each with an id of its own."""
        calls = self.reply.tool_calls
        at = self._slots.get(delta.index, delta.index)
        if (known := calls.get(at)) and delta.id and known.id not in ("", delta.id):
            at = next((number for number, call in calls.items() if call.id == delta.id), max(calls) + 1)
        self._slots[delta.index] = at
        return calls.setdefault(at, RawToolCall())

    def end(self) -> None:
        """Emits the text that was held back as a possible thinking tag, and the last stats."""
        self._emit_text(*self._splitter.end())
        self.reply.measurements.ended = self._clock()
        self._stats_at = 0.0
        self._emit_stats(self.reply.measurements.ended)

    def _measure(self, chunk: Chunk, now: float) -> None:
        measured = self.reply.measurements
        if progress := chunk.progress:
            if measured.prefill_started is None:
                measured.prefill_started = now
            measured.prompt_tokens, measured.cached_tokens = progress.total, progress.cached
            self._emit(PrefillProgress(progress.processed, progress.total, progress.cached))
        if chunk.timings:
            measured.timings = chunk.timings
        if usage := chunk.usage:
            measured.completion_tokens = usage.generated_tokens
            measured.prompt_tokens = usage.prompt_tokens or measured.prompt_tokens
            if usage.cached_tokens is not None:
                measured.cached_tokens = usage.cached_tokens

    def _measure_delta(self, chunk: Chunk, now: float, thinking: bool) -> None:
        measured = self.reply.measurements
        if measured.first_delta is None:
            measured.first_delta = now
        elif thinking:
            measured.thinking_seconds += now - self._last_delta_at
        self._last_delta_at = now
        measured.deltas += 1
        if thinking:
            measured.thinking_deltas += 1
            measured.timings_after_thinking = chunk.timings or measured.timings_after_thinking

    def _emit_text(self, thinking: str, visible: str) -> None:
        if thinking:
            self._emit(ReasoningDelta(thinking))
        if visible:
            self.reply.streamed_text += visible
            self._emit(TextDelta(visible))

    def _emit_stats(self, now: float) -> None:
        timings = self.reply.measurements.timings
        if timings and timings.generated_tokens and now - self._stats_at >= STATS_INTERVAL_SECONDS:
            self._stats_at = now
            self._emit(
                GenerationStats(
                    timings.generated_tokens,
                    timings.tg_tokens_per_second,
                    timings.draft_tokens,
                    timings.draft_tokens_accepted,
                )
            )


@dataclass(slots=True)
class CompletionRequester:
    """Requests the replies of one turn. It repeats a request that failed and makes room in a full context."""

    client: LlamaClient
    conversation: Conversation
    settings: AgentSettings
    protocol: ToolProtocol
    context_tokens: int | None
    """Size of one slot's context; ``None`` if unknown."""
    emit: Emit
    timings: TurnTimings
    retry_seconds: float = 0.5
    """Wait before a broken request is repeated."""
    model: str = ""
    """As the server names it; empty: it does not."""
    reply: ModelReply | None = None
    """The newest reply, also while it is streamed."""
    _sent_messages: int = 0

    async def request(self, round_number: int, max_tokens: int) -> ModelReply:
        """The reply of one round, never empty. Raises GpuboxError if a second request did not help either."""
        broken: ModelReply | None = None
        was_empty = False
        while True:
            reply = self.reply = ModelReply(self.timings.start_request())
            try:
                await self._stream(reply, max_tokens, without_thinking=was_empty)
            except ContextOverflow as error:
                if not self._make_room(error):
                    raise
                continue
            except StreamError as error:
                if broken and not reply.content:  # keep what the first request received
                    reply.content = broken.content
                    reply.reasoning_content = reply.reasoning_content or broken.reasoning_content
                if broken or not error.transient:
                    raise
                broken = reply
                when = f" in {error.retry_seconds:.0f} s" if error.retry_seconds else ""
                self._emit_restart(round_number, f"{error.message} The request is repeated{when}.", reply)
                await asyncio.sleep(error.retry_seconds or self.retry_seconds)
                continue
            problem, error_if_repeated = reply.problem()
            if not problem:
                return reply
            if was_empty:
                raise error_if_repeated
            was_empty = True
            self._emit_restart(round_number, problem, reply)

    async def ask_aside(self, text: str, max_tokens: int) -> ModelReply:
        """The reply to ``text``, which does not become part of the conversation. Raises StreamError."""
        reply = ModelReply(self.timings.start_request())
        thinking = RETRY_THINKING_TOKENS
        await self._stream(reply, max_tokens + thinking, aside=text, thinking_budget_tokens=thinking)
        return reply

    async def read_ahead(self) -> RoundTiming:
        """Has the server read the conversation, and move what it has of it in its cache. Raises StreamError."""
        reply = ModelReply(self.timings.start_request())
        try:
            await self._stream(reply, 1, aside=NEXT_QUESTION, n_cache_reuse=CACHE_REUSE_TOKENS)
        except BaseException:
            self.conversation.server_cache_tokens = 0  # nobody knows how far it came
            raise
        return self.timings.end_round(reply.measurements)

    def _body(
        self, conversation: Conversation, max_tokens: int, *, without_thinking: bool, more: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The JSON body for ``/v1/chat/completions``, with the fields of llama-server b11434."""
        protocol, settings = self.protocol, self.settings
        body: dict[str, Any] = {
            **settings.sampling,
            "messages": request_messages(
                conversation, protocol.system_prompt, native=protocol.native, system_role=protocol.system_role
            ),
            "max_tokens": max_tokens,
            "cache_prompt": True,
            "return_progress": True,
            "timings_per_token": True,
            "stream_options": {"include_usage": True},
        }
        if protocol.tools:
            body["tools"] = list(protocol.tools)
            body["parallel_tool_calls"] = protocol.parallel
        thinking = False if without_thinking else settings.thinking
        if thinking is not None:
            arguments = settings.sampling.get("chat_template_kwargs")
            arguments = arguments if isinstance(arguments, dict) else {}
            body["chat_template_kwargs"] = {**arguments, "enable_thinking": thinking}
        thinking_budget = RETRY_THINKING_TOKENS if without_thinking else settings.thinking_budget_tokens
        if thinking_budget is not None:
            body["thinking_budget_tokens"] = thinking_budget
        body |= more
        if self.client.dialect not in ("", LLAMA):
            body = {**supported_fields(self.client.dialect, body), "model": self.client.model}
        return body

    async def _stream(
        self, reply: ModelReply, max_tokens: int, *, without_thinking: bool = False, aside: str = "", **more: Any
    ) -> None:
        """Fills ``reply`` from the stream. Raises StreamError. Cancelled, it closes the stream.

        ``aside``: a last message that is not part of the conversation; the text of its reply is not emitted.
        ``more``: other fields of the request.
        """
        conversation, emit = self.conversation, self.emit
        if aside:
            conversation, emit = Conversation([*conversation.messages, Message("user", aside)]), self._emit_progress
        body = self._body(conversation, max_tokens, without_thinking=without_thinking, more=more)
        reply.measurements.body = body
        self._sent_messages = len(self.conversation.messages)
        collector = ReplyCollector(reply, emit, self.timings.clock, stop_after_program=self.protocol.name == "fenced")
        stream = self.client.stream_completion(body, silence_seconds=self.settings.silence_seconds)
        try:
            async with stream as chunks, aclosing(chunks):
                async for chunk in chunks:
                    if not collector.add(chunk):
                        break
        finally:
            collector.end()

    def _emit_restart(self, round_number: int, why: str, reply: ModelReply) -> None:
        self.emit(RoundRestarted(round_number, why, self.timings.end_round(reply.measurements)))

    def nearly_full(self, max_tokens: int) -> bool:
        """Whether the next request leaves less than a quarter of the context for the reply, as far as is known."""
        unsent = self.conversation.messages[self._sent_messages :] if self._sent_messages else []
        tokens = sum(message.characters for message in unsent if message.role != "assistant") // CHARACTERS_PER_TOKEN
        context = self.context_tokens or 0
        return self.conversation.server_cache_tokens + tokens + min(max_tokens, context // 4) > context > 0

    def _emit_progress(self, event: AgentEvent) -> None:
        if isinstance(event, PrefillProgress | GenerationStats):
            self.emit(event)

    def _make_room(self, error: ContextOverflow) -> bool:
        prompt, context = error.prompt_tokens or 0, error.context_tokens or self.context_tokens or 0
        excess = max(prompt - TARGET_FILL * context, context * (1 - TARGET_FILL))
        events = self.conversation.make_room(int(excess * CHARACTERS_PER_TOKEN) or UNKNOWN_EXCESS_CHARACTERS)
        for event in events:
            self.emit(event)
        if events:
            count = "1 tool output was" if len(events) == 1 else f"{len(events)} tool outputs were"
            self.emit(Notice("compacted", f"The conversation does not fit the context: {count} shortened."))
        return bool(events)


async def open_requester(
    client: LlamaClient,
    conversation: Conversation,
    settings: AgentSettings,
    tools: Sequence[Tool],
    emit: Emit,
    timings: TurnTimings,
) -> CompletionRequester:
    """The requester for the model that ``client`` reaches now. Raises GpuboxError: it cannot see the newest image."""
    props = await client.props()
    if names := {name for message in conversation.messages for name in message.images}:
        sees = json_object(props.get("modalities")).get("vision") is True
        if conversation.messages[-1].images and not sees:
            raise GpuboxError("This model does not see images.", "Leave the image out, or use another model.")
        folder = conversation.images_folder
        conversation.image_urls = await run_in_thread(image_urls, folder, names) if sees and folder else {}
    protocol = choose_protocol(settings, tools, props, ignored_programs=conversation.ignored_programs())
    model = str(props.get("model_alias") or props.get("model_path") or "")
    return CompletionRequester(
        client, conversation, settings, protocol, context_size(props), emit, timings, model=model
    )
