"""Names the requests of the history: which client of the gateway they came from, by its ledger."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.gateway.ledger import Ledger, readable_requests
from gpubox.gateway.request_clients import match_clients, request_key
from gpubox.gateway.status import FinishedRequest
from gpubox.storage import open_regular

if TYPE_CHECKING:
    from gpubox.telemetry.history_values import StoredRequest

LIVE_SECONDS = 1800.0
"""Of requests that began so recently, only the end of the ledger is read."""
TAIL_BYTES = 1024 * 1024


class LedgerClients:
    """Asks the ledger on disk, whether a gateway runs or not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def clients_of(self, requests: Sequence[StoredRequest]) -> list[str | None]:
        """The client of each request; None if it came past the gateway, or that is not certain.

        ``requests`` must be all of their stretch of time: certain means that no other could be meant.
        """
        if not requests or not self._folder.is_dir():
            return [None] * len(requests)
        first, last = (datetime.fromtimestamp(at).astimezone() for at in _ends(requests))
        tail = datetime.now().astimezone() - first < timedelta(seconds=LIVE_SECONDS)
        finished: list[FinishedRequest] = []
        day, until = first.date(), (last + timedelta(days=1)).date()  # an answer may end on the next day
        while day <= until:
            path = Ledger(self._folder).path(day)
            finished += _tail(path) if tail else Ledger(self._folder).requests(day)
            day += timedelta(days=1)
        groups: dict[str, list[StoredRequest]] = defaultdict(list)
        for stored in requests:
            groups[stored.profile].append(stored)
        names = {
            profile: match_clients([stored.request for stored in group], finished, profile)
            for profile, group in groups.items()
        }
        return [names[stored.profile].get(request_key(stored.request)) for stored in requests]


def _ends(requests: Sequence[StoredRequest]) -> tuple[float, float]:
    return min(stored.at for stored in requests), max(
        stored.at + (stored.request.duration_seconds or 0.0) for stored in requests
    )


def _tail(path: Path) -> list[FinishedRequest]:
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return []
    whole = data[: data.rfind(b"\n") + 1]
    return list(readable_requests(whole if size <= TAIL_BYTES else whole.partition(b"\n")[2]))
