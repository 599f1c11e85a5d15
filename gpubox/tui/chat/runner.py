"""Runs one turn at a time: takes the events as they come, has the screen drawn a few times a second."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpubox.agent.events import ApprovalRequested, ReasoningDelta, TextDelta, TurnFailed, TurnStarted
from gpubox.errors import GpuboxError
from gpubox.tui.chat.replay import model_label
from gpubox.tui.chat.turn import TurnView

if TYPE_CHECKING:
    from gpubox.tui.chat.service import OpenChat

FRAME_SECONDS = 1 / 12
"""Between two drawings of a turn."""
REST_FACTOR = 12
"""After a drawing the next waits at least so many times as long as it took: the pane never takes a core."""


class TurnRunner:
    """Draws through ``draw``; ``stop`` ends the turn and whatever it runs."""

    def __init__(self, draw: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.turn: TurnView | None = None
        """The turn that runs, or ran last."""
        self.began = 0.0
        self.running = False
        self._draw, self._clock = draw, clock
        self._task: asyncio.Task[None] | None = None
        self._chat: OpenChat | None = None
        self._stopping = False
        self._dirty: asyncio.Event | None = None

    @property
    def seconds(self) -> float:
        """How long the turn has been running."""
        return self._clock() - self.began

    async def run(self, chat: OpenChat, turn: TurnView, text: str) -> None:
        """Runs the turn to its end. A failure is a part of the turn, never an exception."""
        self.turn, self.running, self.began = turn, True, self._clock()
        self._chat, self._stopping = chat, False
        self._task = asyncio.create_task(self._follow(chat, turn, text))
        dirty = self._dirty = asyncio.Event()
        drawing = asyncio.create_task(self._draws(dirty))
        try:
            await asyncio.wait([self._task])
            if not self._task.cancelled() and (error := self._task.exception()):
                raise error
        finally:
            if not self._task.done():  # the screen goes
                self._task.cancel()
                with contextlib.suppress(BaseException):
                    await self._task
            drawing.cancel()
            self.running = False
            turn.stop()
            self._draw()

    def stop(self) -> None:
        """Stops the turn that runs; what was said stays. The second time without waiting for its end."""
        if not (self._task and not self._task.done() and self._chat):
            return
        if self._stopping or not self._chat.stop():
            self._task.cancel()
        self._stopping = True

    async def _follow(self, chat: OpenChat, turn: TurnView, text: str) -> None:
        events = chat.send(text)
        try:
            async with contextlib.aclosing(events) as coming:
                async for event in coming:
                    if isinstance(event, TurnStarted) and (who := chat.endpoint):
                        turn.answered_by = model_label(who.profile_name or who.model, who.build)
                    turn.take(event, self._clock())
                    if self._dirty:
                        self._dirty.set()
                    if isinstance(event, ApprovalRequested):
                        self._draw()
                    if not isinstance(event, (TextDelta, ReasoningDelta)):
                        await asyncio.sleep(0)
        except GpuboxError as error:
            turn.take(TurnFailed(error.message, error.hint), self._clock())

    async def _draws(self, dirty: asyncio.Event) -> None:
        """Draws when something came, and once a second for the clock."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(dirty.wait(), 1.0)
            dirty.clear()
            began = self._clock()
            self._draw()
            await asyncio.sleep(max(FRAME_SECONDS, REST_FACTOR * (self._clock() - began)))
