"""Brings the history to the panes: reads in a thread, at the pace of the zoom, and only what is on the screen.

A history that is missing, damaged or busy is one sentence on the screen. Everything live works on without it.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.dashboard.requests import RequestsPane
from gpubox.tui.dashboard.throughput import ThroughputPane

if TYPE_CHECKING:
    from gpubox.server.status import ServerStatus
    from gpubox.telemetry.history.queries import HistoryQueries
    from gpubox.telemetry.history.values import Slowdown, StoredRequest, UsageSum
    from gpubox.tui.dashboard.graph import StoredGraph, Zoom
    from gpubox.tui.dashboard.request_history import RequestFilter
    from gpubox.tui.messages import ProfileEntry
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
    """One thing that the screen shows of the history now."""

    asked: object
    """What of it: read at once if that changes, else after ``seconds``."""
    seconds: float
    read: Callable[[HistoryQueries, float], Any]
    """Blocks; gets the queries and the time in unix seconds."""
    show: Callable[[Any], None]


class HistoryController:
    """Reads nothing before ``run``, and only for panes that are on the screen."""

    def __init__(self, throughput: ThroughputPane, requests: RequestsPane, is_visible: Callable[[], bool]) -> None:
        """``is_visible``: whether the dashboard is the screen in front."""
        self.throughput, self.requests = throughput, requests
        self._is_visible = is_visible
        self._zoom = 0
        """Index in ZOOMS."""
        self._profile = ""
        self.usual: UsageSum | None = None
        """What is usual of the profile that runs; read once a figure is looked at."""
        self._compares = False
        self._launch: tuple[object, ...] = ()
        """Identifies the server that runs: another launch has ended the list of the one before."""
        self._changed = asyncio.Event()
        throughput.wants_history = self.wake
        self._queries: HistoryQueries | None = None
        self._due_at: dict[str, tuple[object, float]] = {}
        """Name of a wish -> what was asked for, and when it is asked for again, in the event loop's time."""

    async def run(self, services: LocalServices) -> None:
        """Shows what the history has, until cancelled; nothing for a server that gpubox did not start."""
        if services.read_only:
            return
        self.requests.clock = services.clock
        now = asyncio.get_running_loop().time
        self._due_at["slowdowns"] = None, now() + FIRST_SLOWDOWNS_SECONDS
        while True:
            self._changed.clear()
            wishes = self._wishes()
            if "requests" in wishes and "requests" in self._due_at and self._is_new("requests", wishes):
                await asyncio.sleep(TYPING_SECONDS)  # the owner types a filter
                wishes = self._wishes()
            due = {name for name in wishes if self._is_new(name, wishes) or now() >= self._due_at[name][1]}
            if due:
                await self._read(services, {name: wishes[name] for name in due})
            pause = max(0.0, min((self._due_at[name][1] for name in wishes), default=math.inf) - now())
            try:
                async with asyncio.timeout(pause if math.isfinite(pause) else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def wake(self) -> None:
        """The panes may show something else now."""
        self._changed.set()

    def compare_figures(self) -> None:
        """Somebody looks at the figures: what is usual is wanted from now on."""
        if not self._compares:
            self._compares = True
            self.wake()

    def explain(self, figure: str, entries: Iterable[ProfileEntry]) -> list[tuple[str, str]]:
        """What a figure is, whether it is good here, and what moves it: labels and harmless texts."""
        from gpubox.views.figures import Box, explain

        self.compare_figures()
        snapshot = self.throughput.snapshot
        running = snapshot.server.profile if snapshot else None
        plan = next((entry.plan for entry in entries if entry.profile and entry.name == running), None)
        said = explain(figure, Box(snapshot, self.usual, plan) if snapshot else None)
        return [(label, sanitize_line(text)) for label, text in said]

    def show_server(self, server: ServerStatus) -> None:
        """What runs now."""
        launch = (server.pid, server.started_at)
        if launch != self._launch:
            self._launch, self._profile, self.usual = launch, server.profile or "", None
            self.wake()

    def zoom_by(self, steps: int) -> int:
        """Shows the next longer or shorter time in the graph, if there is one. Returns its index."""
        from gpubox.tui.dashboard.graph import LIVE, ZOOMS

        self._zoom = max(LIVE, min(len(ZOOMS) - 1, self._zoom + steps))
        self.throughput.zoom = ZOOMS[self._zoom] if self._zoom != LIVE else None
        self.throughput.draw()
        self.wake()
        return self._zoom

    def _is_new(self, name: str, wishes: dict[str, HistoryWish]) -> bool:
        return name not in self._due_at or self._due_at[name][0] != wishes[name].asked

    def _wishes(self) -> dict[str, HistoryWish]:
        if not self._is_visible():
            return {}
        wishes = {}
        pane, columns = self.throughput, self.throughput.graph_columns
        if pane.display and columns > 0:
            if zoom := pane.zoom:
                read, show = partial(read_graph, zoom, columns), partial(setattr, pane, "stored")
                wishes["graph"] = HistoryWish((zoom, columns), zoom.poll_seconds, read, show)
            show = partial(setattr, pane, "slowdowns")
            wishes["slowdowns"] = HistoryWish(None, SLOWDOWNS_SECONDS, read_slowdowns, show)
        if self._profile and self._compares:
            read_it, show_it = partial(read_usual, self._profile), partial(setattr, self, "usual")
            wishes["usual"] = HistoryWish(self._launch, SLOWDOWNS_SECONDS, read_it, show_it)
        if self.requests.display:
            wanted = self.requests.wanted
            wishes["requests"] = HistoryWish(
                (wanted, self._launch), REQUESTS_SECONDS, partial(read_requests, wanted), self.requests.show_stored
            )
        return wishes

    async def _read(self, services: LocalServices, wishes: dict[str, HistoryWish]) -> None:
        """Reads the wishes in a thread, one after the other, and shows them; what was read before stays if it fails."""

        def read() -> list[Any]:
            queries = self._queries = self._queries or services.history_queries()
            now = services.clock().timestamp()
            return [wish.read(queries, now) for wish in wishes.values()]

        problem, answers = "", []
        try:
            answers = await run_in_thread(read)
        except (GpuboxError, OSError) as error:
            problem = str(error)
        except Exception as error:  # a bug in a query must not end the screen
            services.save_traceback(traceback.format_exc())
            problem = f"The history could not be read: {type(error).__name__}."
        now = asyncio.get_running_loop().time()
        for name, wish in wishes.items():
            self._due_at[name] = (wish.asked, now + (RETRY_SECONDS if problem else wish.seconds))
        self.throughput.history_problem = problem
        self.requests.show_problem(problem)
        for wish, answer in zip(wishes.values(), answers, strict=False):
            wish.show(answer)
        self.throughput.draw()


def read_graph(zoom: Zoom, columns: int, queries: HistoryQueries, now: float) -> StoredGraph:
    """What ``columns`` of a graph show."""
    from gpubox.tui.dashboard.graph import StoredGraph, span_of

    span = span_of(zoom, columns, now)
    buckets = tuple(queries.buckets(span.since, span.until, span.count))
    return StoredGraph(zoom, span, now, buckets, tuple(queries.marks(span.since, span.until)))


def read_slowdowns(queries: HistoryQueries, now: float) -> tuple[Slowdown, ...]:
    """What became slower, and since when."""
    return tuple(queries.slowdowns(now))


def read_usual(profile: str, queries: HistoryQueries, now: float) -> UsageSum | None:
    """What is usual of a profile."""
    from gpubox.views.figures import usual_of

    return usual_of(profile, queries, now)


def read_requests(wanted: RequestFilter, queries: HistoryQueries, now: float) -> tuple[tuple[StoredRequest, ...], int]:
    """The newest requests that match, newest first; and how many were searched if that were not all."""
    from gpubox.tui.dashboard.request_history import MAX_LISTED, listed_stored

    since, until = wanted.day_seconds or (0.0, now + 86_400)  # a clock that went back has left newer ones
    limit = SEARCHED_FOR_TEXT if wanted.words else MAX_LISTED
    profiles: list[str | None] = [None]
    if wanted.profile:
        profiles = _named(wanted.profile, (launch.profile for launch in queries.launches(since, until)))
    clients: list[str | None] = [None]
    if wanted.client:
        clients = _named(wanted.client, queries.clients(since, until))
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
