"""Reads the history for the dashboard: in a thread, at the pace of the zoom, and only what is on the screen.

A history that is missing, damaged or busy is one sentence on the screen. Everything live works on without it.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpubox.errors import GpuboxError
from gpubox.threads import run_in_thread

if TYPE_CHECKING:
    from gpubox.telemetry.history.queries import HistoryQueries
    from gpubox.telemetry.history.values import Slowdown, StoredRequest
    from gpubox.tui.dashboard.request_history import RequestFilter
    from gpubox.tui.dashboard.stored_graph import StoredGraph, Zoom
    from gpubox.tui.services import LocalServices

REQUESTS_SECONDS, SLOWDOWNS_SECONDS = 30.0, 600.0
FIRST_SLOWDOWNS_SECONDS = 10.0
"""After the start: months are compared for them, and the screen has more urgent work then."""
TYPING_SECONDS = 0.15
"""How long nothing was typed before the history is searched."""
RETRY_SECONDS = 10.0
"""After a problem nothing is read more often than this."""
SEARCHED_FOR_TEXT = 5000
"""Newest requests that are searched for a text, which no index of the history knows."""
MAX_NAMES = 8
"""Profiles or clients that a part of a name may mean."""


@dataclass(frozen=True, slots=True)
class HistoryWish:
    """What the screen shows of the history now."""

    zoom: Zoom | None
    """None: no graph of it."""
    columns: int
    requests: RequestFilter | None
    """None: no list of it."""
    launch: object
    """Identifies the server that runs: another launch ends the list of the one before."""
    slowdowns: bool


@dataclass(frozen=True, slots=True)
class HistoryAnswer:
    """What was read; None: that was not asked for now, or could not be read."""

    graph: StoredGraph | None = None
    requests: tuple[StoredRequest, ...] | None = None
    searched: int = 0
    """How many of the newest requests were searched for a text; 0: all."""
    slowdowns: tuple[Slowdown, ...] | None = None
    problem: str = ""


class HistoryReader:
    """Asks the history for one dashboard. ``wish`` says what is wanted, ``show`` gets each answer."""

    def __init__(self, wish: Callable[[], HistoryWish], show: Callable[[HistoryAnswer], None]) -> None:
        self._wish, self._show = wish, show
        self._changed = asyncio.Event()
        self._queries: HistoryQueries | None = None
        self._due_at: dict[str, tuple[object, float]] = {}
        """Name of a part -> what was asked for, and when it is asked for again, in the event loop's time."""

    def wake(self) -> None:
        """The wish may be another one now."""
        self._changed.set()

    async def run(self, services: LocalServices) -> None:
        """Reads until cancelled."""
        self._due_at["slowdowns"] = None, asyncio.get_running_loop().time() + FIRST_SLOWDOWNS_SECONDS
        while True:
            self._changed.clear()
            wish = self._wish()
            if self._is_typed(wish):
                await asyncio.sleep(TYPING_SECONDS)
                wish = self._wish()
            parts = self._due(wish)
            if parts:
                await self._read(services, wish, parts)
            pause = self._pause(wish)
            try:
                async with asyncio.timeout(pause if math.isfinite(pause) else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _parts(self, wish: HistoryWish) -> dict[str, tuple[object, float]]:
        """The parts of the wish: what each asks for, and the seconds after which it is read again."""
        parts: dict[str, tuple[object, float]] = {}
        if wish.zoom:
            parts["graph"] = ((wish.zoom, wish.columns), wish.zoom.poll_seconds)
        if wish.requests is not None:
            parts["requests"] = ((wish.requests, wish.launch), REQUESTS_SECONDS)
        if wish.slowdowns:
            parts["slowdowns"] = (None, SLOWDOWNS_SECONDS)
        return parts

    def _is_typed(self, wish: HistoryWish) -> bool:
        """Whether the filter of the requests has just changed."""
        before = self._due_at.get("requests")
        return before is not None and wish.requests is not None and before[0] != (wish.requests, wish.launch)

    def _due(self, wish: HistoryWish) -> set[str]:
        now = asyncio.get_running_loop().time()
        due = set()
        for name, (asked, _) in self._parts(wish).items():
            before, at = self._due_at.get(name, (None, now))
            if before != asked or now >= at:
                due.add(name)
        return due

    def _pause(self, wish: HistoryWish) -> float:
        """Seconds until the next part is due."""
        now = asyncio.get_running_loop().time()
        return max(0.0, min((self._due_at[name][1] - now for name in self._parts(wish)), default=math.inf))

    async def _read(self, services: LocalServices, wish: HistoryWish, parts: set[str]) -> None:
        problem = ""
        try:
            answer = await run_in_thread(self._answer, services, wish, parts)
        except (GpuboxError, OSError) as error:
            problem = str(error)
        except Exception as error:  # a bug in a query must not end the screen
            services.save_traceback(traceback.format_exc())
            problem = f"The history could not be read: {type(error).__name__}."
        now = asyncio.get_running_loop().time()
        for name, (asked, seconds) in self._parts(wish).items():
            if name in parts:
                self._due_at[name] = (asked, now + (RETRY_SECONDS if problem else seconds))
        if problem:
            answer = HistoryAnswer(problem=problem)
        self._show(answer)

    def _answer(self, services: LocalServices, wish: HistoryWish, parts: set[str]) -> HistoryAnswer:
        """Asks the history. In a thread; one at a time."""
        queries = self._queries = self._queries or services.history_queries()
        now = services.clock().timestamp()
        stored_graph, requests, searched, slowdowns = None, None, 0, None
        if "graph" in parts and wish.zoom:
            stored_graph = read_graph(queries, wish.zoom, wish.columns, now)
        if "requests" in parts and wish.requests is not None:
            requests, searched = read_requests(queries, wish.requests, now)
        if "slowdowns" in parts:
            slowdowns = tuple(queries.slowdowns(now))
        return HistoryAnswer(stored_graph, requests, searched, slowdowns)


def read_graph(queries: HistoryQueries, zoom: Zoom, columns: int, now: float) -> StoredGraph:
    """What ``columns`` of a graph show."""
    from gpubox.tui.dashboard.stored_graph import StoredGraph, span_of

    span = span_of(zoom, columns, now)
    buckets = tuple(queries.buckets(span.since, span.until, span.count))
    return StoredGraph(zoom, span, now, buckets, tuple(queries.marks(span.since, span.until)))


def read_requests(queries: HistoryQueries, wanted: RequestFilter, now: float) -> tuple[tuple[StoredRequest, ...], int]:
    """The newest requests that match, newest first; and how many were searched if that were not all."""
    from gpubox.tui.dashboard.request_history import MAX_LISTED, listed_stored

    since, until = wanted.day_seconds or (0.0, now + 86_400)  # a clock that went back has left newer ones
    limit = SEARCHED_FOR_TEXT if wanted.words else MAX_LISTED
    profiles: list[str | None] = [None]
    if wanted.profile:
        profiles = _named(wanted.profile, (launch.profile for launch in queries.launches(since, until)))
    clients: list[str | None] = [None]
    if wanted.client:
        clients = _named(wanted.client, (usage.key for usage in queries.sums(since, until, by="client")))
    requests: list[StoredRequest] = []
    for profile in profiles:
        for client in clients:
            requests += queries.requests(since, until, profile=profile, client=client, limit=limit)
    matching = [
        request for request, listed in zip(requests, listed_stored(requests), strict=True) if wanted.matches(listed)
    ]
    matching.sort(key=lambda request: request.at, reverse=True)
    searched = limit if wanted.words and len(requests) >= limit else 0
    return tuple(matching[:MAX_LISTED]), searched


def _named(part: str, names: Iterable[str]) -> list[str | None]:
    """The names that a part of a name means: itself if there is such a name."""
    different = dict.fromkeys(names)
    equal = [name for name in different if name.lower() == part]
    return list(equal or [name for name in different if part in name.lower()][:MAX_NAMES])
