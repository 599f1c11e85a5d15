"""The rounds of a hosted turn: the agent's requests, as the gateway's ledger has them. What it does not say is unknown.

The lines of an agent are those of its key: where one agent works in two chats at a time, each counts both.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from gpubox.agent.events import RoundFinished, RoundTiming, TurnTotals
from gpubox.agent.timing import sum_timings
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger, local_day

_READ_BYTES = 512 * 1024
"""Of the end of the ledger: more requests than an agent ends between two looks."""
_LATEST_SECONDS = 1.0
MAX_ROUNDS = 1_000
Span = tuple[float, float]


class TurnRounds:
    """The clock of one turn. Times are seconds since the epoch."""

    def __init__(self, ledger: Path, client: str) -> None:
        self._ledger, self._client, self._began = Ledger(ledger), client, time.time()
        self._seen: set[tuple[str, float]] = set()
        self._requests: list[tuple[float, float, FinishedRequest]] = []
        """(begin, end, request)"""
        self._told = 0
        self._timings: list[RoundTiming] = []

    def read(self) -> bool:
        """Whether there are new requests. Blocking."""
        before = len(self._requests)
        days = {local_day(datetime.fromtimestamp(at).astimezone().isoformat()) for at in (self._began, time.time())}
        for day in sorted(days):
            for request in self._ledger.requests(day, _READ_BYTES):
                if request.client == self._client and len(self._requests) < MAX_ROUNDS:
                    self._add(request)
        return len(self._requests) > before

    @property
    def complete(self) -> bool:
        """Whether the last request known so far ended a moment ago: then no line is on its way."""
        return bool(self._requests) and time.time() - self._requests[-1][1] < _LATEST_SECONDS

    def _add(self, request: FinishedRequest) -> None:
        key = request.at, request.seconds
        try:
            end = datetime.fromisoformat(request.at).timestamp()
        except ValueError:
            return
        if key in self._seen or end < self._began or request.generated_tokens is None:
            return
        self._seen.add(key)
        self._requests.append((max(end - request.seconds, self._began), end, request))

    def finished(self, tools: list[Span], approvals: list[Span], *, all_of_them: bool = False) -> list[RoundFinished]:
        """The rounds that are over: of each request but the last, whose tools may still run."""
        rounds = []
        while self._told < len(self._requests) - (not all_of_them):
            self._told += 1
            begin = self._requests[self._told - 1][0] if self._told > 1 else self._began
            over = self._requests[self._told][0] if self._told < len(self._requests) else time.time()
            timing = _timing(self._requests[self._told - 1], (begin, max(begin, over)), tools, approvals)
            self._timings.append(timing)
            rounds.append(RoundFinished(self._told, timing))
        return rounds

    def totals(self, calls: int, failed: int) -> TurnTotals:
        """The sums of the rounds told so far."""
        wall = time.time() - self._began
        if not self._timings:
            return TurnTotals(
                0, RoundTiming(wall_seconds=wall, loop_seconds=wall, from_server=False), None, calls, failed
            )
        whole = sum_timings(self._timings)
        effective = whole.generated_tokens / wall if wall > 1e-6 and whole.generated_tokens else None
        return TurnTotals(len(self._timings), whole, effective, calls, failed)


def _timing(
    told: tuple[float, float, FinishedRequest], span: Span, tools: list[Span], asked: list[Span]
) -> RoundTiming:
    _, end, request = told
    wall = span[1] - span[0]
    queue = request.queue_seconds + request.swap_seconds
    prefill, generation = request.prefill_seconds or 0.0, request.generation_seconds or 0.0
    after = (min(end, span[1]), span[1])
    approval = sum(_overlap(each, after) for each in asked)
    tool = max(_covered(tools, after) - approval, 0.0)
    spent = queue + prefill + generation
    if spent > max(wall - tool - approval, 0.0) > 0:  # requests of one agent may overlap
        scale = (wall - tool - approval) / spent
        queue, prefill, generation = queue * scale, prefill * scale, generation * scale
    return RoundTiming(
        wall_seconds=wall,
        queue_seconds=queue,
        prefill_new_seconds=prefill,
        answer_seconds=generation,
        tool_seconds=tool,
        approval_seconds=approval,
        loop_seconds=max(wall - queue - prefill - generation - tool - approval, 0.0),
        prefill_new_tokens=request.read_tokens,
        cached_tokens=request.cached_tokens,
        generated_tokens=request.generated_tokens or 0,
        tg_tokens_per_second=request.tg_tokens_per_second,
        from_server=request.tg_tokens_per_second is not None,
    )


def _overlap(one: Span, other: Span) -> float:
    return max(min(one[1], other[1]) - max(one[0], other[0]), 0.0)


def _covered(spans: list[Span], within: Span) -> float:
    """Seconds of ``within`` in which at least one of the spans is."""
    covered, at = 0.0, within[0]
    for begin, end in sorted(spans):
        begin, end = max(begin, at), min(end, within[1])
        if end > begin:
            covered, at = covered + end - begin, end
    return covered
