"""Speeds from counters between polls: of llama-server's slots, and of another server's token counter. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gpubox.server.responses import Slot

WINDOW_SECONDS = 3.0
"""As in llama-server's own ``tg_3s``."""
MIN_SECONDS = 0.4
"""Over a shorter time the jitter of the polls dominates."""


@dataclass(slots=True)
class SlotProgress:
    """The last polls of one slot while it works on one request. Times are monotonic seconds."""

    task: int | None = None
    since: float = 0.0
    moved_at: float = 0.0
    """When a counter last changed."""
    counts: tuple[int, ...] = ()
    polls: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))
    """(time, generated tokens)"""

    def feed(self, at: float, slot: Slot) -> None:
        """Adds one poll taken at ``at``."""
        generated = slot.generated_tokens or 0
        counts = (generated, slot.context_used_tokens or 0, slot.processed_tokens or 0)
        if slot.task != self.task or (self.polls and (generated < self.polls[-1][1] or at < self.polls[-1][0])):
            self.task, self.since, self.moved_at = slot.task, at, at
            self.counts = ()
            self.polls.clear()
        if counts != self.counts:
            self.counts, self.moved_at = counts, at
        if generated:
            self.polls.append((at, generated))

    def tg(self, at: float) -> float | None:
        """Tokens per second over the last WINDOW_SECONDS; None while it is too short."""
        recent = [poll for poll in self.polls if at - poll[0] <= WINDOW_SECONDS + 0.05]
        if len(recent) < 2 or recent[-1][0] - recent[0][0] < MIN_SECONDS:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


class SlotRates:
    """The progress of all busy slots of one server."""

    def __init__(self) -> None:
        self._slots: dict[int, SlotProgress] = {}

    def feed(self, at: float, slots: tuple[Slot, ...]) -> None:
        """Adds one poll of /slots."""
        for slot in slots:
            if slot.busy:
                self._slots.setdefault(slot.index, SlotProgress()).feed(at, slot)
            else:
                self._slots.pop(slot.index, None)

    def tg(self, index: int, at: float) -> float | None:
        """The speed of one slot now."""
        progress = self._slots.get(index)
        return progress.tg(at) if progress else None

    def seconds(self, index: int, at: float) -> float | None:
        """How long the slot has been seen working on its request."""
        progress = self._slots.get(index)
        return at - progress.since if progress else None

    def seconds_since_step(self, index: int, at: float) -> float:
        """Seconds since the slot's counters changed (while reading a prompt: once for each batch); 0 if never."""
        progress = self._slots.get(index)
        return at - progress.moved_at if progress and progress.moved_at > progress.since else 0.0

    def seconds_unmoved(self, at: float) -> float:
        """Seconds since any busy slot moved; 0 if none is busy."""
        return min((at - progress.moved_at for progress in self._slots.values()), default=0.0)


class CounterRate:
    """The speed of one counter over the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque()

    def feed(self, at: float, value: float | None) -> None:
        """Adds a reading. Starts over if the counter decreased or is missing."""
        if value is None or (self._readings and value < self._readings[-1][1]):
            self._readings.clear()
        if value is not None:
            self._readings.append((at, value))
        while len(self._readings) > 2 and self._readings[-1][0] - self._readings[1][0] >= WINDOW_SECONDS:
            self._readings.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        """None before the second reading, and while the counter does not change."""
        if len(self._readings) < 2:
            return None
        (began, first), (ended, last) = self._readings[0], self._readings[-1]
        return (last - first) / (ended - began) if last > first and ended > began else None
