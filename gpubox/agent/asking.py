"""One request to the model: its stream -> events as they come, and the whole Reply at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from gpubox.agent.events import (
    AgentEvent,
    GenerationStats,
    PrefillProgress,
    ReasoningDelta,
    TextDelta,
)
from gpubox.agent.fenced_code import ends_with_program
from gpubox.agent.repetition import RepetitionDetector
from gpubox.agent.reply import ModelReply, RawCall
from gpubox.agent.thinking import ThinkingSplitter
from gpubox.server.chunks import CallDelta, Chunk
from gpubox.server.client import LlamaClient
from gpubox.server.dialect import supported_fields
from gpubox.server.other_server import LLAMA

Emit = Callable[[AgentEvent], None]
PROGRESS_SECONDS = 0.25
CALLS = 32
"""Native calls of one reply that are taken."""
REPLY_CHARACTERS = 4_000_000
"""More is nobody's answer: a server that does not obey max_tokens is left."""


class ReplyCollector:
    """Turns Chunks into events and a Reply."""

    def __init__(
        self, reply: ModelReply, emit: Emit, clock: Callable[[], float], *, until_program: bool = False
    ) -> None:
        """``until_program``: a whole fenced program ends the reply, so that no output is made up after it."""
        self.reply, self._emit, self._clock, self._until_program = reply, emit, clock, until_program
        self._splitter = ThinkingSplitter()
        self._watch = RepetitionDetector()
        self._said = self._last = 0.0
        self._characters = 0

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
        self._count(now, chunk, bool(chunk.reasoning or thinking or self._splitter.closing))
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
        if self._until_program and "\n" in visible and ends_with_program(reply.answering):
            reply.finish_reason = "program"
            return False
        grown = chunk.reasoning + chunk.text + "".join(call.arguments for call in chunk.calls)
        reply.circles = self._watch.feed(grown)
        self._characters += len(grown)
        if self._characters > REPLY_CHARACTERS:
            reply.finish_reason = "length"
            return False
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

    def _count(self, now: float, chunk: Chunk, thinking: bool) -> None:
        marks = self.reply.marks
        if marks.first is None:
            marks.first = now
        elif thinking:
            marks.thinking_seconds += now - self._last
        self._last = now
        marks.pieces += 1
        if thinking:
            marks.thinking_pieces += 1
            marks.thought = chunk.timings or marks.thought

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
            GenerationStats(
                server.generated_tokens,
                server.tg_tokens_per_second,
                server.draft_tokens,
                server.draft_tokens_accepted,
            )
        )


async def ask(
    client: LlamaClient,
    body: dict[str, Any],
    reply: ModelReply,
    emit: Emit,
    *,
    silence_seconds: float,
    until_program: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Fills ``reply`` from the answer to ``body``. Raises StreamError; cancelled, it closes the stream."""
    if client.dialect not in ("", LLAMA):
        body = {**supported_fields(client.dialect, body)[0], "model": client.model}
    listener = ReplyCollector(reply, emit, clock, until_program=until_program)
    try:
        async with client.stream_completion(body, silence_seconds=silence_seconds) as chunks, aclosing(chunks):
            async for chunk in chunks:
                if not listener.take(chunk):
                    break
    finally:
        listener.end()
