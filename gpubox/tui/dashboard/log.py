"""The log pane: the server's log, wrapped, coloured by level, followed, filtered; and the log of the last failure."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.widgets import Input, Static

from gpubox.concurrency import run_in_thread
from gpubox.errors import GpuboxError
from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.dialogs import Dialog
from gpubox.tui.widgets.form import FilterLine
from gpubox.tui.widgets.lines import ScrollKeys, StyledLines

if TYPE_CHECKING:
    from gpubox.server.log import LogLine, RepeatFold
    from gpubox.tui.bridge import ServiceBridge
    from gpubox.tui.styled_lines import StyledLine

NOTE = "note"
"""The level of a line that gpubox itself wrote."""
MAX_LINES = 5000
"""Lines kept on the screen; the file has the rest."""
TICK_LINES = 500
"""Lines that are taken in a turn: 3 ms."""
TURN_SECONDS = 0.02
LEVEL_STYLES = {"E": "$error", "W": "$warning", "D": "$quiet"}
PREFIX_CELLS = 11
"""Seconds since the server's start, and the level letter."""
NARROW_PREFIX_CELLS = 2
"""The level letter alone, if the log is narrower than NARROW_CELLS."""
NARROW_CELLS = 76
ENTER_DOES = {
    "profile": "Enter starts the highlighted profile.",
    "model": "Enter makes a profile of the highlighted model and starts it.",
}
"""By the kind of the highlighted row."""


