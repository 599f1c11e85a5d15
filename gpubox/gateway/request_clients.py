"""Which client a request of the server's log came from: the log knows tokens and times, the gateway's ledger names."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from gpubox.clock import unix_time
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.history.writer import HistoryWriter

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Request


EARLIER, LATER = 2.0, 5.0
"""How many seconds earlier or later than the slot the gateway may be done with a request: a client may read slowly."""
MAX_REMEMBERED = 600
RequestKey = tuple[int, str]
"""Number and time of a request of the log."""


class RequestClients:
    """Remembers what the gateway has finished, which it tells only of the last 50, and names the log's requests.

    A name is given only if it is certain: profile and tokens (of the prompt, cached, generated) are equal, the times
    are near, and no request of another client, or past the gateway, could be meant. Else the request has none.
    """

    def __init__(self) -> None:
        self._finished: dict[FinishedRequest, None] = {}

    def add(self, finished: Iterable[FinishedRequest]) -> None:
        """Remembers these requests, newest first."""
        for request in reversed(tuple(finished)):
            self._finished[request] = None
        while len(self._finished) > MAX_REMEMBERED:
            del self._finished[next(iter(self._finished))]

    def names(self, requests: Sequence[Request], profile: str) -> dict[RequestKey, str] | None:
        """Client by key of a request, for those of one server that runs ``profile``; None before the first answer."""
        if not self._finished:
            return None
        clients = match_clients([(profile, request) for request in requests], self._finished)
        return {each.key: client for each, client in zip(requests, clients, strict=True) if client}


def match_clients(requests: Sequence[tuple[str, Request]], finished: Iterable[FinishedRequest]) -> list[str | None]:
    """The client of each request, which has its profile before it; None if none is certain."""
    groups: dict[object, tuple[list[tuple[float, int]], list[tuple[float, str]]]] = defaultdict(lambda: ([], []))
    for at, (profile, request) in enumerate(requests):
        known = None not in (request.prompt_tokens, request.generated_tokens)
        if known and (began := unix_time(request.at)) is not None:
            groups[profile, _tokens(request)][0].append((began + (request.duration_seconds or 0.0), at))
    for done in finished:
        group = done.profile, _tokens(done)
        if group in groups and (answered_at := unix_time(done.at)) is not None:
            groups[group][1].append((answered_at, done.client))
    clients: list[str | None] = [None] * len(requests)
    for logged, answered in groups.values():
        for rows in _near_each_other(sorted(logged)):
            first, last = rows[0][0] - EARLIER, rows[-1][0] + LATER
            near = [(at, client) for at, client in answered if first <= at <= last]
            if len({client for _, client in near}) != 1 or len(rows) > len(near):
                continue  # more rows than answers: one came past the gateway
            for ended, row in rows:
                if any(ended - EARLIER <= at <= ended + LATER for at, _ in near):
                    clients[row] = near[0][1]
    return clients


def _tokens(request: Request | FinishedRequest) -> tuple[int | None, ...]:
    return request.prompt_tokens, request.cached_tokens, request.generated_tokens


def _near_each_other(rows: Sequence[tuple[float, int]]) -> Iterator[Sequence[tuple[float, int]]]:
    """Stretches of requests for which the same answer could be meant."""
    begin = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at][0] - rows[at - 1][0] > EARLIER + LATER:
            yield rows[begin:at]
            begin = at


LIVE_SECONDS = 1800.0
"""Of requests that began so recently, only the end of the ledger is read."""
TAIL_BYTES = 1024 * 1024


def history_writer(paths: Paths, on_problem: Callable[[str], object] | None = None) -> HistoryWriter:
    """A writer of the history that names the clients, whether a gateway runs or not."""
    return HistoryWriter(paths, partial(clients_of, Ledger(paths.ledger)), on_problem=on_problem)


def clients_of(ledger: Ledger, requests: Sequence[StoredRequest]) -> list[str | None]:
    """The client of each request; None if it came past the gateway, or that is not certain.

    ``requests`` must be all of their stretch of time: certain means that no other could be meant.
    """
    if not requests:
        return []
    first = min(stored.at for stored in requests)
    last = max(stored.at + (stored.request.duration_seconds or 0.0) for stored in requests)
    is_live = time.time() - first < LIVE_SECONDS
    finished: list[FinishedRequest] = []
    day, until = date.fromtimestamp(first), date.fromtimestamp(last) + timedelta(days=1)  # it may end on the next day
    while day <= until:
        finished += ledger.requests(day, TAIL_BYTES if is_live else None)
        day += timedelta(days=1)
    return match_clients([(stored.profile, stored.request) for stored in requests], finished)
