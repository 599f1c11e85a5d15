"""What a server that is no llama-server says, in the Snapshot's words. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gpubox.server.other_server import OtherServerReading
from gpubox.telemetry.snapshot import Snapshot

WINDOW_SECONDS = 3.0
"""As long as the stretch over which llama-server's own tg now is taken."""


class CounterRate:
    """The speed of a counter over the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque()

    def feed(self, at: float, value: float | None) -> None:
        """Takes a reading; one that went back, or is missing, begins anew."""
        if value is None or (self._readings and value < self._readings[-1][1]):
            self._readings.clear()
        if value is not None:
            self._readings.append((at, value))
        while len(self._readings) > 2 and self._readings[-1][0] - self._readings[1][0] >= WINDOW_SECONDS:
            self._readings.popleft()

    @property
    def tokens_per_second(self) -> float | None:
        """``None`` before the second reading, and while the counter stands."""
        if len(self._readings) < 2:
            return None
        (began, first), (ended, last) = self._readings[0], self._readings[-1]
        return (last - first) / (ended - began) if last > first and ended > began else None


def with_other_server(
    snapshot: Snapshot, other_server: OtherServerReading, tokens_per_second: float | None
) -> Snapshot:
    """``snapshot`` with what ``other_server`` says; the speed is of its counter of generated tokens, all requests together."""
    through = replace(
        snapshot.throughput,
        tg_tokens_per_second=tokens_per_second,
        busy_slots=other_server.running_requests,
        queued_requests=other_server.waiting_requests,
    )
    return replace(snapshot, throughput=through, other_server=other_server)
