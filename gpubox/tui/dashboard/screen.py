"""The dashboard: header, progress of the operation, the panes, and the key bar. The app feeds it."""

from __future__ import annotations

import shutil
import time
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from gpubox.tui.actions import OPENS_INPUT, Scope, bindings
from gpubox.tui.base_screen import PersistentScreen
from gpubox.tui.dashboard.detail import DetailPane
from gpubox.tui.dashboard.history import HistoryController
from gpubox.tui.dashboard.layout import PANES, Pane, visible_panes
from gpubox.tui.dashboard.log import LogPane
from gpubox.tui.dashboard.operation_line import StatusOrAdvice, status_phrases
from gpubox.tui.dashboard.profiles import ProfilePane
from gpubox.tui.dashboard.requests import RequestRows, RequestsPane, request_fields
from gpubox.tui.dashboard.throughput import NOT_SLOWER, ThroughputPane, live_client, slower_fields
from gpubox.tui.dashboard.vram import gpu_readings, memory_figures
from gpubox.tui.messages import ChoiceMade
from gpubox.tui.remembered import LastSeen
from gpubox.tui.widgets.header import StatusHeader, shown_state
from gpubox.tui.widgets.lines import SnapshotPane

if TYPE_CHECKING:
    from gpubox.gateway.gateway_status import GatewayStatus
    from gpubox.server.launch import LaunchPreview
    from gpubox.telemetry.recent import History
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.messages import GatewayView, ProfileEntry, ServerOverview
    from gpubox.tui.operation_progress import OperationProgress
    from gpubox.tui.remembered import Remembered

NO_FOREIGN_LOG = "No log to see: nothing runs, or gpubox did not start this server."
NO_FOREIGN_REQUESTS = "No requests yet, or no log to read them from."
NO_HISTORY = "There is no history of a recording, or of a server that gpubox did not start."
COMPACT_BELOW_ROWS = 30
"""With fewer rows the memory panes take a line or two, as on a narrow screen."""
TINY_BELOW_ROWS = 10
"""With fewer rows there is one pane, without a frame."""
DOWN = ("stopped", "crashed", "stopping")
STEADY_SECONDS, THROTTLED_SECONDS = 0.9, 1.0
"""Between two paints: of all panes but the throughput while the state stays; of all over a slow line."""
RESULT_SECONDS = 60.0
"""How long the result of a successful operation stays."""
ON_A_ROW = {"zoom_detail", "copy", "duplicate", "rename", "delete", "compare", "external_editor", "tune"}
"""Actions of the menu that need a highlighted row."""
PaneWidget = TypeVar("PaneWidget", bound=Widget)


def make_pane(pane: Pane) -> Widget:
    """The widget of a pane."""
    widget: Widget = getattr(import_module(f"gpubox.tui.dashboard.{pane.name}"), pane.widget)()
    widget.border_title = pane.title
    widget.add_class("pane")
    return widget


