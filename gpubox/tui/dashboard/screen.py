"""The first screen: what runs, where its memory is, how fast it is; and the profiles, the log and the requests."""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.dashboard.detail import DetailPane
from gpubox.tui.dashboard.layout import LEFT, MAIN, SIDE, shown
from gpubox.tui.dashboard.profiles import ProfilePane
from gpubox.tui.widgets.header import StatusHeader
from gpubox.tui.widgets.key_bar import KeyBar
from gpubox.tui.widgets.log_pane import LogPane
from gpubox.tui.widgets.number_panes import OffloadPane, ThroughputPane, VramPane
from gpubox.tui.widgets.requests_pane import RequestsPane
from gpubox.tui.widgets.status_lines import StatusLines
from gpubox.tui.widgets.styled_lines import SnapshotPane

if TYPE_CHECKING:
    from gpubox.server.launch import LaunchPreview
    from gpubox.telemetry.history import History
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.messages import ServerOverview
    from gpubox.tui.operation_progress import OperationProgress
    from gpubox.tui.profile_entries import ProfileEntry

NO_LOG = "No log yet. Enter starts the highlighted profile."
NO_FOREIGN_LOG = "gpubox did not start this server and cannot see its log."
NO_FOREIGN_REQUESTS = "Single requests are known from the log alone, and this server is not ours."
LOW_ROWS = 30
"""Below this many rows the memory panes take a line or two, as on a narrow screen."""
TINY_ROWS = 10
"""Below this many rows there is one pane, without a frame."""
REQUESTS_SECONDS, CALM_SECONDS = 0.5, 1.0
OLD_SECONDS = 60.0
"""So long the row of an operation that went well stays."""


