"""Lines that are made once for a width, and scrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpubox.tui.actions import Scope, bindings
from gpubox.tui.styled_lines import StyledLine
from gpubox.tui.widgets.scroll_keys import ScrollKeys
from gpubox.tui.widgets.styled_lines import StyledLines


class ScrollableLines(ScrollKeys, StyledLines, ScrollView, can_focus=True):
    """Shows what ``make`` returns for a width."""

    DEFAULT_CSS = """
    ScrollableLines { height: auto; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]

    def __init__(self, make: Callable[[int], list[StyledLine]]) -> None:
        super().__init__()
        self._make = make
        self._columns = 0

    def on_resize(self, event: events.Resize) -> None:
        self.remake()

    def remake(self) -> None:
        """Makes the lines where they are not yet made for this width."""
        width = self.scrollable_content_region.width
        if width > 0 and width != self._columns:
            self._columns = width
            self.drawn = self._make(width)
            self.virtual_size = Size(width, len(self.drawn))
            if self.show_vertical_scrollbar:
                # A layout tells the bar too, but later, and once in a while (seen on a fast machine) not at all.
                self.vertical_scrollbar.window_virtual_size = len(self.drawn)
            self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._make(width - 1))  # room for the scroll bar, whether it is there or not

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        row = self.scroll_offset.y + y
        return self.strip(self.drawn[row] if row < len(self.drawn) else (), self.size.width)
