"""What happens to a conversation between two turns: it is summed up where it is long, and the server reads it ahead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from gpubox import units
from gpubox.agent.compaction import compact, compaction_cost, read_ahead, wants_compaction
from gpubox.agent.conversation import Conversation
from gpubox.agent.events import AgentEvent, Compacted, Notice, RoundFinished, TurnStarted
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Tool
from gpubox.errors import GpuboxError, UsageError
from gpubox.server.client import LlamaClient


class AfterTurn:
    """Of one chat. ``rest`` before the conversation is used again."""

    def __init__(self) -> None:
        self._context_tokens: int | None = None
        self._pp: float | None = None
        self._summary: asyncio.Task[Compacted] | None = None
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
        work = compact(conversation, settings, tools, client, events.append)
        self._summary = asyncio.create_task(work)
        try:
            await self._summary
        except asyncio.CancelledError:
            if not self._summary.cancelled():
                raise
            raise GpuboxError("It was stopped.") from None
        finally:
            self._summary.cancel()
            await asyncio.wait([self._summary])
            self._summary = None
        self._ahead = asyncio.create_task(self._read_ahead(conversation, settings, tools, client))
        return [event for event in events if isinstance(event, Compacted | Notice)]

    async def _read_ahead(
        self, conversation: Conversation, settings: AgentSettings, tools: Sequence[Tool], client: LlamaClient
    ) -> None:
        with contextlib.suppress(GpuboxError):  # the next question reads it
            await read_ahead(conversation, settings, tools, client)

    def stop(self) -> bool:
        """Stops a compaction. Returns whether one was running."""
        return self._summary is not None and self._summary.cancel()

    async def rest(self) -> None:
        """Ends what runs beside the chat."""
        task, self._ahead = self._ahead, None
        if task:
            task.cancel()
            await asyncio.wait([task])
