"""The base of long lists: one line per value, a cursor that stays on its value, and only changed rows repainted."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView

from gpubox.tui.actions import Scope, bindings
from gpubox.tui.styled_lines import pad_line
from gpubox.tui.widgets.lines import StyledLines

if TYPE_CHECKING:
    from gpubox.tui.styled_lines import StyledLine

Value = TypeVar("Value")


class CursorRows(StyledLines, ScrollView, Generic[Value], can_focus=True):
    """The lines. Subclasses define ``make_row``, and ``KEY`` if a value changes while its row stays."""

    DEFAULT_CSS = """
    CursorRows {
        height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; overflow-y: scroll; background: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS), Binding("enter", "open", show=False)]

    EMPTY_TEXT: str = ""
    """Shown while the list is empty."""
    empty_text: str = ""
    """Shown instead: why it is empty now."""
    CURSOR_RETURNS_TO_TOP: ClassVar[bool] = False
    """Whether the cursor goes to the first row while the list has no focus: for lists with the newest on top."""
    CURSOR_STYLES: ClassVar[tuple[str, str]] = ("", "on $cursor")
    """Style under the row of the cursor, without and with the focus; empty: not drawn."""
    KEY: ClassVar[str] = ""
    """The attribute that identifies a value, if its row stays while the value changes."""

    class RowOpened(Message):
        """Enter was pressed on a row, or it was double-clicked."""

        def __init__(self, value: Any) -> None:
            super().__init__()
            self.value = value

    class RowHighlighted(Message):
        """The cursor moved to another row."""

    class Resized(Message):
        """The rows have another width."""

    def __init__(self) -> None:
        super().__init__()
        self.values: tuple[Value, ...] = ()
        self.cursor = 0

    def make_row(self, value: Value, width: int) -> StyledLine:
        """The line of a value."""
        raise NotImplementedError

    def key(self, value: Value) -> Hashable:
        """Identifies the row of a value."""
        return getattr(value, self.KEY) if self.KEY else value

    @property
    def value(self) -> Value | None:
        """The value under the cursor."""
        return self.values[self.cursor] if self.cursor < len(self.values) else None

    def show_values(self, values: tuple[Value, ...]) -> None:
        """Shows ``values`` in their order."""
        if values == self.values:
            return
        current, first = self.value, self.values[0] if self.values else None
        stays = current is not None and (self.has_focus or not self.CURSOR_RETURNS_TO_TOP)
        added = 0 if first is None else self._index(values, self.key(first), 0)
        self.values = values
        nearest = min(self.cursor, max(0, len(values) - 1))
        self.cursor = self._index(values, self.key(current), nearest) if stays and current is not None else 0
        self.virtual_size = Size(self.size.width, len(values))
        if added and self.scroll_offset.y:  # rows that are being read stay in place
            self.scroll_to(y=self.scroll_offset.y + added, animate=False, immediate=True)
        self.redraw()

    def _index(self, values: tuple[Value, ...], key: Hashable, default: int) -> int:
        return next((index for index, value in enumerate(values) if self.key(value) == key), default)

    def highlight(self, key: Hashable) -> bool:
        """Moves the cursor to the row with this key. Returns False if there is none."""
        index = self._index(self.values, key, -1)
        if index >= 0:
            self.move_cursor(index)
        return index >= 0

    def redraw(self) -> None:
        """Makes the rows that are on the screen."""
        top, (width, height) = self.scroll_offset.y, self.scrollable_content_region.size
        cursor_style = self.CURSOR_STYLES[self.has_focus]
        rows: list[StyledLine] = []
        for index in range(top, min(len(self.values), top + height)):
            row = pad_line(self.make_row(self.values[index], width), width)
            if index == self.cursor and cursor_style:
                row = tuple((text, f"{style} {cursor_style}".strip()) for text, style in row)
            rows.append(row)
        if not self.values and (text := self.empty_text or self.EMPTY_TEXT):
            rows = [((text, "$quiet"),)]
        self.show(rows)

    def row_count(self) -> int:
        return len(self.values)

    def row(self, y: int) -> StyledLine:
        shown = y - self.scroll_offset.y
        if 0 <= shown < len(self.drawn):
            return self.drawn[shown]
        return self.make_row(self.values[y], self.size.width) if 0 <= y < len(self.values) else ()

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(self.size.width, len(self.values))
        self.redraw()
        self.post_message(self.Resized())

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self.redraw()

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self.redraw()  # the cursor is drawn only with the focus

    def move_cursor(self, index: int) -> None:
        """Moves the cursor to a row, and scrolls the row into view."""
        before = self.value
        self.cursor = max(0, min(len(self.values) - 1, index))
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True)
        self.redraw()
        if self.value is not before:
            self.post_message(self.RowHighlighted())

    def action_down(self) -> None:
        self.move_cursor(self.cursor + 1)

    def action_up(self) -> None:
        self.move_cursor(self.cursor - 1)

    def action_top(self) -> None:
        self.move_cursor(0)

    def action_bottom(self) -> None:
        self.move_cursor(len(self.values) - 1)

    def action_open(self) -> None:
        if self.value is not None:
            self.post_message(self.RowOpened(self.value))

    key_down, key_up = action_down, action_up

    def key_pagedown(self) -> None:
        self.move_cursor(self.cursor + max(1, self.size.height - 1))

    def key_pageup(self) -> None:
        self.move_cursor(self.cursor - max(1, self.size.height - 1))

    def on_click(self, event: events.Click) -> None:
        self.move_cursor(self.scroll_offset.y + event.y)
        if event.chain == 2:
            self.action_open()
