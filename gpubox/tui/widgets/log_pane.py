"""The log with its filter line and its frame."""

from __future__ import annotations

from textual import on
from textual.containers import Vertical
from textual.widgets import Input, Static

from gpubox.tui.dashboard.log import LogView


class LogPane(Vertical):
    """A LogView, a filter line, and a title that says whether it follows."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = Input(placeholder="text in the line", id="log-filter", compact=True, select_on_focus=False)
        self.empty = Static("", id="log-empty", markup=False)
        self.view = LogView()
        self.filter.display = self.view.display = False
        self.border_title = "Log"

    def fill(self) -> None:
        """Mounts what is inside; after the first paint, as the other panes."""
        self.mount(self.filter, self.empty, self.view)
        self.watch(self.view, "follow", self._describe, init=False)

    def write(self, lines: list[str]) -> None:
        """Adds lines of the server's log."""
        self.view.write(lines)
        self._describe()

    def note(self, text: str) -> None:
        """Adds a line of gpubox's own."""
        self.view.note(text)
        self._describe()

    def say(self, text: str) -> None:
        """What stands here while there is no log."""
        self.empty.update(text)

    def open_filter(self) -> None:
        """Opens the filter line."""
        self.filter.display = True
        self.screen.set_focus(self.filter)

    def close_filter(self) -> bool:
        """Closes the filter line and shows all; whether there was anything to close."""
        if not self.filter.display and not self.filter.value:
            return False
        self.filter.value = ""
        self.filter.display = False
        self.screen.set_focus(self.view)
        return True

    @on(Input.Changed, "#log-filter")
    def _filtered(self, event: Input.Changed) -> None:
        self.view.narrow(event.value)
        self._describe()

    @on(Input.Submitted, "#log-filter")
    def _kept(self) -> None:
        self.screen.set_focus(self.view)
        if not self.filter.value:
            self.filter.display = False

    def _describe(self) -> None:
        empty = self.view.line_count == 0
        self.empty.display, self.view.display = empty, not empty
        words = [
            _matches(self.view.matches) if self.filter.value else "",
            "" if self.view.follow else "paused, G follows",
        ]
        subtitle = "  ".join(word for word in words if word)
        if self.border_subtitle != subtitle:
            self.border_subtitle = subtitle


def _matches(count: int) -> str:
    return "1 line matches" if count == 1 else f"{count:,} lines match"
