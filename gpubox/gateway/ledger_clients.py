"""Names the requests of the history: which client of the gateway they came from, by its ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from gpubox.gateway.ledger import Ledger
from gpubox.gateway.request_clients import match_clients
from gpubox.gateway.status import FinishedRequest
from gpubox.paths import Paths
from gpubox.telemetry.history.values import StoredRequest
from gpubox.telemetry.history.writer import HistoryWriter

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
