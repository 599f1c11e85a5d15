"""Styled lines that scroll, and whose text can be selected with the mouse and copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from gpubox.tui.actions import Scope, bindings
from gpubox.tui.styled_lines import StyledLine
from gpubox.tui.widgets.scroll_keys import ScrollKeys
from gpubox.tui.widgets.styled_lines import StyledLines


class ScrollableLines(ScrollKeys, StyledLines, ScrollView, can_focus=True):
    """Shows the lines that ``make`` returns for the width of the widget."""

    DEFAULT_CSS = """
    ScrollableLines { height: auto; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]
    MARGIN: ClassVar[int] = 0
    """Cells at the left of each strip that are not part of the row."""

    _painting = False

    def __init__(self, make: Callable[[int], list[StyledLine]] = lambda width: []) -> None:
        super().__init__()
        self._make = make
        self._columns = 0

    def on_resize(self, event: events.Resize) -> None:
        self.remake()

    def remake(self) -> None:
        """Makes the lines if the width changed."""
        width = self.scrollable_content_region.width
        if width > 0 and width != self._columns:
            self._columns = width
            self.drawn = self._make(width)
            self.virtual_size = Size(width, len(self.drawn))
            if self.show_vertical_scrollbar:
                # The next layout sets this too, but sometimes too late (seen on a fast machine).
                self.vertical_scrollbar.window_virtual_size = len(self.drawn)
            self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._make(width - 1))  # leaves a column for the scroll bar, shown or not

    def row_count(self) -> int:
        """How many rows the content has."""
        return len(self.drawn)

    def row(self, y: int) -> StyledLine:
        """Row ``y`` of the content; empty below its end."""
        return self.drawn[y] if y < len(self.drawn) else ()

    def row_strip(self, y: int) -> Strip:
        """Row ``y`` of the content behind the margin, as wide as the widget."""
        return self.strip(self.row(y), self.size.width)

    # -- painting and selection -----------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        self._painting = True
        try:
            return super().render_lines(crop)
        finally:
            self._painting = False

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        y += self.scroll_offset.y
        strip = self.row_strip(y)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            length = sum(len(text) for text, _ in self.row(y))
            end = length if span[1] < 0 else min(span[1], length)
            strip = self._highlight(strip, self.MARGIN + max(0, span[0]), self.MARGIN + end)
        # Textual asks for single rows to find the character under the mouse. Painting needs no such offsets.
        return strip if self._painting else strip.apply_offsets(-self.MARGIN, y)

    def _highlight(self, strip: Strip, start: int, end: int) -> Strip:
        """``strip`` with its characters from ``start`` to ``end`` shown as selected."""
        background = self.screen.get_component_rich_style("screen--selection").bgcolor
        selected = Style(color=self.rich_style.color, bgcolor=background)  # the text's own colour may be unreadable
        segments: list[Segment] = []
        at = 0
        for text, style, _ in strip:
            first, last = (max(0, min(len(text), edge - at)) for edge in (start, max(start, end)))
            marked = style + selected if style else selected
            parts = ((text[:first], style), (text[first:last], marked), (text[last:], style))
            segments += [Segment(part, part_style) for part, part_style in parts if part]
            at += len(text)
        return Strip(segments, strip.cell_length)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, a line for each row. ``screen.copy_text`` (ctrl+c) copies it."""
        rows = []
        for y in range(self.row_count()):
            if (span := selection.get_span(y)) is not None:
                text = "".join(text for text, _ in self.row(y))
                rows.append(text[max(0, span[0]) : None if span[1] < 0 else span[1]].rstrip())
        return ("\n".join(rows), "\n") if rows else None

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()
