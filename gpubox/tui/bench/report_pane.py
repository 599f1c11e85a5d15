"""The pane beside the list: lines made for its width, scrolled, with a title that says whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.styled_lines import StyledLine
from gpubox.tui.widgets.scrollable_lines import ScrollableLines

MakeLines = Callable[[int], list[StyledLine]]


class ReportPane(ScrollableLines):
    """Shows what ``put`` was given last."""

    DEFAULT_CSS = """
    ReportPane {
        height: 1fr; width: 1fr; overflow-y: scroll; border: round $line; padding: 0 1; background: $background;
        border-title-color: $secondary; border-title-style: bold; border-subtitle-color: $quiet;
        &:focus { border: round $line-focus; border-title-color: $foreground; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]

    def __init__(self) -> None:
        super().__init__(lambda width: [])
        self.shown = ""
        """What stands there."""

    def put(self, shown: str, title: str, make: MakeLines) -> None:
        """Shows other lines; the place stays where they are of the same thing."""
        if shown != self.shown:
            self.scroll_to(y=0, animate=False, immediate=True)
        self.shown, self._make, self._columns = shown, make, 0
        self.border_title = Content(sanitize_line(title))
        self.remake()
