"""How long each request waited for its slot: from its arrival at the server, told from the server's own lines. Pure.

Build 11434, at -lv 4 (tools/server): the HTTP thread writes ``conv_id=`` when a request arrives (server-stream.cpp; not
for embeddings). Between two batches the main loop looks at the new tasks in order: for each it writes ``skipping,
is_processing = 1`` of every busy slot, and where none is free it defers the task. A slot that is done calls the one
that was deferred first. So tasks begin in the order of their arrival; their numbers rise in it too, which tells where
one belongs whose client left. One that was refused arrived as well, and has no task: where that leaves a choice, the
wait is unknown.
"""

from __future__ import annotations

from collections import deque

from gpubox.server.log_events import (
    AllSlotsIdle,
    CachedTokens,
    GenerationProgressLine,
    LogEvent,
    NewPrompt,
    PromptProgressLine,
    RequestArrived,
    SlotBusy,
    SlotReleased,
    SlotSelected,
    TimingLine,
)

SLACK_SECONDS = 1.0
"""How long a request may be on its way to the main loop while that runs: its text is made tokens first."""
QUICK_SECONDS = 0.05
"""One that is younger than this may not be with the main loop yet when that looks."""
LONGEST_SECONDS = 10.0
_OF_THE_LOOP = (
    NewPrompt,
    CachedTokens,
    PromptProgressLine,
    GenerationProgressLine,
    TimingLine,
    SlotReleased,
    AllSlotsIdle,
)
"""Events that the main loop writes when it has looked at all tasks there were."""


class RequestQueue:
    """The server's own queue, as far as its log tells. Times are seconds of its clock; ``None``: in no line."""

    def __init__(self, *, lost: bool = False) -> None:
        self._arrived: deque[float] = deque(maxlen=4096)
        """Requests that the main loop has not looked at."""
        self._queue: deque[float | None] = deque(maxlen=4096)
        """Those that it has deferred, and those that left before it looked: by their arrival."""
        self._left: set[int] = set()
        """Tasks whose clients left before they began; each has its place in the queue."""
        self._busy: list[int] = []
        """Slots that were found busy for the task that is looked at now."""
        self._chosen = False
        """Whether a slot was chosen for a task that has not begun yet."""
        self._called = 0
        """How many of the queue were called by a slot that was done, and are looked at next."""
        self._unsure = 0
        """How many of the next to begin may be another than the queue says."""
        self._deferred, self._looked = 0, 0.0
        """How many tasks were deferred since the loop went on, and when the last was looked at."""
        self._unplaced = 0
        """How many left while others had not been looked at: nothing tells yet whether they were in the queue."""
        self._idle: float | None = None
        self._progressed: float | None = None
        self._lost = lost

    def feed(self, at: float, event: LogEvent) -> None:
        """Takes in one event, in order, before the request log does."""
        match event:
            case RequestArrived():
                self._arrived.append(at)
            case SlotBusy():
                if self._busy and event.slot <= self._busy[-1]:
                    self._defer(at)
                self._busy.append(event.slot)
            case SlotSelected():
                if self._chosen or (self._busy and (event.by == "id" or event.slot in self._busy)):
                    self._defer(at)
                self._busy, self._chosen = [], True
            case _ if isinstance(event, _OF_THE_LOOP):
                if self._busy or self._chosen:
                    self._defer(at)
                self._commit()
                self._go_on(at, event)

    def _go_on(self, at: float, event: LogEvent) -> None:
        """The loop has looked at all there was: what is left over of it, was refused."""
        match event:
            case AllSlotsIdle():
                for _ in range(min(len(self._left) - len(self._queue), len(self._arrived))):
                    self._arrived.popleft()
                self._queue.clear()
                self._left.clear()
                self._unplaced = 0
                self._called, self._progressed, self._lost = 0, None, False
                self._idle = at if self._idle is None else self._idle
                self._drop(at - SLACK_SECONDS)
            case NewPrompt() | CachedTokens():
                self._called = 0
                self._drop(at - SLACK_SECONDS)
            case GenerationProgressLine():
                if self._progressed is not None and self._progressed < at:
                    self._drop(self._progressed - SLACK_SECONDS)
                self._progressed = at
            case SlotReleased() if self._queue:
                self._called = min(self._called + 1, len(self._queue))
            case _:
                pass

    def left(self, task: int) -> None:
        """The client of a task that has not begun went away."""
        self._left.add(task)
        self._unplaced += bool(self._arrived)

    def taken(self, at: float, task: int, *, child: bool = False) -> float | None:
        """Seconds that a task has waited which a slot begins with now; ``None`` where no line tells.

        ``child``: one of several answers to the same prompt, which comes with its parent.
        """
        self._busy, self._chosen = [], False
        if child:
            return None
        self._commit()
        if self._left and self._called > 1:
            self._unsure = self._called  # the last is looked at first: where among them are those that left?
        gone = {earlier for earlier in self._left if earlier < task}
        self._left -= gone
        for _ in gone:
            if self._queue:
                self._queue.popleft()
            elif self._arrived:
                self._arrived.popleft()
        self._called = min(self._called, len(self._queue))
        arrived = self._next() if self._queue else self._new(at)
        self._idle = None
        unsure, self._unsure = self._unsure > 0, max(0, self._unsure - 1)
        return None if self._lost or unsure or arrived is None else max(0.0, at - arrived)

    def _next(self) -> float | None:
        """The one of the queue that is looked at now: of several that were called, the last."""
        at = min(max(0, self._called - 1), len(self._queue) - 1)
        self._called = max(0, self._called - 1)
        arrived = self._queue[at]
        del self._queue[at]
        return arrived

    def _new(self, at: float) -> float | None:
        """When the task arrived that finds a slot at once."""
        while self._idle is not None and len(self._arrived) > 1 and self._arrived[0] < at - SLACK_SECONDS:
            self._arrived.popleft()  # a slot would have begun with it then
        arrived = self._arrived.popleft() if self._arrived else None
        if arrived is not None and self._idle is not None and arrived < at - LONGEST_SECONDS:
            return None
        return arrived

    def _defer(self, at: float) -> None:
        """No slot began with the task that was looked at: it waits, or waits on."""
        self._busy, self._chosen, self._looked = [], False, at
        if self._called and self._queue:
            self._queue.append(self._next())
        else:
            self._deferred += 1

    def _commit(self) -> None:
        """Gives those that were deferred their arrivals."""
        if not self._deferred:
            return
        came = [arrived for arrived in self._arrived if arrived <= self._looked]
        while not self._unplaced and len(came) > self._deferred and came[-1] > self._looked - QUICK_SECONDS:
            came.pop()
        for _ in came:
            self._arrived.popleft()
        more = len(came) - self._deferred
        if 0 <= more <= self._unplaced:
            self._queue.extend(came)
        else:  # some were refused; with two prompts in one request there are more tasks than requests
            self._queue.extend([None] * self._deferred)
            self._lost = self._lost or bool(self._unplaced)
        self._deferred = self._unplaced = 0

    def _drop(self, before: float) -> None:
        """Leaves out those that the loop has passed over: they were refused, or they left and keep their place."""
        while self._arrived and self._arrived[0] < before:
            arrived = self._arrived.popleft()
            if self._unplaced:
                self._queue.append(arrived)
                self._unplaced -= 1
