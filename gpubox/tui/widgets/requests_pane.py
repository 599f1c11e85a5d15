"""The finished requests, newest first, one line each. The cursor stays on its request when new ones come."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from textual import on
from textual.containers import Vertical

from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.styled_lines import StyledLines

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Request
    from gpubox.tui.styled_lines import StyledLine


class RequestRows(CursorRows["Request"]):
    """The lines. Enter opens one."""

    EMPTY_TEXT = "No request yet. Clients use the address above; c chats."

    class RowOpened(CursorRows.RowOpened):
        """Enter was pressed on a request, or it was clicked twice. ``value`` is the Request."""

    def make_row(self, value: Request, width: int) -> StyledLine:
        from gpubox.tui.dashboard.requests import row

        return row(value, width)

    def key(self, value: Request) -> Hashable:
        return value.number, value.at


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
        from gpubox.tui.dashboard.requests import head

        self.head.show([head(self.rows.size.width)] if self.rows.values else [])
