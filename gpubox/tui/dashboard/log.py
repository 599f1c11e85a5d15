"""The log pane: the server's log, wrapped, coloured by level, followed, filtered; and the log of the last failure."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.widgets import Input, Static

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.dialogs import Dialog
from gpubox.tui.widgets.form import FilterLine
from gpubox.tui.widgets.lines import ScrollKeys, StyledLines

if TYPE_CHECKING:
    from gpubox.server.log import LogLine, RepeatFold
    from gpubox.tui.styled_lines import StyledLine

NOTE = "note"
"""The level of a line that gpubox itself wrote."""
MAX_LINES = 5000
"""Lines kept on the screen; the file has the rest."""
LEVEL_STYLES = {"E": "$error", "W": "$warning", "D": "$quiet"}
PREFIX_CELLS = 11
"""Seconds since the server's start, and the level letter."""
NARROW_PREFIX_CELLS = 2
"""The level letter alone, if the log is narrower than NARROW_CELLS."""
NARROW_CELLS = 76


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
        self._heights: deque[int] = deque()
        """Rows of each line; 0 where the filter hides it."""
        self._rows: list[StyledLine] = []
        self._filter = ""
        self._columns = 0
        """The width that all lines are wrapped for; 0 before the first layout, when no line is wrapped yet."""
        self._fold: RepeatFold | None = None

    @property
    def line_count(self) -> int:
        return len(self._lines)

    @property
    def match_count(self) -> int:
        """How many lines the filter shows."""
        return sum(1 for height in self._heights if height)

    def write(self, lines: Iterable[str]) -> None:
        """Adds lines of the server's log. Repeated lines are folded into a count: an idle server repeats itself."""
        from gpubox.server.log import LogLine, RepeatFold, parse_line, repeats_line

        fold = self._fold = self._fold or RepeatFold()
        new: list[LogLine] = []
        for line in map(parse_line, lines):
            count, shown = fold.add(line)
            if count:
                new.append(LogLine(repeats_line(count), level=NOTE))
            if shown:
                new.append(line)
        if new:
            self._append(new)

    def note(self, text: str) -> None:
        """Adds a line of gpubox's own."""
        from gpubox.server.log import LogLine

        if self._fold:
            self._fold.reset()
        self._append([LogLine(text, level=NOTE)])

    def set_filter(self, text: str) -> None:
        """Shows only lines that contain ``text``, in any case."""
        if text.lower() != self._filter:
            self._filter = text.lower()
            self._wrap_all()

    def on_resize(self, event: events.Resize) -> None:
        if self.scrollable_content_region.width and self._width() != self._columns:
            self._wrap_all()

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
        if self._width() != self._columns:
            self._wrap_all()
        for line in lines:
            rows = self._wrap(line)
            self._lines.append(line)
            self._heights.append(len(rows))
            self._rows += rows
        removed = 0
        while len(self._lines) > MAX_LINES:
            self._lines.popleft()
            removed += self._heights.popleft()
        del self._rows[:removed]
        self._rows_changed(removed)

    def _wrap_all(self) -> None:
        self._columns = self._width()
        wrapped = [self._wrap(line) for line in self._lines]
        self._heights = deque(map(len, wrapped))
        self._rows = [row for rows in wrapped for row in rows]
        self._rows_changed(0)
        self.clear_selection()

    def _wrap(self, line: LogLine) -> list[StyledLine]:
        if not self._columns or (self._filter and self._filter not in line.text.lower()):
            return []
        text = sanitize_line(line.text)
        if self._prefix_cells == NARROW_PREFIX_CELLS:  # no room for the server's own column padding
            text = " ".join(text.split())
        if line.level == NOTE:
            return [((text, "$primary"),)]
        style = LEVEL_STYLES.get(line.level or "", "")
        prefix = f"{line.seconds:8.2f} {line.level} "[-self._prefix_cells :] if line.seconds is not None else ""
        width = max(10, self._columns - self._prefix_cells)
        if not text.isascii():
            width = max(5, width // 2)  # a wide character takes two cells
        parts = textwrap.wrap(text, width, break_on_hyphens=False) if len(text) > width else [text]
        prefixes = [prefix.ljust(self._prefix_cells), *[" " * self._prefix_cells] * (len(parts) - 1)]
        return [((indent, "$quiet"), (part, style)) for indent, part in zip(prefixes, parts, strict=True)]

    def _rows_changed(self, removed: int) -> None:
        """Adapts the scroll range; ``removed`` rows went away at the top."""
        follow = self.follow
        self.virtual_size = Size(self._width(), len(self._rows))
        if follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
            self.follow = True
        elif removed:
            self.scroll_to(y=max(0, self.scroll_y - removed), animate=False, immediate=True)
        if removed:
            self.clear_selection()
        self.refresh()

    def row_count(self) -> int:
        return len(self._rows)

    def row(self, y: int) -> StyledLine:
        return self._rows[y] if y < len(self._rows) else ()


class LogPane(Vertical):
    """A LogView, a filter line, and a subtitle that tells whether it follows."""

    def __init__(self) -> None:
        super().__init__()
        self.placeholder = Static("", id="log-empty", markup=False)
        self.view = LogView()
        self.view.display = False
        self.filter = FilterLine("log-filter", "text in the line", self.view)

    def mount_content(self) -> None:
        """Mounts the content; called after the first paint."""
        self.mount(self.filter, self.placeholder, self.view)
        self.watch(self.view, "follow", self._update_subtitle, init=False)

    def write(self, lines: list[str]) -> None:
        """Adds lines of the server's log."""
        self.view.write(lines)
        self._update_subtitle()

    def note(self, text: str) -> None:
        """Adds a line of gpubox's own."""
        self.view.note(text)
        self._update_subtitle()

    @on(Input.Changed, "#log-filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self.view.set_filter(event.value)
        self._update_subtitle()

    def _update_subtitle(self) -> None:
        empty = self.view.line_count == 0
        self.placeholder.display, self.view.display = empty, not empty
        count = self.view.match_count
        matches = "1 line matches" if count == 1 else f"{count:,} lines match"
        parts = [matches if self.filter.value else "", "" if self.view.follow else "paused, G follows again"]
        subtitle = "  ".join(part for part in parts if part)
        if self.border_subtitle != subtitle:
            self.border_subtitle = subtitle


class FailedLogScreen(Dialog[None]):
    """The log of the last failed start, or of the server that crashed. The log pane may show a newer log."""

    DEFAULT_CSS = """
    FailedLogScreen > Vertical { width: 96%; height: 90%; padding: 0 1; }
    FailedLogScreen Static { max-height: 3; color: $error; }
    """
    BINDINGS = [("escape,q", "dismiss", "Close")]  # noqa: RUF012

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
