"""The finished requests, newest first, one line each. The cursor stays on its request when new ones come."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpubox.tui.actions import Where, bindings
from gpubox.tui.widgets.line_pane import StyledLines

if TYPE_CHECKING:
    from gpubox.telemetry.model import Request
    from gpubox.tui.cells import Line

NONE_YET = "No request yet."


class RequestRows(StyledLines, ScrollView, can_focus=True):
    """The lines. Enter opens one."""

    DEFAULT_CSS = """
    RequestRows { height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; background: $background; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.LISTS), Binding("enter", "open", show=False)]

    class Opened(Message):
        """Enter was pressed on a request, or it was clicked twice."""

        def __init__(self, request: Request) -> None:
            super().__init__()
            self.request = request

    class Resized(Message):
        """The rows have another width."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: tuple[Request, ...] = ()
        self._at = 0

    @property
    def request(self) -> Request | None:
        """The request under the cursor."""
        return self.requests[self._at] if self._at < len(self.requests) else None

    def take(self, requests: tuple[Request, ...]) -> None:
        """Shows ``requests``, newest first."""
        if requests is self.requests or requests == self.requests:
            return
        under = self.request
        at_top = self.scroll_offset.y == 0
        came = next((i for i, r in enumerate(requests) if self.requests and r == self.requests[0]), 0)
        self.requests = requests
        found = (i for i, r in enumerate(requests) if under and (r.number, r.at) == (under.number, under.at))
        self._at = next(found, 0) if self.has_focus else 0
        self.virtual_size = Size(self.size.width, len(requests))
        if came and not at_top:
            self.scroll_to(y=self.scroll_offset.y + came, animate=False, immediate=True)
        self.redraw()

    def redraw(self) -> None:
        """Makes the rows of all requests that stand on the screen."""
        from gpubox.tui.cells import pad
        from gpubox.tui.requests_view import row as make_row

        top, width = self.scroll_offset.y, self.size.width
        height = self.size.height
        rows: list[Line] = []
        for at in range(top, min(len(self.requests), top + height)):
            row = pad(make_row(self.requests[at], width), width)
            if at == self._at and self.has_focus:
                row = tuple((text, f"{style} on $cursor".strip()) for text, style in row)
            rows.append(row)
        if not self.requests:
            rows = [((NONE_YET, "$quiet"),)]
        self.show(rows)

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        return self.strip(self.drawn[y] if y < len(self.drawn) else (), self.size.width)

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(self.size.width, len(self.requests))
        self.redraw()
        self.post_message(self.Resized())

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self.redraw()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def _go(self, at: int) -> None:
        self._at = max(0, min(len(self.requests) - 1, at))
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if self._at < top:
            self.scroll_to(y=self._at, animate=False, immediate=True)
        elif self._at >= top + height:
            self.scroll_to(y=self._at - height + 1, animate=False, immediate=True)
        self.redraw()

    def action_down(self) -> None:
        self._go(self._at + 1)

    def action_up(self) -> None:
        self._go(self._at - 1)

    def action_top(self) -> None:
        self._go(0)

    def action_bottom(self) -> None:
        self._go(len(self.requests) - 1)

    def key_down(self) -> None:
        self._go(self._at + 1)

    def key_up(self) -> None:
        self._go(self._at - 1)

    def action_open(self) -> None:
        if self.request:
            self.post_message(self.Opened(self.request))

    def on_click(self, event: events.Click) -> None:
        self._go(self.scroll_offset.y + event.y)
        if event.chain == 2:
            self.action_open()


class ColumnNames(StyledLines):
    """The line above the rows."""

    DEFAULT_CSS = "ColumnNames { height: 1; }"


class RequestsPane(Vertical):
    """The rows under their column names."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.rows = ColumnNames(), RequestRows()
        self.border_title = "Requests"

    def fill(self) -> None:
        """Mounts what is inside; after the first paint, as the other panes."""
        self.mount(self.head, self.rows)

    def take(self, requests: tuple[Request, ...], total: int | None) -> None:
        """Shows ``requests``; ``total`` is how many there were since the server started."""
        if not self.rows.is_attached:
            return
        self.rows.take(requests)
        self._name_columns()
        count = total if total is not None else len(requests)
        subtitle = f"{count:,}" if requests else ""
        if self.border_subtitle != subtitle:
            self.border_subtitle = subtitle

    @on(RequestRows.Resized)
    def _name_columns(self) -> None:
        from gpubox.tui.requests_view import head

        self.head.show([head(self.rows.size.width)] if self.rows.requests else [])
