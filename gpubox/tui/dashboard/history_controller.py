"""Brings the history to the panes of one dashboard: says what they show of it, and passes them what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpubox.tui.dashboard.requests import RequestsPane
from gpubox.tui.dashboard.throughput import ThroughputPane

if TYPE_CHECKING:
    from gpubox.server.status import ServerStatus
    from gpubox.tui.dashboard.history_reader import HistoryAnswer, HistoryReader, HistoryWish
    from gpubox.tui.services import LocalServices


class HistoryController:
    """Reads nothing before ``run``, and only for panes that are on the screen."""

    def __init__(self, throughput: ThroughputPane, requests: RequestsPane, is_visible: Callable[[], bool]) -> None:
        """``is_visible``: whether the dashboard is the screen in front."""
        self.throughput, self.requests = throughput, requests
        self.reader: HistoryReader | None = None
        """None before the first paint, and where there is no history."""
        self._is_visible = is_visible
        self._zoom = 0
        """Index in ZOOMS."""
        self._launch: tuple[object, ...] = ()
        """Identifies the server that runs."""

    async def run(self, services: LocalServices) -> None:
        """Shows what the history has, until cancelled; nothing for a server that gpubox did not start."""
        if services.read_only:
            return
        from gpubox.tui.dashboard.history_reader import HistoryReader

        self.requests.clock = services.clock
        self.reader = HistoryReader(self._wish, self._show)
        await self.reader.run(services)

    def wake(self) -> None:
        """The panes may show something else now."""
        if self.reader:
            self.reader.wake()

    def show_server(self, server: ServerStatus) -> None:
        """Another launch has ended the list of the one before."""
        launch = (server.pid, server.started_at)
        if launch != self._launch:
            self._launch = launch
            self.wake()

    def zoom_by(self, steps: int) -> None:
        """Shows the next longer or shorter time in the graph, if there is one."""
        from gpubox.tui.dashboard.stored_graph import LIVE, ZOOMS

        self._zoom = max(LIVE, min(len(ZOOMS) - 1, self._zoom + steps))
        self.throughput.zoom = ZOOMS[self._zoom] if self._zoom != LIVE else None
        self.throughput.draw()
        self.wake()

    def _wish(self) -> HistoryWish:
        from gpubox.tui.dashboard.history_reader import HistoryWish

        visible, columns = self._is_visible(), self.throughput.graph_columns
        has_graph = visible and self.throughput.display and columns > 0
        has_list = visible and self.requests.display
        return HistoryWish(
            self.throughput.zoom if has_graph else None,
            columns,
            self.requests.wanted if has_list else None,
            self._launch,
            has_graph,
        )

    def _show(self, answer: HistoryAnswer) -> None:
        self.requests.problem = self.throughput.history_problem = answer.problem
        if answer.graph:
            self.throughput.stored = answer.graph
        if answer.slowdowns is not None:
            self.throughput.slowdowns = answer.slowdowns
        if answer.requests is not None or answer.problem:
            self.requests.show_stored(answer.requests, answer.searched)
        self.throughput.draw()
