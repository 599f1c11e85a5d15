"""How long each request waited for its slot, since its arrival at the server, from the server's log lines. Pure.

Build 11434, at -lv 4 (tools/server): the HTTP thread writes ``conv_id=`` when a request arrives (server-stream.cpp; not
for embeddings). Between two batches the main loop handles the new tasks in order. For each it writes ``skipping,
is_processing = 1`` for every busy slot; if none is free, it defers the task. A slot that finishes recalls the task that
was deferred first. So tasks begin in the order of arrival. Their numbers rise in that order too, which places a task
whose client left. A refused request also arrived but has no task: where that makes the order ambiguous, the time is
unknown.
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

TOKENIZING_SECONDS = 1.0
"""How long a request may take from its arrival to the main loop: its text is tokenized first."""
HANDOVER_SECONDS = 0.05
"""A younger request may not have reached the main loop yet."""
MAX_WAIT_SECONDS = 10.0
_MAIN_LOOP_EVENTS = (
    NewPrompt,
    CachedTokens,
    PromptProgressLine,
    GenerationProgressLine,
    TimingLine,
    SlotReleased,
    AllSlotsIdle,
)
"""Events that the main loop writes after it handled all new tasks."""


class RequestQueue:
    """The server's task queue, as far as its log shows. Times are seconds of its clock; None: not in the log."""

    def __init__(self, *, lost: bool = False) -> None:
        self._arrived: deque[float] = deque(maxlen=4096)
        """Requests that the main loop has not handled yet."""
        self._deferred: deque[float | None] = deque(maxlen=4096)
        """Arrivals of deferred tasks, and of tasks that were cancelled before the loop handled them."""
        self._cancelled: set[int] = set()
        """Tasks that were cancelled before they began. Each still has its place in ``_deferred``."""
        self._busy_slots: list[int] = []
        """Slots that were busy for the task that is being handled."""
        self._slot_selected = False
        """A slot was selected for a task that has not begun yet."""
        self._recalled = 0
        """How many deferred tasks were recalled by finished slots and are handled next."""
        self._ambiguous = 0
        """How many of the next tasks to begin may be in another order."""
        self._new_deferrals, self._handled_at = 0, 0.0
        """Tasks deferred since the loop went on, and when the last of them was handled."""
        self._unplaced = 0
        """Cancelled tasks of which it is not known yet whether they had been deferred."""
        self._idle_since: float | None = None
        self._progressed_at: float | None = None
        self._lost = lost

    def feed(self, at: float, event: LogEvent) -> None:
        """Processes one event, in order, before ``launched`` and ``cancelled`` of the same line."""
        match event:
            case RequestArrived():
                self._arrived.append(at)
            case SlotBusy():
                if self._busy_slots and event.slot <= self._busy_slots[-1]:
                    self._defer(at)
                self._busy_slots.append(event.slot)
            case SlotSelected():
                if self._slot_selected or (self._busy_slots and (event.by == "id" or event.slot in self._busy_slots)):
                    self._defer(at)
                self._busy_slots, self._slot_selected = [], True
            case _ if isinstance(event, _MAIN_LOOP_EVENTS):
                if self._busy_slots or self._slot_selected:
                    self._defer(at)
                self._place_deferrals()
                self._handled_all(at, event)

    def _handled_all(self, at: float, event: LogEvent) -> None:
        """The loop handled all new tasks: a request that arrived well before and is still there was refused."""
        match event:
            case AllSlotsIdle():
                for _ in range(min(len(self._cancelled) - len(self._deferred), len(self._arrived))):
                    self._arrived.popleft()
                self._deferred.clear()
                self._cancelled.clear()
                self._unplaced = 0
                self._recalled, self._progressed_at, self._lost = 0, None, False
                self._idle_since = at if self._idle_since is None else self._idle_since
                self._drop_refused(at - TOKENIZING_SECONDS)
            case NewPrompt() | CachedTokens():
                self._recalled = 0
                self._drop_refused(at - TOKENIZING_SECONDS)
            case GenerationProgressLine():
                if self._progressed_at is not None and self._progressed_at < at:
                    self._drop_refused(self._progressed_at - TOKENIZING_SECONDS)
                self._progressed_at = at
            case SlotReleased() if self._deferred:
                self._recalled = min(self._recalled + 1, len(self._deferred))
            case _:
                pass

    def cancelled(self, task: int) -> None:
        """The client of a task that has not begun went away."""
        self._cancelled.add(task)
        self._unplaced += bool(self._arrived)

    def launched(self, at: float, task: int, *, child: bool = False) -> float | None:
        """A slot begins with a task. Returns the seconds that it waited, or None if the log does not show it.

        ``child``: one of several answers to the same prompt, which arrived with its parent.
        """
        self._busy_slots, self._slot_selected = [], False
        if child:
            return None
        self._place_deferrals()
        if self._cancelled and self._recalled > 1:
            self._ambiguous = self._recalled  # the one recalled last begins first: which of them were cancelled?
        gone = {earlier for earlier in self._cancelled if earlier < task}
        self._cancelled -= gone
        for _ in gone:
            if self._deferred:
                self._deferred.popleft()
            elif self._arrived:
                self._arrived.popleft()
        self._recalled = min(self._recalled, len(self._deferred))
        arrived = self._pop_deferred() if self._deferred else self._pop_arrived(at)
        self._idle_since = None
        ambiguous, self._ambiguous = self._ambiguous > 0, max(0, self._ambiguous - 1)
        return None if self._lost or ambiguous or arrived is None else max(0.0, at - arrived)

    def _pop_deferred(self) -> float | None:
        """The arrival of the deferred task that is handled now: of several recalled ones, the last."""
        index = min(max(0, self._recalled - 1), len(self._deferred) - 1)
        self._recalled = max(0, self._recalled - 1)
        arrived = self._deferred[index]
        del self._deferred[index]
        return arrived

    def _pop_arrived(self, at: float) -> float | None:
        """The arrival of a task that gets a slot at once."""
        while self._idle_since is not None and len(self._arrived) > 1 and self._arrived[0] < at - TOKENIZING_SECONDS:
            self._arrived.popleft()  # refused: otherwise an idle slot would have begun with it
        arrived = self._arrived.popleft() if self._arrived else None
        if arrived is not None and self._idle_since is not None and arrived < at - MAX_WAIT_SECONDS:
            return None
        return arrived

    def _defer(self, at: float) -> None:
        """No slot was free for the task that was handled: it is deferred, perhaps once more."""
        self._busy_slots, self._slot_selected, self._handled_at = [], False, at
        if self._recalled and self._deferred:
            self._deferred.append(self._pop_deferred())
        else:
            self._new_deferrals += 1

    def _place_deferrals(self) -> None:
        """Moves the arrivals of newly deferred tasks into ``_deferred``."""
        if not self._new_deferrals:
            return
        handled = [arrived for arrived in self._arrived if arrived <= self._handled_at]
        newest = self._handled_at - HANDOVER_SECONDS
        while not self._unplaced and len(handled) > self._new_deferrals and handled[-1] > newest:
            handled.pop()
        for _ in handled:
            self._arrived.popleft()
        surplus = len(handled) - self._new_deferrals
        if 0 <= surplus <= self._unplaced:
            self._deferred.extend(handled)
        else:  # some were refused; a request with two prompts makes more tasks than arrivals
            self._deferred.extend([None] * self._new_deferrals)
            self._lost = self._lost or bool(self._unplaced)
        self._new_deferrals = self._unplaced = 0

    def _drop_refused(self, before: float) -> None:
        """Removes arrivals that the loop has passed: refused requests. Cancelled ones keep their place."""
        while self._arrived and self._arrived[0] < before:
            arrived = self._arrived.popleft()
            if self._unplaced:
                self._deferred.append(arrived)
                self._unplaced -= 1
