"""A run at work, read from its folder alone: whichever gpubox works on it, and wherever that was started."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from gpubox.bench.benchmark import flagged_headline, make_benchmark
from gpubox.bench.model import Item, Result, RunInfo
from gpubox.bench.run_store import Run

_RESULTS = "results.jsonl"


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far it is."""

    info: RunInfo
    done: int
    failed: int
    headline: str
    seconds_left: float | None
    """An estimate from what its items took so far."""
    now: str
    """The item in flight; empty where none is."""
    values: tuple[tuple[float, float], ...]
    """Number and value of each item that has one: what ``value_name`` says."""
    value_name: str
    last: tuple[Result, ...]
    """The newest results, the newest last."""
    owner: int | None = None
    """The process that works on it."""

    @property
    def at_work(self) -> bool:
        return self.info.state == "running"


class RunFollower:
    """Reads one run again and again, and of its results only what is new. Raises GpuboxError where it is damaged."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._items: list[Item] = []
        self._by_id: dict[str, Item] = {}
        self._results: dict[str, Result] = {}
        self._place: tuple[int, int] = (0, 0)
        self._decoder = msgspec.json.Decoder(Result)

    def read(self) -> RunProgress:
        """The run as it is now."""
        info = self.run.info
        if not self._items:
            self._items = self.run.items()
            self._by_id = {item.id: item for item in self._items}
        self._read_on()
        scored = [(item, self._results[item.id]) for item in self._items if item.id in self._results]
        name, values = _values(scored)
        waiting = next((item.id for item in self._items if item.id not in self._results), "")
        return RunProgress(
            info, len(scored), sum(result.failed for _, result in scored),
            flagged_headline(make_benchmark(info.plan), scored),
            self._left(), waiting if info.state == "running" else "", tuple(values), name,
            tuple(list(self._results.values())[-8:]), self.run.owner,
        )  # fmt: skip

    def _read_on(self) -> None:
        path = self.run.folder / _RESULTS
        try:
            found = path.stat()
        except OSError:
            return
        node, place = self._place
        if node != found.st_ino or found.st_size < place:  # scored again
            self._results, place = {}, 0
        with path.open("rb") as file:
            file.seek(place)
            data = file.read()
        end = data.rfind(b"\n") + 1
        for line in data[:end].split(b"\n"):
            try:
                result = self._decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            self._results.pop(result.item, None)  # the newest last
            self._results[result.item] = result
        self._place = (found.st_ino, place + end)

    def _left(self) -> float | None:
        done = [(self._by_id[name].weight, result.seconds) for name, result in self._results.items()
                if name in self._by_id and result.seconds]  # fmt: skip
        weight = sum(weight for weight, _ in done)
        waiting = [item.weight for item in self._items if item.id not in self._results]
        if not weight:
            return None
        pace = sum(seconds for _, seconds in done) / weight
        # The item in flight gets shorter while it runs; what it takes beyond its share is not taken from the others.
        in_flight = max(0.0, waiting[0] * pace - self._since_last()) if waiting else 0.0
        return in_flight + pace * sum(waiting[1:])

    def _since_last(self) -> float:
        """Seconds since the newest result was written, while the run is at work."""
        if self.run.info.state != "running":
            return 0.0
        try:
            return max(0.0, time.time() - (self.run.folder / _RESULTS).stat().st_mtime)
        except OSError:
            return 0.0


def _values(scored: list[tuple[Item, Result]]) -> tuple[str, list[tuple[float, float]]]:
    """tok/s of each item, or the share that passed so far."""
    counted = [(item, result) for item, result in scored if not item.warmup]
    rates = [(float(at), float(r.values["tg"])) for at, (_, r) in enumerate(counted, 1) if r.values.get("tg")]
    if rates:
        return "tg, tok/s", rates
    passed, points = 0, []
    judged = [result for _, result in counted if isinstance(result.values.get("passed"), bool)]
    for at, result in enumerate(judged, 1):
        passed += bool(result.values["passed"])
        points.append((float(at), 100 * passed / at))
    return "passed, %", points
