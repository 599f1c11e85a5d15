"""One request to the model: its stream -> events as they come, and the whole Reply at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from gpubox.agent.events import (
    AgentEvent,
    GenerationProgress,
    PrefillProgress,
    ReasoningDelta,
    TextDelta,
)
from gpubox.agent.fences import ends_program
from gpubox.agent.protocol import Chosen
from gpubox.agent.repetition import RepetitionWatch
from gpubox.agent.settings import AgentSettings
from gpubox.agent.thinking import ThinkingSplitter, split_thinking
from gpubox.agent.timing import Marks
from gpubox.server.client import LlamaClient
from gpubox.server.sse import CallDelta, Chunk
from gpubox.server.stream import stream_completion

Emit = Callable[[AgentEvent], None]
PROGRESS_SECONDS = 0.25
CALLS = 32
"""Native calls of one reply that are taken."""


@dataclass(slots=True)
class RawCall:
    """One native call as it was written."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """What the model has said so far in one request. It is filled as the stream comes, so a broken one has its part."""

    marks: Marks
    content: str = ""
    """As sent: thinking that came inline is in it."""
    reasoning: str = ""
    calls: dict[int, RawCall] = field(default_factory=dict)
    finish_reason: str = ""
    answering: str = ""
    """The visible part as it came."""
    circles: bool = False
    """It turned in circles, and the stream was closed."""
    model: str = ""

    @property
    def visible(self) -> str:
        """The content without thinking."""
        return split_thinking(self.content)[1]

    @property
    def thought(self) -> bool:
        """Whether there is thinking, wherever it came."""
        return bool(self.reasoning.strip() or split_thinking(self.content)[0].strip())


def request_body(
    messages: list[dict[str, Any]],
    chosen: Chosen,
    settings: AgentSettings,
    *,
    max_tokens: int,
    thinking: bool | None,
    thinking_tokens: int | None,
) -> dict[str, Any]:
    """The request (llama-server b11434's fields). Only the messages grow from one to the next."""
    body: dict[str, Any] = {
        **settings.sampling,
        "messages": messages,
        "max_tokens": max_tokens,
        "cache_prompt": True,
        "return_progress": True,
        "timings_per_token": True,
        "stream_options": {"include_usage": True},
    }
    if chosen.tools:
        body["tools"] = list(chosen.tools)
        body["parallel_tool_calls"] = chosen.parallel
    if thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": thinking}
    if thinking_tokens is not None:
        body["thinking_budget_tokens"] = thinking_tokens
    if settings.slot is not None:
        body["id_slot"] = settings.slot
    return body


class Listener:
    """Turns Chunks into events and a Reply."""

    def __init__(self, reply: Reply, emit: Emit, clock: Callable[[], float], *, until_program: bool = False) -> None:
        """``until_program``: a whole fenced program ends the reply, so that no output is made up after it."""
        self.reply, self._emit, self._clock, self._until_program = reply, emit, clock, until_program
        self._splitter = ThinkingSplitter()
        self._watch = RepetitionWatch()
        self._said = self._last = 0.0

    def take(self, chunk: Chunk) -> bool:
        """Takes one Chunk; False when the rest is not wanted."""
        reply, marks, now = self.reply, self.reply.marks, self._clock()
        reply.model = reply.model or chunk.model
        if chunk.progress:
            progress = chunk.progress
            marks.reading = now if marks.reading is None else marks.reading
            marks.prompt_total, marks.prompt_cached = progress.total, progress.cached
            self._emit(PrefillProgress(progress.processed, progress.total, progress.cached))
        if chunk.timings:
            marks.server = chunk.timings
        if chunk.usage:
            marks.generated = chunk.usage.generated_tokens
            marks.prompt_total = chunk.usage.prompt_tokens or marks.prompt_total
            marks.prompt_cached = chunk.usage.cached_tokens or marks.prompt_cached
        reply.finish_reason = chunk.finish_reason or reply.finish_reason
        if not (chunk.text or chunk.reasoning or chunk.calls):
            return True
        thinking, visible = self._splitter.feed(chunk.text) if chunk.text else ("", "")
        self._count(now, bool(chunk.reasoning or thinking or self._splitter.thinking))
        reply.reasoning += chunk.reasoning
        reply.content += chunk.text
        if chunk.reasoning or thinking:
            self._emit(ReasoningDelta(chunk.reasoning + thinking))
        if visible:
            reply.answering += visible
            self._emit(TextDelta(visible))
        for call in chunk.calls:
            self._call(call)
        self._progress(now)
        if self._until_program and "\n" in visible and ends_program(reply.answering):
            reply.finish_reason = "program"
            return False
        grown = chunk.reasoning + chunk.text + "".join(call.arguments for call in chunk.calls)
        reply.circles = self._watch.feed(grown)
        return not reply.circles

    def end(self) -> None:
        """Gives what was held back."""
        thinking, visible = self._splitter.end()
        if thinking:
            self._emit(ReasoningDelta(thinking))
        if visible:
            self._emit(TextDelta(visible))
        self.reply.marks.ended = self._clock()
        self._said = 0.0
        self._progress(self.reply.marks.ended)

    def _count(self, now: float, thinking: bool) -> None:
        marks = self.reply.marks
        if marks.first is None:
            marks.first = now
        elif thinking:
            marks.thinking_seconds += now - self._last
        self._last = now
        marks.pieces += 1
        marks.thinking_pieces += thinking

    def _call(self, delta: CallDelta) -> None:
        if delta.index >= CALLS:
            return
        call = self.reply.calls.setdefault(delta.index, RawCall())
        call.id = call.id or delta.id
        call.name = call.name or delta.name
        call.arguments += delta.arguments

    def _progress(self, now: float) -> None:
        server = self.reply.marks.server
        if server is None or now - self._said < PROGRESS_SECONDS or not server.generated_tokens:
            return
        self._said = now
        self._emit(
            GenerationProgress(
                server.generated_tokens,
                server.tg_tokens_per_second,
                server.draft_tokens,
                server.draft_tokens_accepted,
            )
        )


async def ask(
    client: LlamaClient,
    body: dict[str, Any],
    reply: Reply,
    emit: Emit,
    *,
    silence_seconds: float,
    until_program: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Fills ``reply`` from the answer to ``body``. Raises StreamError; cancelled, it closes the stream."""
    listener = Listener(reply, emit, clock, until_program=until_program)
    try:
        async with stream_completion(client.http, body, silence_seconds=silence_seconds) as chunks, aclosing(chunks):
            async for chunk in chunks:
                if not listener.take(chunk):
                    break
    finally:
        listener.end()