class DashboardScreen(PersistentScreen):
    """Shows what the ``show_*`` methods are given. Messages of the panes bubble to the app."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy"), (190, "-huge")]  # noqa: RUF012
    AUTO_FOCUS = ""
    BINDINGS = [*bindings(Scope.DASHBOARD)]  # noqa: RUF012

    def __init__(self, *, note: str, url: str | None, remembered: Remembered) -> None:
        # The class of the width from the start saves a second first paint.
        width = shutil.get_terminal_size().columns
        classes = [name for least, name in self.HORIZONTAL_BREAKPOINTS if width >= least][-1]
        super().__init__(Scope.DASHBOARD, note=note, classes=classes)
        self.read_only = bool(note)
        self.only_watches = False
        """Whether the screens of this machine are closed."""
        self.status = StatusOrAdvice("operation")
        self.panes = {pane.name: make_pane(pane) for pane in PANES}
        self.snapshot_panes = [pane for pane in self.panes.values() if isinstance(pane, SnapshotPane)]
        self.profiles, self.detail, self.log_pane = self._pane(ProfilePane), self._pane(DetailPane), self._pane(LogPane)
        self.throughput, self.requests = self._pane(ThroughputPane), self._pane(RequestsPane)
        self.keys.read_only = self.read_only
        self.throughput.stuck_keys = "" if self.read_only else "r restarts it, l shows the log"
        self.status.display = False
        if url:
            self.log_pane.placeholder.update(NO_FOREIGN_LOG)
            self.requests.rows.EMPTY_TEXT = NO_FOREIGN_REQUESTS
        self.throttled = False
        """Whether the terminal has no focus: numbers are then drawn once a second."""
        self.places = {name: Vertical(id=name) for name in ("left", "main", "side")}
        self.rest = Container(id="rest")
        for pane in self.snapshot_panes:
            pane.hint = self._figure_hint
        self.history = HistoryController(self.throughput, self.requests, lambda: not self._hidden)
        self._zoomed = remembered.zoom if any(pane.zoomed_by == remembered.zoom for pane in PANES) else ""
        """The zoom that has the whole screen."""
        self.profiles.shipped_toggled = remembered.toggled_shipped
        self._graph = remembered.graph
        """Which time the graph shows first."""
        self._arrange()
        self._overview: ServerOverview | None = None
        self._operation: OperationProgress | None = None
        self._trial = self.undo = ""
        self._gateway: GatewayStatus | None = None
        self._undrawn: tuple[Snapshot, History] | None = None
        """The newest readings, if they were not drawn because nobody could see them."""
        self._hidden = False
        self._drawn_at = self._steady_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.status
        with Container(id="panes"):
            with self.places["left"]:
                yield from self._panes_at("left")
            with self.rest:
                with self.places["main"]:
                    yield from self._panes_at("main")
                with self.places["side"]:
                    yield from (pane for pane in self._panes_at("side") if pane.display)
        yield self.keys

    def _panes_at(self, place: str) -> list[Widget]:
        return [self.panes[pane.name] for pane in PANES if pane.place == place]

    def _pane(self, kind: type[PaneWidget]) -> PaneWidget:
        return next(pane for pane in self.panes.values() if isinstance(pane, kind))

    def mount_content(self) -> None:
        """Mounts the content of the panes; called after the first paint."""
        with self.app.batch_update():
            self.places["side"].mount(*(pane for pane in self._panes_at("side") if not pane.is_attached), before=0)
            for pane in (self.profiles, self.requests, self.detail, self.log_pane):
                pane.mount_content()
        self._adapt_to_size()
        self.set_focus(self._default_focus())
        if self._graph:
            self.history.zoom_by(self._graph)

    def on_resize(self) -> None:
        self.call_after_refresh(self._adapt_to_size)

    def _adapt_to_size(self) -> None:
        narrow, height = self.has_class("-narrow"), self.app.size.height
        self.detail.one_line = narrow and self._zoomed != "detail"
        compact = (narrow or height < COMPACT_BELOW_ROWS) and self._zoomed != "memory"
        self.set_class(compact, "-compact")
        self.set_class(height < TINY_BELOW_ROWS, "-tiny")
        for pane in self.snapshot_panes:
            pane.compact = compact
        self._arrange()

    def _arrange(self) -> None:
        """Shows the panes of the current layout."""
        width = next(name for _, name in self.HORIZONTAL_BREAKPOINTS if self.has_class(name)).removeprefix("-")
        state = "down" if self.has_class("-down") else "loading" if self.has_class("-loading") else "up"
        visible = visible_panes(width, state, self._zoomed, self.has_class("-tiny"))
        for name, pane in self.panes.items():
            pane.display = name in visible
        for name, place in self.places.items():
            place.display = any(pane.display for pane in self._panes_at(name))
        self.rest.display = self.places["main"].display or self.places["side"].display
        self.set_class(bool(self._zoomed), "-zoomed")
        self.history.wake()

    # -- what the app shows here ------------------------------------------------------------------------

    def show_last(self, last: LastSeen, now: datetime) -> None:
        """Before the first paint: what the screen showed last, dim and with its age, until there are readings."""
        self.throughput.age = last.age(now)
        self.header.set_reactive(StatusHeader.last, (last.profile, last.state, self.throughput.age))
        self.profiles.show_last(last.profiles)
        for pane in self.snapshot_panes:
            pane.last = last
        self._show_state(last.state, down=last.state in DOWN)

    def last_seen(self, at: str) -> LastSeen | None:
        """What is shown now, for the next first frame; None as long as that is old itself."""
        if (snapshot := self.throughput.snapshot) is None:
            return None
        server, speeds = snapshot.server, snapshot.throughput
        speed = speeds.tg_tokens_per_second or speeds.tg_median
        names = tuple(entry.name for entry in self.profiles.rows.values if entry.profile)
        state = speeds.state if server.up else server.state
        return LastSeen(at, state, server.profile or "", memory_figures(snapshot), speed, names)

    def show_overview(self, overview: ServerOverview) -> None:
        """Shows what runs."""
        self._overview = overview
        self.header.overview = overview.without_slots
        self.profiles.last_profile = overview.last_profile or ""
        self.profiles.running = overview.running
        self._show_state(overview.status.state, down=overview.status.pid is None and overview.status.state in DOWN)
        self._keep_focus()
        self._update_status()

    def _show_state(self, state: str, *, down: bool) -> None:
        self.set_class(state == "loading", "-loading")
        self.set_class(down, "-down")
        self._arrange()

    def show_snapshot(self, snapshot: Snapshot, history: History) -> None:
        """Shows new readings: at once, later if throttled, or when the screen is visible again."""
        now = time.monotonic()
        self._undrawn = (snapshot, history)
        if self.throttled and now - self._drawn_at < THROTTLED_SECONDS:
            return
        self._drawn_at = now
        self.header.gpu_readings = gpu_readings(snapshot)  # also while hidden: the other screens show the same
        self.header.activity = snapshot.throughput.state
        self.profiles.active = snapshot.server.profile or "", shown_state(snapshot.server, snapshot.throughput.state)
        if self._hidden:
            return
        self._undrawn = None
        self.history.show_server(server := snapshot.server)
        self.throughput.history = history
        self.throughput.client = live_client(self._gateway, snapshot)
        shown, self.throughput.snapshot = self.throughput.snapshot, snapshot
        if now - self._steady_at >= STEADY_SECONDS or not shown or shown.server.state != server.state:
            self._steady_at = now
            for pane in self.snapshot_panes:
                pane.snapshot = snapshot
            launch = f"{server.pid} {server.started_at}" if server.pid else ""
            self.requests.show_requests(snapshot.requests, snapshot.totals.requests, server.profile or "", launch)

    def show_stale(self, stale: bool) -> None:
        """Marks the readings as old, or as current."""
        for pane in self.snapshot_panes:
            pane.stale = stale
        self.header.stale = stale

    @on(events.ScreenSuspend)
    def _suspended(self) -> None:
        self._hidden = True

    @on(events.ScreenResume)
    def _resumed(self, event: events.ScreenResume) -> None:
        event.refresh_styles, self._hidden = self._hidden, False  # at the first paint all styles are new
        self.history.wake()
        self.log_pane.on_show()
        if self._undrawn:
            self.show_snapshot(*self._undrawn)

    def show_operation(self, operation: OperationProgress | None) -> None:
        """Shows the progress of the operation; ``None``: there is none."""
        running = operation is not None and not operation.ended
        if running and self._zoomed == "profiles" and (self._operation is None or self._operation.ended):
            self.toggle_zoom("profiles")  # the profile was chosen there; its start is watched on the whole screen
        self._operation = operation
        if operation and operation.succeeded:
            self.set_timer(RESULT_SECONDS, partial(self._remove_result, operation))
        self._show_step()
        self._update_status()

    def show_gateway(self, view: GatewayView | None) -> None:
        """Shows the gateway's address and state, what it does to a server, and whose the requests are."""
        self.header.gateway = view.summary if view else None
        self._gateway = view.status if view else None
        if self._gateway:
            self.requests.show_clients(self._gateway.finished)
        self._show_step()
        self._update_status()

    def _show_step(self) -> None:
        """Marks the profiles that operations are about: one of this gpubox, else those of the gateway."""
        if (operation := self._operation) and not operation.ended:
            self.profiles.operations = {operation.profile: operation.step_label}
        elif self._gateway and self._gateway.operations:
            from gpubox.tui.clients.client_lines import step_text

            self.profiles.operations = {each.profile: step_text(each) for each in self._gateway.operations}
        else:
            self.profiles.operations = {}

    def show_undo(self, text: str) -> None:
        """Names what u takes back; empty: nothing."""
        self.undo = text
        self._update_keys()

    def menu_panes(self) -> tuple[str, set[str]]:
        focused = self.focused
        for name, pane in self.panes.items():
            if focused is not None and (pane is focused or pane in focused.ancestors):
                return str(pane.border_title or name), {name, "*"}
        return "Dashboard", {"profiles" if self.profiles.display else "requests", "*"}

    def show_trial(self, text: str) -> None:
        """Shows the trial under way in a line; empty: there is none."""
        self._trial = text
        self._update_status()

    def _remove_result(self, operation: OperationProgress) -> None:
        if self._operation is operation:
            self._operation = None
            self._update_status()

    def show_preview(self, entry: ProfileEntry, preview: LaunchPreview | None, model_bytes: int | None) -> None:
        """Shows the launch preview if ``entry`` is still highlighted."""
        if self.profiles.entry and self.profiles.entry.id == entry.id:
            self.detail.model_bytes = model_bytes
            self.detail.preview = preview

    @on(ProfilePane.EntryHighlighted)
    def _entry_highlighted(self, event: ProfilePane.EntryHighlighted) -> None:
        self.detail.entry = event.entry
        self._update_keys()

    @on(RequestRows.RowOpened)
    def _request_opened(self, event: RequestRows.RowOpened) -> None:
        from gpubox.tui.dialogs import FieldsScreen

        request = event.value
        client, profile = self.requests.client(request), self.requests.profile(request)
        self.app.push_screen(FieldsScreen(f"Request {request.number}", request_fields(request, client, profile)))

    def _figure_hint(self, figure: str) -> Content:
        shown = {"is": f"{figure}: ", "moved by": "Moved by "}
        fields = self.history.explain(figure, self.profiles.entries or ())
        return Content("\n").join([Content(f"{shown.get(label, '')}{text}") for label, text in fields])

    @on(SnapshotPane.FigureOpened)
    def _figure_opened(self, event: SnapshotPane.FigureOpened) -> None:
        from gpubox.tui.dialogs import FieldsScreen

        fields = self.history.explain(event.figure, self.profiles.entries or ())
        self.app.push_screen(FieldsScreen(event.figure, fields))

    def watch_focused(self) -> None:
        """The key bar depends on the focus. A pane that gets hidden loses it without a focus event."""
        if self.is_mounted:
            self._update_keys()
            if isinstance(self.focused, SnapshotPane):
                self.history.compare_figures()

    def _update_keys(self) -> None:
        overview, entry = self._overview, self.profiles.entry
        label = "switch" if overview and overview.running else "start"
        opens = True
        if self.requests.display and self.focused is self.requests.rows:
            label, opens = "open", self.requests.rows.value is not None
        elif isinstance(self.focused, SnapshotPane):
            label = "explain"
        elif not self.profiles.display:
            label = "profiles"
        elif entry and entry.kind == "choice":
            label = "choose"
        else:
            opens = entry is not None
        typing = isinstance(self.focused, Input)
        hidden = set() if typing or (opens and label != "profiles") else {"switch"}  # p does the same
        filters = (self.profiles.search, self.log_pane.filter, self.requests.filter)
        if not (typing or self._zoomed or any(line.display for line in filters)):
            hidden.add("back")
        if not (overview and (overview.status.profile or overview.last_profile)):
            hidden.add("restart")
        if overview and overview.status.pid is None:
            hidden |= {"bench_speed"} | ({"stop"} if not overview.companions else set())
        if not (entry and (entry.profile or entry.kind == "model")):
            hidden |= {"edit"} | ({"trial"} if not self._trial else set())
        if not self.undo:
            hidden.add("undo")
        if self.only_watches:
            hidden |= {"show_chat", "show_bench", "show_models", "bench_speed"}
        if entry is None:
            hidden |= ON_A_ROW
        if entry and entry.lacks_engine and label in ("start", "switch"):
            hidden.add("switch")
        if not self.read_only:
            idle = label == "start" and not (self._operation and not self._operation.ended)
            self.log_pane.say_empty(entry.kind if entry and idle and not entry.lacks_engine else "")
        self.keys.labels = {
            "switch": "confirm" if typing else label,
            "undo": self.undo if self.size.width >= 120 else "undo",
        }
        self.keys.typing, self.keys.hidden_actions = typing, frozenset(hidden)

    def _update_status(self) -> None:
        self._update_keys()
        self.status.show(
            status_phrases(self._overview, self._operation, self._gateway, self._trial, read_only=self.read_only)
        )

    # -- zoom and focus ---------------------------------------------------------------------------------

    def toggle_zoom(self, panes: str) -> None:
        """Shows the panes of a zoom on the whole screen, or all panes again."""
        self._zoomed = "" if self._zoomed == panes else panes
        self.post_message(ChoiceMade(zoom=self._zoomed))
        self._adapt_to_size()
        self.set_focus(self._default_focus())
        self._update_keys()

    def _default_focus(self) -> Widget:
        zoomed: dict[str, Widget] = {"log": self.log_pane.view, "detail": self.detail, "requests": self.requests.rows}
        return zoomed.get(self._zoomed) or (self.profiles.rows if self.profiles.display else self.requests.rows)

    def _keep_focus(self) -> None:
        """Takes the focus from a hidden pane."""
        focusable = (
            (self.profiles, self.profiles.rows), (self.requests, self.requests.rows),
            (self.log_pane, self.log_pane.view), *((pane, pane) for pane in self.snapshot_panes),
        )  # fmt: skip
        lost = self.focused is None or any(self.focused is view and not pane.display for pane, view in focusable)
        if lost and self.profiles.rows.is_attached:
            self.set_focus(self._default_focus())

    def go_back(self) -> bool:
        """Closes filter, search or zoom, or returns the focus to the list. Returns False if there was nothing to do."""
        for line in (self.log_pane.filter, self.requests.filter):
            if line.has_focus or (line.view.has_focus and line.value):
                return line.close()
        if self.profiles.search.close():
            return True
        if self._zoomed:
            self.toggle_zoom(self._zoomed)
        elif not (self.log_pane.filter.close() or self.requests.filter.close()):
            focus = self._default_focus()
            if focus.has_focus:
                return False
            self.set_focus(focus)
        return True

    # -- actions ----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action in OPENS_INPUT and isinstance(self.focused, Input))

    def action_switch(self) -> None:
        if self.requests.rows.has_focus:
            self.requests.rows.action_open()
        elif isinstance(self.focused, SnapshotPane):
            self.focused.action_open()
        elif not self.profiles.display:
            self.toggle_zoom("profiles")  # Enter must not switch to a profile that is not visible
        else:
            self.profiles.rows.action_open()

    def action_toggle_shipped(self) -> None:
        if not self.profiles.toggle_shipped():
            self.say("The list has no shipped profiles." if self.profiles.entries else "No profiles yet.")
        self.post_message(ChoiceMade(toggled_shipped=self.profiles.shipped_toggled))

    def action_search(self) -> None:
        """Searches what has the focus; the profiles also where the requests have it because there is nothing else."""
        if self.log_pane.view.has_focus:
            self.action_filter_log()
            return
        if self.requests.rows.has_focus and (self.profiles.display or self._zoomed):
            self.action_filter_requests()
            return
        if not self.profiles.display:
            self.toggle_zoom("profiles")
        self.profiles.search.open()

    @on(RequestsPane.FilterChanged)
    def _requests_filtered(self) -> None:
        self.history.wake()

    def action_filter_requests(self) -> None:
        if not self.requests.display:
            self.toggle_zoom("requests")
        self.requests.filter.open()

    def action_graph_longer(self, steps: int = 1) -> None:
        if self.read_only:
            self.say(NO_HISTORY)
        else:
            self.post_message(ChoiceMade(graph=self.history.zoom_by(steps)))

    def action_graph_shorter(self) -> None:
        self.action_graph_longer(-1)

    def action_slower_since(self) -> None:
        from gpubox.tui.dialogs import FieldsScreen

        if slowdowns := self.throughput.slowdowns:
            self.app.push_screen(FieldsScreen("Slower since", slower_fields(slowdowns)))
        else:
            self.say(NO_HISTORY if self.read_only else NOT_SLOWER)

    def action_filter_log(self) -> None:
        if not self.log_pane.display:
            self.toggle_zoom("log")
        self.log_pane.filter.open()

    def action_zoom(self, panes: str) -> None:
        self.toggle_zoom(panes)

    def action_copy(self) -> None:
        if (entry := self.detail.entry) and (command := self.detail.command_line):
            self.copy(command, f"the command line of {entry.name}")
        else:
            self.say("The highlighted row has no command line to copy.")