class DashboardScreen(Screen[None]):
    """Draws what the app knows; the app feeds it."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (150, "-roomy"), (190, "-huge")]  # noqa: RUF012
    AUTO_FOCUS = ""
    BINDINGS = [*bindings(Scope.DASHBOARD)]  # noqa: RUF012

    def __init__(self, *, read_only: str, url: str | None) -> None:
        # The class of the width from the start: the first paint need not be done twice.
        width = shutil.get_terminal_size().columns
        super().__init__(classes=[name for least, name in self.HORIZONTAL_BREAKPOINTS if width >= least][-1])
        self.read_only = bool(read_only)
        self.header, self.lines, self.keys = StatusHeader(), StatusLines("now"), KeyBar()
        self.vram, self.offload, self.profiles = VramPane(), OffloadPane(), ProfilePane()
        self.throughput, self.requests = ThroughputPane(), RequestsPane()
        self.detail, self.log_pane = DetailPane(), LogPane()
        self.numbers: tuple[SnapshotPane, ...] = (self.vram, self.offload, self.throughput)
        for pane, name in zip(self.numbers, ("VRAM", "CPU offload", "Throughput"), strict=True):
            pane.border_title = name
        self.header.note = "attached, read only" if url else "recording" if read_only else ""
        self.keys.read_only = self.read_only
        self.lines.display = False
        self.log_pane.say(NO_FOREIGN_LOG if url else NO_LOG)
        if url:
            self.requests.rows.EMPTY_TEXT = NO_FOREIGN_REQUESTS
        self.calm = False
        """Whether somebody types elsewhere: the screen is still looked at, but once a second is enough."""
        self.left, self.main, self.side = Vertical(id="left"), Vertical(id="main"), Vertical(id="side")
        self.rest = Container(id="rest")
        self.panes: dict[str, Widget] = {
            "vram": self.vram, "offload": self.offload, "profiles": self.profiles, "throughput": self.throughput,
            "requests": self.requests, "detail": self.detail, "log": self.log_pane,
        }  # fmt: skip
        self._alone = ""
        """What has the screen for itself."""
        self._arrange()
        self._now: ServerOverview | None = None
        self._story: OperationProgress | None = None
        self._waiting: tuple[Snapshot, History | None] | None = None
        """What was not drawn yet: nobody could see it."""
        self._hidden = False
        self._drawn_at = self._listed_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.lines
        with Container(id="panes"):
            with self.left:
                yield from (self.panes[name] for name in LEFT)
            with self.rest:
                with self.main:
                    yield from (self.panes[name] for name in MAIN)
                with self.side:
                    yield from (self.panes[name] for name in SIDE if self.panes[name].display)
        yield self.keys

    def fill(self) -> None:
        """Mounts the insides of the panes; called after the first paint."""
        with self.app.batch_update():
            self.side.mount(*(self.panes[name] for name in SIDE if not self.panes[name].is_attached), before=0)
            self.profiles.fill()
            self.requests.fill()
            self.detail.fill()
            self.log_pane.fill()
        self._fit()

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """Tells the panes how much room they have."""
        narrow = self.has_class("-narrow")
        self.detail.one_line = narrow and self._alone != "detail"
        compact = (narrow or self.app.size.height < LOW_ROWS) and self._alone != "memory"
        self.set_class(compact, "-compact")
        self.set_class(self.app.size.height < TINY_ROWS, "-tiny")
        self.vram.compact = self.offload.compact = compact
        self._arrange()

    def _arrange(self) -> None:
        """Shows the panes that belong on the screen now."""
        width = next(name for _, name in self.HORIZONTAL_BREAKPOINTS if self.has_class(name)).removeprefix("-")
        state = "down" if self.has_class("-down") else "loading" if self.has_class("-loading") else "up"
        visible = shown(width, state, self._alone, self.has_class("-tiny"))
        for name, pane in self.panes.items():
            pane.display = name in visible
        for part, names in ((self.left, LEFT), (self.main, MAIN), (self.side, SIDE)):
            part.display = not visible.isdisjoint(names)
        self.rest.display = self.main.display or self.side.display
        self.set_class(bool(self._alone), "-alone")

    # -- what the app tells -------------------------------------------------------------------------

    def show_now(self, now: ServerOverview) -> None:
        """What runs changed."""
        self._now = now
        self.header.now = now.without_slots
        self.profiles.last = now.last or ""
        self.profiles.running = now.running
        state = now.status.state
        self.set_class(state == "loading", "-loading")
        self.set_class(now.status.pid is None and state in ("stopped", "crashed", "stopping"), "-down")
        self.keys.down = now.status.pid is None and not now.companions and not self.read_only
        self._arrange()
        self._keep_focus()
        self._tell()

    def show_snapshot(self, snapshot: Snapshot, history: History | None) -> None:
        """New readings: drawn at once, later, or not at all where nobody can see them."""
        rest = CALM_SECONDS if self.calm else 0.0
        now = time.monotonic()
        if self._hidden or now - self._drawn_at < rest:
            self._waiting = (snapshot, history)
            return
        self._waiting, self._drawn_at = None, now
        from gpubox.tui.dashboard.vram import gpu_readings

        self.header.cards = gpu_readings(snapshot)
        self.header.activity = snapshot.throughput.state
        self.throughput.history = history
        for pane in self.numbers:
            pane.snapshot = snapshot
        if now - self._listed_at >= REQUESTS_SECONDS:
            self._listed_at = now
            self.requests.take(snapshot.requests, snapshot.totals.requests)

    def show_stale(self, stale: bool) -> None:
        """Whether the readings are old."""
        for pane in self.numbers:
            pane.stale = stale
        self.header.stale = stale

    @on(events.ScreenSuspend)
    def _suspended(self) -> None:
        self._hidden = True

    @on(events.ScreenResume)
    def _resumed(self) -> None:
        self._hidden = False
        if self._waiting:
            self.show_snapshot(*self._waiting)

    def show_operation(self, story: OperationProgress | None) -> None:
        """The operation moved on; ``None``: there is none to tell of."""
        busy = story is not None and not story.over
        if busy and self._alone == "profiles" and (self._story is None or self._story.over):
            self.alone("profiles")  # it was chosen there; what comes of it is seen on the whole screen
        self._story = story
        if story and story.ok:
            self.set_timer(OLD_SECONDS, partial(self._forget, story))
        self.profiles.working = (story.profile, story.word) if story and busy else ("", "")
        self._tell()

    def _forget(self, story: OperationProgress) -> None:
        """What went well is no news any more: its row goes back to the panes."""
        if self._story is story:
            self._story = None
            self._tell()

    def show_entries(self, entries: tuple[ProfileEntry, ...]) -> None:
        """The profiles changed."""
        self.profiles.entries = entries

    def show_preview(self, entry: ProfileEntry, preview: LaunchPreview | None, size: int | None) -> None:
        """What the engine says to the highlighted profile."""
        if self.profiles.entry and self.profiles.entry.id == entry.id:
            self.detail.size_bytes = size
            self.detail.shown = preview

    @on(ProfilePane.EntryHighlighted)
    def _highlighted(self, event: ProfilePane.EntryHighlighted) -> None:
        self.detail.entry = event.entry
        self._name_enter()

    def watch_focused(self) -> None:
        """The keys do what the focused pane does. A pane that is hidden gives its focus away without a focus event."""
        if self.is_mounted:
            self._name_enter()

    def _name_enter(self) -> None:
        """What the keys do now, for the key bar."""
        entry = self.profiles.entry
        word = "switch" if self._now and self._now.running else "start"
        if self.focused is self.requests.rows:
            word = "open"
        elif not self.profiles.display:
            word = "profiles"
        elif entry and entry.kind == "model":
            word = "make a profile"
        typing = isinstance(self.focused, Input)
        self.keys.enter_label = "take" if typing else word
        needless = set() if typing or word != "profiles" else {"switch"}  # p says the same
        if not (typing or self._alone or self.profiles.search.display or self.log_pane.filter.display):
            needless.add("back")
        if not (self._now and (self._now.status.profile or self._now.last)):
            needless.add("restart")
        self.keys.typing, self.keys.hidden_actions = typing, frozenset(needless)

    def _tell(self) -> None:
        """The story of the last operation; else why nothing runs. A crash after the story says more than it."""
        now, story = self._now, self._story
        self._name_enter()
        if story and not (story.over and now and _overtaken(story, now)):
            from gpubox.tui.operation_progress import progress_parts

            self.lines.show(progress_parts(story))
            return
        said: list[Content] = []
        if now and now.status.operation:
            said.append(Content.assemble(("◌ ", "$accent"), "another gpubox: ", sanitize_line(now.status.operation)))
        if now and now.status.message:
            bad = now.status.state in ("crashed", "error", "unreachable")
            glyph = ("✗ ", "$error") if bad else ("○ ", "$quiet")
            said.append(Content.assemble(glyph, sanitize_line(now.status.message)))
            if now.status.state == "crashed" and now.last and not self.read_only:
                said.append(Content.styled(f"r starts {sanitize_line(now.last)} again", "$accent"))
        self.lines.show(said)

    # -- panes alone --------------------------------------------------------------------------------

    def alone(self, pane: str) -> None:
        """Shows one of ALONE on the whole screen, or all panes again."""
        self._alone = "" if self._alone == pane else pane
        self._fit()
        self.set_focus(self._home())
        self._name_enter()

    def _home(self) -> Widget:
        """What has the keys when nothing else does."""
        own: dict[str, Widget] = {"log": self.log_pane.view, "detail": self.detail, "requests": self.requests.rows}
        return own.get(self._alone) or (self.profiles.rows if self.profiles.display else self.requests.rows)

    def _keep_focus(self) -> None:
        """Keys never go to a pane that is not there."""
        keyed = {
            self.profiles: self.profiles.rows,
            self.requests: self.requests.rows,
            self.log_pane: self.log_pane.view,
        }
        lost = self.focused is None or any(self.focused is rows and not pane.display for pane, rows in keyed.items())
        if lost and self.profiles.rows.is_attached:
            self.set_focus(self._home())

    def back(self) -> bool:
        """One level back: filter, search, a pane alone, the keys of another pane. Whether there was one."""
        if self.log_pane.filter.has_focus or (self.log_pane.view.has_focus and self.log_pane.filter.value):
            self.log_pane.close_filter()
        elif self.profiles.close_search():
            return True
        elif self._alone:
            self.alone(self._alone)
        elif not self.log_pane.close_filter():
            home = self._home()
            if home.has_focus:
                return False
            self.set_focus(home)
        return True


def _overtaken(story: OperationProgress, now: ServerOverview) -> bool:
    """Whether what runs now is not what the finished story ended with."""
    answering = story.finished.answering if story.finished else None
    if now.status.state == "crashed" or now.status.operation:
        return True
    return story.ok and answering is not None and now.status.state == "stopped" and bool(now.status.message)