class LogView(ScrollKeys, StyledLines, ScrollView, can_focus=True):
    """The lines. Follows the end until the owner scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]
    DEFAULT_CSS = """
    LogView {
        height: 1fr; background: $background; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
    }
    """
    follow: reactive[bool] = reactive(True, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque()
        self._shown: list[LogLine] = []
        """The lines that the filter shows."""
        self._starts: list[int] = []
        """The first row of each of them; rows that went away at the top are still counted."""
        self._first = self._end = 0
        """The first row that is left, and the one after the last."""
        self._filter = ""
        self._columns = 0
        """The width that the rows are counted for; 0 before the first layout, when there are none yet."""
        self._fold: RepeatFold | None = None
        self._wrapped: tuple[LogLine | None, str, list[int]] = (None, "", [])
        """The line that was drawn last: its text, and where its rows begin."""

    @property
    def line_count(self) -> int:
        return len(self._lines)

    @property
    def match_count(self) -> int:
        """How many lines the filter shows."""
        return len(self._shown)

    def write(self, lines: Iterable[str | LogLine]) -> None:
        """Adds lines of the server's log. Repeated lines are folded into a count: an idle server repeats itself.

        A LogLine is one of gpubox's own.
        """
        from gpubox.server.log import LogLine, RepeatFold, parse_line, repeats_line

        fold = self._fold = self._fold or RepeatFold()
        new: list[LogLine] = []
        for given in lines:
            line = parse_line(given) if isinstance(given, str) else given
            count, shown = fold.add(line)
            if count:
                new.append(LogLine(repeats_line(count), level=NOTE))
            if shown:
                new.append(line)
        if new:
            self._append(new)

    def set_filter(self, text: str) -> None:
        """Shows only lines that contain ``text``, in any case."""
        if text.lower() != self._filter:
            self._filter = text.lower()
            self._count_all()

    def on_resize(self, event: events.Resize) -> None:
        if self.scrollable_content_region.width and self._width() != self._columns:
            self._count_all()

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self.follow = new >= self.max_scroll_y - 1

    def action_bottom(self) -> None:
        self.follow = True
        super().action_bottom()

    @property
    def _prefix_cells(self) -> int:
        return NARROW_PREFIX_CELLS if self._columns < NARROW_CELLS else PREFIX_CELLS

    def _width(self) -> int:
        """The width to wrap for. A hidden view has none and keeps its last one."""
        width = self.scrollable_content_region.width
        return max(10, width) if width else self._columns

    def _append(self, lines: list[LogLine]) -> None:
        self._lines.extend(lines)
        self._count(lines)
        gone = 0
        while len(self._lines) > MAX_LINES:
            oldest = self._lines.popleft()
            gone += gone < len(self._shown) and oldest is self._shown[gone]
        first = self._starts[gone] if gone < len(self._starts) else self._end
        removed, self._first = first - self._first, first
        del self._shown[:gone], self._starts[:gone]
        self._rows_changed(removed)

    def _count_all(self) -> None:
        self._shown, self._starts, self._first, self._end = [], [], 0, 0
        self._columns, self._wrapped = self._width(), (None, "", [])
        self._count(self._lines)
        self._rows_changed(0)
        self.clear_selection()

    def _count(self, lines: Iterable[LogLine]) -> None:
        """Counts the rows of lines at the end. What is in the rows is made when they are drawn."""
        if not self._columns:
            return
        for line in lines:
            if not self._filter or self._filter in line.text.lower():
                self._shown.append(line)
                self._starts.append(self._end)
                self._end += len(self._breaks(line)[1])

    def _breaks(self, line: LogLine) -> tuple[str, list[int]]:
        """The text of a line, and where in it a row begins."""
        text = sanitize_line(line.text)
        if self._prefix_cells == NARROW_PREFIX_CELLS:  # no room for the server's own column padding
            text = " ".join(text.split())
        width = max(10, self._columns - self._prefix_cells)
        if not text.isascii():
            width = max(5, width // 2)  # a wide character takes two cells
        breaks, at = [0], 0
        while line.level != NOTE and len(text) - at > width:
            space = text.rfind(" ", at + 1, at + width + 1)
            at = space + 1 if space > 0 else at + width
            breaks.append(at)
        return text, breaks

    def _rows_changed(self, removed: int) -> None:
        """Adapts the scroll range; ``removed`` rows went away at the top."""
        follow = self.follow
        # Not the reactive: it would lay the whole screen out again for each new line. The bar is always shown.
        self.set_reactive(ScrollView.virtual_size, Size(self._width(), self.row_count()))
        self.vertical_scrollbar.window_virtual_size = self.row_count()
        if follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
            self.follow = True
        elif removed:
            self.scroll_to(y=max(0, self.scroll_y - removed), animate=False, immediate=True)
        if removed:
            self.clear_selection()
        self.refresh()

    def row_count(self) -> int:
        return self._end - self._first

    def row(self, y: int) -> StyledLine:
        row = self._first + y
        if not self._first <= row < self._end:
            return ()
        index = bisect_right(self._starts, row) - 1
        line, part = self._shown[index], row - self._starts[index]
        if self._wrapped[0] is not line:
            self._wrapped = line, *self._breaks(line)
        _, text, breaks = self._wrapped
        if line.level == NOTE:
            return ((text, "$primary"),)
        prefix = f"{line.seconds:8.2f} {line.level} "[-self._prefix_cells :] if line.seconds is not None else ""
        indent = ("" if part else prefix).ljust(self._prefix_cells)
        shown = text[breaks[part] : breaks[part + 1] if part + 1 < len(breaks) else None].rstrip()
        return ((indent, "$quiet"), (shown, LEVEL_STYLES.get(line.level or "", "")))


class LogPane(Vertical):
    """A LogView, a filter line, and a subtitle that tells whether it follows. Works only while one can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.placeholder = Static("", id="log-empty", markup=False)
        self.view = LogView()
        self.view.display = False
        self.filter = FilterLine("log-filter", "text in the line", self.view)
        self._waiting: deque[str | LogLine] = deque(maxlen=MAX_LINES)
        """Lines that nobody could see yet."""
        self._taking = False

    def say_empty(self, kind: str) -> None:
        """What stands there without a log; ``kind``: of the highlighted row, if it can be started."""
        text = f"No log yet. {ENTER_DOES.get(kind, '')}".rstrip()
        if self.placeholder.content != text:
            self.placeholder.update(text)

    def mount_content(self) -> None:
        """Mounts the content; called after the first paint."""
        self.mount(self.filter, self.placeholder, self.view)
        self.watch(self.view, "follow", self._update_subtitle, init=False)
        self.on_show()

    @property
    def line_count(self) -> int:
        return self.view.line_count + len(self._waiting)

    def write(self, lines: Sequence[str | LogLine]) -> None:
        """Adds lines of the server's log; of more than a tick has time for only the last."""
        if (skipped := len(lines) - TICK_LINES) > 0 and self._is_seen and self.view.line_count:
            from gpubox.server.log import LogLine

            self._waiting.append(LogLine(f"… {skipped:,} lines skipped, the file has them", level=NOTE))
            lines = lines[skipped:]
        self._waiting.extend(lines)
        self.on_show()

    def note(self, text: str) -> None:
        """Adds a line of gpubox's own."""
        from gpubox.server.log import LogLine

        self.write([LogLine(text, level=NOTE)])

    @property
    def _is_seen(self) -> bool:
        return self.view.is_attached and bool(self.region) and self.screen.is_current

    def on_show(self) -> None:
        """Takes what waited, so much a turn that keys are not late."""
        if self._waiting and not self._taking and self._is_seen:
            self._taking = True
            self.view.write([self._waiting.popleft() for _ in range(min(TICK_LINES, len(self._waiting)))])
            self._update_subtitle()
            self.set_timer(TURN_SECONDS, self._take_more)

    def _take_more(self) -> None:
        self._taking = False
        self.on_show()

    @on(Input.Changed, "#log-filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self.view.set_filter(event.value)
        self._update_subtitle()

    def _update_subtitle(self) -> None:
        empty = self.view.line_count == 0
        self.placeholder.display, self.view.display = empty, not empty
        count = self.view.match_count
        matches = "1 line matches" if count == 1 else f"{count:,} lines match"
        parts = [matches if self.filter.value else "", "" if self.view.follow else "paused, end follows again"]
        subtitle = "  ".join(part for part in parts if part)
        if self.border_subtitle != subtitle:
            self.border_subtitle = subtitle


class FailedLogScreen(Dialog[None]):
    """The log of the last failed start, or of the server that crashed. The log pane may show a newer log."""

    DEFAULT_CSS = """
    FailedLogScreen > Vertical { width: 96%; height: 90%; padding: 0 1; }
    FailedLogScreen Static { max-height: 3; color: $error; }
    """
    BINDINGS = [("q", "dismiss", "Close")]  # noqa: RUF012

    def __init__(self, failure: str, lines: list[str]) -> None:
        super().__init__()
        self.failure, self.lines = failure, lines

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = "Log of the last failure", "esc closes"
            yield Static(sanitize_line(self.failure), markup=False)
            yield LogView()

    def on_mount(self) -> None:
        view = self.query_one(LogView)
        view.focus()
        self.call_after_refresh(view.write, self.lines)  # after the layout, which gives the width to wrap for


async def show_failed_log(bridge: ServiceBridge) -> None:
    """Opens the log of the last failure, or says that there is none."""
    try:
        failure, lines = await run_in_thread(bridge.services.failed_log)
    except GpuboxError as error:
        bridge.app.say(str(error))
    else:
        bridge.app.push_screen(FailedLogScreen(failure, lines))
