"""A screen beside the dashboard: what the app tells it, and work that says in one sentence what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.messages import ServerOverview
    from gpubox.tui.widgets.header import StatusHeader


class PersistentScreen(Screen[None]):
    """The app has one of each and keeps it; what it tells arrives also while another screen is in front."""

    def show_overview(self, header: StatusHeader, now: ServerOverview | None) -> None:
        """What runs changed, or the minute. ``header`` is the dashboard's."""
        raise NotImplementedError

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """New readings."""
        raise NotImplementedError

    def opened(self) -> None:
        """Its key was pressed, whether it was in front or not."""

    def say(self, text: str, *, bad: bool = False) -> None:
        """A sentence that goes away by itself."""
        self.notify(sanitize_line(text), severity="warning" if bad else "information", markup=False, timeout=6)

    def work(self, work: Callable[[], Coroutine[Any, Any, None]], group: str, *, exclusive: bool = False) -> None:
        """Runs ``work`` beside the screen. What the owner can mend is said in one sentence."""

        async def told() -> None:
            try:
                await work()
            except GpuboxError as error:
                self.say(str(error), bad=True)

        run: Any = told
        self.run_worker(run, group=group, exclusive=exclusive)
