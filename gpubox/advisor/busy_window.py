"""The readings of the last minutes in which the server worked: a rule must not follow one reading. Pure."""

from __future__ import annotations

from collections import Counter, deque
from statistics import median

from gpubox.advisor.evidence import BusyReadings
from gpubox.telemetry.snapshot import Snapshot

WINDOW_SECONDS = 300.0
MAX_READINGS = 600


class BusyWindow:
    """Takes Snapshots of one server; of another one it begins anew."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float | None, str | None]] = deque(maxlen=MAX_READINGS)
        self._launch: object = None

    def feed(self, snapshot: Snapshot) -> None:
        """Adds one Snapshot, if the server works."""
        launch = (snapshot.server.pid, snapshot.server.started_at)
        if launch != self._launch or (self._readings and snapshot.at < self._readings[-1][0]):
            self._readings.clear()
            self._launch = launch
        if self._readings and snapshot.at == self._readings[-1][0]:
            return
        if snapshot.throughput.working:
            offload = snapshot.offload
            self._readings.append((snapshot.at, offload.major_faults_per_second, offload.bottleneck))
        while self._readings and snapshot.at - self._readings[0][0] > WINDOW_SECONDS:
            self._readings.popleft()

    @property
    def readings(self) -> BusyReadings:
        """What was read."""
        faults = [reading[1] for reading in self._readings if reading[1] is not None]
        names = Counter(reading[2] for reading in self._readings if reading[2])
        return BusyReadings(len(self._readings), median(faults) if faults else None, dict(names))
