"""The Clients screen: the gateway, who uses it now and today, and the last requests."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from gpubox.gateway.gateway_status import FinishedRequest, LiveRequest
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.base_screen import OtherScreen
from gpubox.tui.clients import client_lines as lines
from gpubox.tui.dialogs import FieldsScreen
from gpubox.tui.styled_lines import StyledLine, wrap_text
from gpubox.tui.widgets.cursor_rows import CursorRows
from gpubox.tui.widgets.lines import FittedLines, SingleLine
from gpubox.views.clients import in_order

if TYPE_CHECKING:
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.clients.gateway_actions import GatewayController
    from gpubox.tui.messages import GatewayView

WITHOUT_GATEWAY = """\
The gateway is one address for all your clients. It stays while profiles change: a request names a profile, the
gateway loads it if it fits or switches to it, and the request waits meanwhile."""
NOT_SHOWN = "gpubox shows another machine or a recording here. The gateway is shown only on its own machine."


class ClientRows(CursorRows[lines.ClientRow]):
    """The clients. Enter shows only the requests of one."""

    DEFAULT_CSS = "ClientRows { overflow-y: auto; scrollbar-size-vertical: 1; }"
    EMPTY_TEXT = "No client yet. o connects one."
    KEY = "name"

    def make_row(self, value: lines.ClientRow, width: int) -> StyledLine:
        return lines.client_row(value, width)


class GatewayRequestRows(CursorRows["LiveRequest | FinishedRequest"]):
    """The requests that run, those that wait, and the last ones. Enter opens one."""

    DEFAULT_CSS = "GatewayRequestRows { overflow-y: auto; scrollbar-size-vertical: 1; }"
    EMPTY_TEXT = "No request is finished yet."
    CURSOR_RETURNS_TO_TOP = True

    def __init__(self) -> None:
        super().__init__()
        self.speeds: dict[int, float] = {}
        """By number of a request that runs."""

    def make_row(self, value: LiveRequest | FinishedRequest, width: int) -> StyledLine:
        if isinstance(value, LiveRequest):
            return lines.live_line(value, self.speeds.get(value.id), width)
        return lines.request_line(value, width)

    def key(self, value: LiveRequest | FinishedRequest) -> Hashable:
        return value.id if isinstance(value, LiveRequest) else value


class ClientsScreen(OtherScreen):
    """Shows what ``show_gateway`` is given."""

    AUTO_FOCUS = "ClientRows"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.CLIENTS)]
    DEFAULT_CSS = """
    ClientsScreen .pane {
        border: round $line; padding: 0 1; border-title-color: $secondary; border-title-style: bold;
        border-subtitle-color: $quiet;
        &:focus-within { border: round $line-focus; border-title-color: $foreground; }
    }
    ClientsScreen FittedLines { min-height: 2; max-height: 40%; padding: 0 2; }
    ClientsScreen SingleLine { padding: 0; }
    ClientsScreen #clients-pane, ClientsScreen #requests-pane { height: 1fr; }
    ClientsScreen #no-gateway { height: 1fr; padding: 2 4; }
    """

    def __init__(
        self, bridge: ServiceBridge, controller: GatewayController, *, address: str = "", shown: bool = True
    ) -> None:
        """``address``: where a gateway would listen. ``shown``: False where another machine is shown."""
        super().__init__(Scope.CLIENTS, note=bridge.services.note)
        self.bridge, self.controller = bridge, controller
        self.address, self.shown = address, shown
        self.lines, self.rows, self.requests = FittedLines(), ClientRows(), GatewayRequestRows()
        self.client_columns, self.request_columns = SingleLine("client-columns"), SingleLine("request-columns")
        self.clients_pane, self.requests_pane = (
            Vertical(classes="pane", id="clients-pane"),
            Vertical(classes="pane", id="requests-pane"),
        )
        self.clients_pane.border_title, self.requests_pane.border_title = "Clients", "Requests"
        self.clients_pane.border_subtitle = "tokens and medians of today"
        self.requests_pane.border_subtitle = "TTFT as the client saw it, all waits included"
        self.empty = Static("", id="no-gateway", markup=False)
        self.view: GatewayView | None = None
        self.client = ""
        """The client whose requests are shown; empty: all."""
        self._order, self._speeds = lines.ClientOrder(), lines.LiveSpeeds()

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.lines
        with self.clients_pane:
            yield self.client_columns
            yield self.rows
        with self.requests_pane:
            yield self.request_columns
            yield self.requests
        yield self.empty
        yield self.keys

    def on_mount(self) -> None:
        self._draw()

    def show_gateway(self, view: GatewayView | None) -> None:
        """Shows what the gateway says; ``None``: none runs."""
        self.view = view
        if self.is_attached:
            self._draw()

    def on_screen_resume(self) -> None:
        self._order.forget()
        self._draw()

    def _draw(self) -> None:
        status = self.view.status if self.view else None
        speeds = self._speeds.feed(status.requests) if status else {}  # also while another screen is in front
        if not self.is_current:
            return
        rows = self._order.rows(status, speeds) if status else ()
        runs = self.view is not None
        for widget in (self.lines, self.clients_pane, self.requests_pane):
            widget.display = runs
        self.empty.display = not runs
        if not runs:
            self.empty.update(self._how_to_start())
        self.lines.put(self._gateway_lines)
        self.rows.show_values(rows)
        if self.client and all(row.name != self.client for row in rows):
            self.client = ""
        requests: tuple[LiveRequest | FinishedRequest, ...] = ()
        if status:
            requests = (*in_order(status.requests), *sorted(status.finished, key=lambda r: r.began_at, reverse=True))
        shown = tuple(request for request in requests if not self.client or request.client == self.client)
        self.requests.speeds = speeds
        self.requests.show_values(shown)
        title = f"Requests of {self.client}" if self.client else "Requests"
        self.requests_pane.border_title = Content(sanitize_line(title))
        self._draw_columns()
        self._update_keys()

    @on(CursorRows.Resized)
    def _draw_columns(self) -> None:
        clients, requests = self.rows, self.requests
        self.client_columns.show(
            [lines.column_line(lines.CLIENT_COLUMNS, clients.scrollable_content_region.width)] if clients.values else []
        )
        self.request_columns.show(
            [lines.column_line(lines.REQUEST_COLUMNS, requests.scrollable_content_region.width)]
            if requests.values
            else []
        )

    def _gateway_lines(self, width: int) -> list[StyledLine]:
        """The gateway, or why it says nothing."""
        if self.view and self.view.status:
            return lines.gateway_lines(self.view.status, width)
        return wrap_text(f"✗ {self.view.problem}", width, "$error") if self.view else []

    def _how_to_start(self) -> Content:
        if not self.shown:
            return Content.styled(NOT_SHOWN, "$quiet")
        keys = (
            ("s", f"starts it at {self.address}; it keeps running when gpubox closes", "gpubox serve --detach"),
            ("o", "shows what to write into opencode, aider, Continue, Cline, curl or Python", "gpubox connect"),
        )
        lines = [
            Content.assemble((f"{key}  ", "bold $primary"), f"{sanitize_line(text)}   ", (command, "$quiet"))
            for key, text, command in keys
        ]
        return Content("\n").join(
            [Content.styled("No gateway runs.", "bold"), Content(""), Content(WITHOUT_GATEWAY), Content(""), *lines]
        )

    def _update_keys(self) -> None:
        runs = self.view is not None
        hidden = set() if runs else {"clients_hold", "clients_open"}
        if not self.rows.values:
            hidden.add("clients_open")
        if self.chosen is None:
            hidden.add("clients_cancel")
        if not self.shown:
            hidden |= {"clients_toggle", "clients_connect", "clients_hold", "clients_cancel"}
        opened, request = self.focused is self.requests, self.requests.value
        failed = isinstance(request, FinishedRequest) and request.outcome in ("failed", "refused")
        self.keys.labels = {
            "clients_toggle": "stop the gateway" if runs else "start the gateway",
            "clients_open": ("why" if failed else "details")
            if opened
            else "all requests"
            if self.client
            else "client's requests",
        }
        self.keys.hidden_actions = frozenset(hidden)

    @property
    def chosen(self) -> LiveRequest | None:
        """The request under the cursor that can be cancelled."""
        if self.focused is self.rows:  # of a client that has only one
            live = self.rows.value.live if self.rows.value else ()
            return live[0] if len(live) == 1 else None
        value = self.requests.value
        return value if isinstance(value, LiveRequest) else None

    @on(CursorRows.RowHighlighted)
    def on_descendant_focus(self) -> None:
        self._update_keys()

    # -- actions --------------------------------------------------------------------------------------

    def action_clients_open(self) -> None:
        (self.requests if self.focused is self.requests else self.rows).action_open()

    @on(ClientRows.RowOpened)
    def _row_opened(self, event: CursorRows.RowOpened) -> None:
        event.stop()
        if isinstance(event.value, lines.ClientRow):
            self.client = "" if self.client == event.value.name else event.value.name
            self._draw()
        else:
            self.app.push_screen(FieldsScreen("Request", lines.request_fields(event.value)))

    def action_clients_back(self) -> None:
        """Shows the requests of all clients again, then the dashboard."""
        if self.client:
            self.client = ""
            self._draw()
        else:
            self.app.switch_mode("dashboard")

    def action_clients_cancel(self) -> None:
        if self.chosen:
            self.bridge.run(partial(self.controller.act, "cancel", self.chosen), "gateway")
