"""Which client a request of the server's log came from: the log knows tokens and times, the gateway's ledger names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.paths import Paths
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.history.writer import HistoryWriter

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Request


EARLIER, LATER = timedelta(seconds=2), timedelta(seconds=5)
"""How much earlier or later than the slot the gateway may be done with a request: a client may read slowly."""
MAX_REMEMBERED = 600
RequestKey = tuple[int, str]
"""Number and time of a request of the log."""


class RequestClients:
    """Remembers what the gateway has finished, which it tells only of the last 50, and names the log's requests.

    A name is given only if it is certain: profile, prompt tokens and generated tokens are equal, the times are near,
    and no request of another client, or past the gateway, could be meant. Else the request has none.
    """

    def __init__(self) -> None:
        self._finished: dict[FinishedRequest, None] = {}
        self._asked: tuple[object, ...] = ()
        self._names: dict[RequestKey, str] = {}

    @property
    def any(self) -> bool:
        """Whether the gateway has finished anything."""
        return bool(self._finished)

    def add(self, finished: Iterable[FinishedRequest]) -> None:
        """Remembers these requests, newest first."""
        for request in reversed(tuple(finished)):
            self._finished[request] = None
        while len(self._finished) > MAX_REMEMBERED:
            del self._finished[next(iter(self._finished))]

    def names(self, requests: Sequence[Request], profile: str) -> dict[RequestKey, str]:
        """Client by key of a request, for the requests of one server that runs ``profile``."""
        asked = (len(self._finished), next(reversed(self._finished), None), requests, profile)
        if asked != self._asked:
            self._asked, self._names = asked, match_clients(requests, self._finished, profile)
        return self._names


def match_clients(
    requests: Iterable[Request], finished: Iterable[FinishedRequest], profile: str
) -> dict[RequestKey, str]:
    """Client by key of a request; requests without a certain client are left out."""
    groups: dict[tuple[int, int], tuple[list[Request], list[FinishedRequest]]] = defaultdict(lambda: ([], []))
    for request in requests:
        if request.prompt_tokens is not None and request.generated_tokens is not None:
            groups[request.prompt_tokens, request.generated_tokens][0].append(request)
    for done in finished:
        if done.profile == profile and done.prompt_tokens is not None and done.generated_tokens is not None:
            groups[done.prompt_tokens, done.generated_tokens][1].append(done)
    names: dict[RequestKey, str] = {}
    for logged, answered in groups.values():
        if logged and answered:
            names.update(_names_in_group(logged, answered))
    return names


def _names_in_group(requests: list[Request], finished: list[FinishedRequest]) -> dict[RequestKey, str]:
    """The names in a group of requests with equal tokens: those near in time are one cluster, named as a whole."""
    edges = [
        (row, at)
        for row, request in enumerate(requests)
        for at, done in enumerate(finished)
        if _near(request, done)
    ]  # fmt: skip
    names = {}
    for rows, ats in _clusters(edges):
        clients = {finished[at].client for at in ats}
        if len(clients) == 1 and len(rows) <= len(ats):  # more rows than answers: one came past the gateway
            names.update(dict.fromkeys((requests[row].key for row in rows), clients.pop()))
    return names


def _near(request: Request, done: FinishedRequest) -> bool:
    cached = {request.cached_tokens, done.cached_tokens} - {None}
    if len(cached) > 1:
        return False
    try:
        ended = datetime.fromisoformat(request.at) + timedelta(seconds=request.duration_seconds or 0.0)
        return ended - EARLIER <= datetime.fromisoformat(done.at) <= ended + LATER
    except (ValueError, TypeError):  # not a time, or one without a zone
        return False


def _clusters(edges: list[tuple[int, int]]) -> list[tuple[set[int], set[int]]]:
    """The connected parts: (rows, answers) each."""
    clusters: list[tuple[set[int], set[int]]] = []
    for row, at in edges:
        touched = [part for part in clusters if row in part[0] or at in part[1]]
        clusters = [part for part in clusters if part not in touched]
        clusters.append(({row}.union(*(rows for rows, _ in touched)), {at}.union(*(ats for _, ats in touched))))
    return clusters


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
    first, last = (datetime.fromtimestamp(at).astimezone() for at in _ends(requests))
    is_live = datetime.now().astimezone() - first < timedelta(seconds=LIVE_SECONDS)
    finished: list[FinishedRequest] = []
    day, until = first.date(), (last + timedelta(days=1)).date()  # an answer may end on the next day
    while day <= until:
        finished += ledger.requests(day, TAIL_BYTES if is_live else None)
        day += timedelta(days=1)
    groups: dict[str, list[StoredRequest]] = defaultdict(list)
    for stored in requests:
        groups[stored.profile].append(stored)
    names = {
        profile: match_clients([stored.request for stored in group], finished, profile)
        for profile, group in groups.items()
    }
    return [names[stored.profile].get(stored.request.key) for stored in requests]


def _ends(requests: Sequence[StoredRequest]) -> tuple[float, float]:
    return min(stored.at for stored in requests), max(
        stored.at + (stored.request.duration_seconds or 0.0) for stored in requests
    )
