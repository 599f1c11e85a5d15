"""The base of long lists: one line a value, a cursor that stays on its value, and only changed rows repainted."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpubox.tui.actions import Scope, bindings
from gpubox.tui.widgets.styled_lines import StyledLines

if TYPE_CHECKING:
    from gpubox.tui.styled_lines import StyledLine

Value = TypeVar("Value")


class CursorRows(StyledLines, ScrollView, Generic[Value], can_focus=True):
    """The lines. A list of its own says ``make_row`` and ``key``, and has its own ``RowOpened``."""

    DEFAULT_CSS = """
    CursorRows {
        height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; overflow-y: scroll; background: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS), Binding("enter", "open", show=False)]

    EMPTY_TEXT: str = ""
    """What stands there while the list is empty."""
    CURSOR_RETURNS_TO_TOP: ClassVar[bool] = True
    """Whether the cursor goes to the first row while the keys are elsewhere: for lists with the newest on top."""

    class RowOpened(Message):
        """Enter was pressed on a row, or it was clicked twice."""

        def __init__(self, value: Any) -> None:
            super().__init__()
            self.value = value

    class Resized(Message):
        """The rows have another width."""

    def __init__(self) -> None:
        super().__init__()
        self.values: tuple[Value, ...] = ()
        self._at = 0

    def make_row(self, value: Value, width: int) -> StyledLine:
        """The line of a value."""
        raise NotImplementedError

    def key(self, value: Value) -> Hashable:
        """What stays the same for the same row while its value changes."""
        return value

    @property
    def value(self) -> Value | None:
        """The value under the cursor."""
        return self.values[self._at] if self._at < len(self.values) else None

    def take(self, values: tuple[Value, ...]) -> None:
        """Shows ``values`` in their order."""
        if values is self.values or values == self.values:
            return
        under, first = self.value, self.values[0] if self.values else None
        kept = under is not None and (self.has_focus or not self.CURSOR_RETURNS_TO_TOP)
        came = 0 if first is None else self._place(values, first)
        self.values = values
        at, last = self._at, max(0, len(values) - 1)
        self._at = self._place(values, under, min(at, last)) if kept and under is not None else 0
        self.virtual_size = Size(self.size.width, len(values))
        if came and self.scroll_offset.y:  # who reads further down goes on reading the same rows
            self.scroll_to(y=self.scroll_offset.y + came, animate=False, immediate=True)
        self.redraw()

    def _place(self, values: tuple[Value, ...], wanted: Value, gone: int = 0) -> int:
        """Where ``wanted`` stands; ``gone`` where it does not."""
        key = self.key(wanted)
        return next((at for at, value in enumerate(values) if self.key(value) == key), gone)

    def redraw(self) -> None:
        """Makes the rows of all values that stand on the screen."""
        from gpubox.tui.styled_lines import pad_line

        top, width = self.scroll_offset.y, self.size.width
        rows: list[StyledLine] = []
        for at in range(top, min(len(self.values), top + self.size.height)):
            row = pad_line(self.make_row(self.values[at], width), width)
            if at == self._at and self.has_focus:
                row = tuple((text, f"{style} on $cursor".strip()) for text, style in row)
            rows.append(row)
        if not self.values and self.EMPTY_TEXT:
            rows = [((self.EMPTY_TEXT, "$quiet"),)]
        self.show(rows)

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        return self.strip(self.drawn[y] if y < len(self.drawn) else (), self.size.width)

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(self.size.width, len(self.values))
        self.redraw()
        self.post_message(self.Resized())

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self.redraw()

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self.redraw()  # the cursor is seen where the keys are

    def go(self, at: int) -> None:
        """Puts the cursor on a row, and the row on the screen."""
        self._at = max(0, min(len(self.values) - 1, at))
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if self._at < top:
            self.scroll_to(y=self._at, animate=False, immediate=True)
        elif self._at >= top + height:
            self.scroll_to(y=self._at - height + 1, animate=False, immediate=True)
        self.redraw()

    def action_down(self) -> None:
        self.go(self._at + 1)

    def action_up(self) -> None:
        self.go(self._at - 1)

    def action_top(self) -> None:
        self.go(0)

    def action_bottom(self) -> None:
        self.go(len(self.values) - 1)

    def action_open(self) -> None:
        if self.value is not None:
            self.post_message(self.RowOpened(self.value))

    def key_down(self) -> None:
        self.action_down()

    def key_up(self) -> None:
        self.action_up()

    def key_pagedown(self) -> None:
        self.go(self._at + max(1, self.size.height - 1))

    def key_pageup(self) -> None:
        self.go(self._at - max(1, self.size.height - 1))

    def on_click(self, event: events.Click) -> None:
        self.go(self.scroll_offset.y + event.y)
        if event.chain == 2:
            self.action_open()
