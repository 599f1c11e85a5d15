"""Speeds from counters that move: the slots' own token counts between polls. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gpubox.server.responses import Slot

WINDOW_SECONDS = 3.0
LEAST_SECONDS = 0.4
"""A shorter stretch says more about the poll's jitter than about the model."""
STUCK_SECONDS = 20.0


@dataclass(slots=True)
class SlotProgress:
    """The last polls of one slot while it works on one request."""

    task: int | None = None
    since: float = 0.0
    moved: float = 0.0
    counts: tuple[int, ...] = ()
    """All that moves while it works."""
    polls: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))

    def feed(self, at: float, slot: Slot) -> None:
        """Takes in one poll taken at ``at`` (monotonic seconds)."""
        generated = slot.generated_tokens or 0
        counts = (generated, slot.context_used_tokens or 0, slot.processed_tokens or 0)
        if slot.task != self.task or (self.polls and (generated < self.polls[-1][1] or at < self.polls[-1][0])):
            self.task, self.since, self.moved = slot.task, at, at
            self.counts = ()
            self.polls.clear()
        if counts != self.counts:
            self.counts, self.moved = counts, at
        if generated:
            self.polls.append((at, generated))

    def tg(self, at: float) -> float | None:
        """Tokens per second over the last WINDOW_SECONDS of generation; ``None`` before it means anything."""
        recent = [poll for poll in self.polls if at - poll[0] <= WINDOW_SECONDS + 0.05]
        if len(recent) < 2 or recent[-1][0] - recent[0][0] < LEAST_SECONDS:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


class SlotRates:
    """The tracks of all slots of one server."""

    def __init__(self) -> None:
        self._tracks: dict[int, SlotProgress] = {}

    def feed(self, at: float, slots: tuple[Slot, ...]) -> None:
        """Takes in one poll of /slots. An idle slot is forgotten."""
        for slot in slots:
            if slot.busy:
                self._tracks.setdefault(slot.index, SlotProgress()).feed(at, slot)
            else:
                self._tracks.pop(slot.index, None)

    def tg(self, index: int, at: float) -> float | None:
        """The speed of one slot now."""
        track = self._tracks.get(index)
        return track.tg(at) if track else None

    def seconds(self, index: int, at: float) -> float | None:
        """How long the slot has worked on its request, as far as it was watched."""
        track = self._tracks.get(index)
        return at - track.since if track else None

    def since_step(self, index: int, at: float) -> float:
        """Seconds since the slot's counts last moved on (a prompt's: by a batch at a time); 0 where none was seen."""
        track = self._tracks.get(index)
        return at - track.moved if track and track.moved > track.since else 0.0

    def stuck(self, at: float) -> bool:
        """Whether slots are busy and none has moved by one token for STUCK_SECONDS."""
        return self.unmoved(at) > STUCK_SECONDS

    def unmoved(self, at: float) -> float:
        """Seconds since any busy slot moved; 0 while none is busy."""
        return min((at - track.moved for track in self._tracks.values()), default=0.0)
