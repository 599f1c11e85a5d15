"""The base of the chat and Bench screens: the app creates one of each and feeds it, also in the background."""

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

CLIPBOARD_HINT = "(Needs a terminal with OSC 52; tmux: set-clipboard on.)"


class PersistentScreen(Screen[None]):
    """Subclasses show overviews and snapshots."""

    def show_overview(self, header: StatusHeader, overview: ServerOverview | None) -> None:
        """What runs has changed, or the clock. ``header`` is the dashboard's."""
        raise NotImplementedError

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """There are new readings."""
        raise NotImplementedError

    def say(self, text: str, *, bad: bool = False) -> None:
        """Shows a notification; as a warning if ``bad``."""
        self.notify(sanitize_line(text), severity="warning" if bad else "information", markup=False, timeout=6)

    def copy(self, text: str, label: str) -> None:
        """Copies ``text`` to the terminal's clipboard and says that ``label`` was copied."""
        self.app.copy_to_clipboard(text)
        self.say(f"Copied {label}. {CLIPBOARD_HINT}")

    def work(self, work: Callable[[], Coroutine[Any, Any, None]], group: str, *, exclusive: bool = False) -> None:
        """Runs ``work`` in a worker, and shows a GpuboxError as a warning."""

        async def run() -> None:
            try:
                await work()
            except GpuboxError as error:
                self.say(str(error), bad=True)

        worker: Any = run
        self.run_worker(worker, group=group, exclusive=exclusive)
