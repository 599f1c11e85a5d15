"""AgentLoop: one turn of think, act, observe as an async iterator of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import AgentEvent, TurnFinished, TurnTotals
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import Approve, Tool, deny_all
from gpubox.agent.turn import RunningTurn
from gpubox.server.client import LlamaClient


class AgentLoop:
    """Plays turns, one at a time. Holds no file and no server: those are handed to ``run``."""

    def __init__(
        self,
        approve: Approve = deny_all,
        *,
        retry_seconds: float = 0.5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``approve`` asks the owner where a tool wants it; ``retry_seconds`` pass before a request is made again."""
        self._approve, self._retry_seconds, self._clock = approve, retry_seconds, clock
        self._task: asyncio.Task[None] | None = None
        self._turn: RunningTurn | None = None

    def stop(self) -> None:
        """Ends the turn that runs: the stream is closed, tools are killed, TurnFinished says ``stopped``."""
        if self._turn and self._task and not self._task.done():
            self._turn.stopped = True
            self._task.cancel()

    async def run(
        self, conversation: Conversation, settings: AgentSettings, tools: Sequence[Tool], client: LlamaClient
    ) -> AsyncGenerator[AgentEvent, None]:
        """The events of one turn; the last message of ``conversation`` is the owner's, and it grows as they come.

        The last event is TurnFinished or TurnFailed. Cancelled or closed early (``contextlib.aclosing``), the stream
        is closed, tools are killed, and ``conversation`` can go on.
        """
        events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        turn = RunningTurn(
            conversation,
            settings,
            tools,
            client,
            emit=events.put_nowait,
            approve=self._approve,
            retry_seconds=self._retry_seconds,
            clock=self._clock,
        )
        task = asyncio.create_task(turn.play())
        task.add_done_callback(lambda _: events.put_nowait(None))
        self._task, self._turn = task, turn
        try:
            while (event := await events.get()) is not None:
                yield event
            if turn.stopped and task.cancelled():  # stopped before it began
                yield TurnFinished(TurnTotals(), "stopped")
            else:
                await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
