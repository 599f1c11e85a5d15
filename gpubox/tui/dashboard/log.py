"""The live log: whole lines, wrapped, coloured by the level letter they carry themselves."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.widgets.scroll_keys import ScrollKeys

if TYPE_CHECKING:
    from gpubox.server.log import LogLine, RepeatFold

NOTE = "note"
"""The level of a line of gpubox's own."""
KEEP = 5000
"""Lines kept on the screen; the file has the rest."""
LEVELS = {"E": "log--error", "W": "log--warning", "D": "log--debug"}
PREFIX_CELLS = 11
"""Seconds since the server's start, and the level."""
SHORT_PREFIX_CELLS = 2
"""The level alone, where the log is narrow."""
NARROW = 76


class LogView(ScrollKeys, ScrollView, can_focus=True):
    """Shows what ``write`` hands it. Follows the end until somebody scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--error", "log--warning", "log--debug", "log--prefix", "log--note"}
    DEFAULT_CSS = """
    LogView {
        height: 1fr; background: $background; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1;
    }
    LogView > .log--error { color: $error; }
    LogView > .log--warning { color: $warning; }
    LogView > .log--debug { color: $quiet; }
    LogView > .log--prefix { color: $quiet; }
    LogView > .log--note { color: $primary; }
    """
    follow: reactive[bool] = reactive(True, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque()
        self._heights: deque[int] = deque()
        """Rows that each line takes."""
        self._rows: list[tuple[str, str, str]] = []
        """What is drawn: prefix, text, component class."""
        self._filter = ""
        self._columns = 0
        """The width that all lines are wrapped for; 0: never laid out, no line is wrapped yet."""
        self._fold: RepeatFold | None = None

    @property
    def line_count(self) -> int:
        return len(self._lines)

    @property
    def matches(self) -> int:
        """How many lines are shown; a long one takes several rows."""
        return sum(1 for height in self._heights if height)

    def write(self, lines: Iterable[str]) -> None:
        """Adds lines of the server's log. A line that repeats the last one only counts: an idle server repeats."""
        from gpubox.server.log import LogLine, RepeatFold, parse_line, repeats_line

        fold = self._fold = self._fold or RepeatFold()
        fresh: list[LogLine] = []
        for line in map(parse_line, lines):
            count, shown = fold.add(line)
            if count:
                fresh.append(LogLine(repeats_line(count), level=NOTE))
            if shown:
                fresh.append(line)
        if fresh:
            self._add(fresh)

    def note(self, text: str) -> None:
        """Adds a line of gpubox's own."""
        from gpubox.server.log import LogLine

        if self._fold:
            self._fold.reset()
        self._add([LogLine(text, level=NOTE)])

    def clear(self) -> None:
        """Takes all lines away."""
        self._lines.clear()
        self._heights.clear()
        self._rows.clear()
        self._fold, self.follow = None, True
        self._resized(0)

    def narrow(self, text: str) -> None:
        """Shows only lines that hold ``text``."""
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
    def _prefix(self) -> int:
        return SHORT_PREFIX_CELLS if self._width() < NARROW else PREFIX_CELLS

    def _width(self) -> int:
        """The width to wrap for. While the view is hidden it has none: then that which it had."""
        width = self.scrollable_content_region.width
        return max(10, width) if width else self._columns

    def _add(self, lines: list[LogLine]) -> None:
        if self._width() != self._columns:
            self._wrap_all()
        for line in lines:
            rows = self._wrap(line)
            self._lines.append(line)
            self._heights.append(len(rows))
            self._rows += rows
        gone = 0
        while len(self._lines) > KEEP:
            self._lines.popleft()
            gone += self._heights.popleft()
        del self._rows[:gone]
        self._resized(gone)

    def _wrap_all(self) -> None:
        self._columns = self._width()
        wrapped = [self._wrap(line) for line in self._lines]
        self._heights = deque(map(len, wrapped))
        self._rows = [row for rows in wrapped for row in rows]
        self._resized(0)

    def _wrap(self, line: LogLine) -> list[tuple[str, str, str]]:
        if not self._columns or (self._filter and self._filter not in line.text.lower()):
            return []
        text = sanitize_line(line.text)
        if self._prefix == SHORT_PREFIX_CELLS:  # no room for columns: the server pads its own with blanks
            text = " ".join(text.split())
        if line.level == NOTE:
            return [("", text, "log--note")]
        style = LEVELS.get(line.level or "", "")
        at = f"{line.seconds:8.2f} {line.level} "[-self._prefix :] if line.seconds is not None else ""
        width = max(10, self._width() - self._prefix)
        texts = [text] if len(text) <= width and text.isascii() else _wrapped(text, width)
        return [(at if not i else "", part, style) for i, part in enumerate(texts)]

    def _resized(self, gone: int) -> None:
        """Takes over the new number of rows; ``gone`` of them went away at the top."""
        follow = self.follow
        self.virtual_size = Size(self._width(), len(self._rows))
        if follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
            self.follow = True
        elif gone:
            self.scroll_to(y=max(0, self.scroll_y - gone), animate=False, immediate=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        width = self.size.width
        base = self.rich_style
        if row >= len(self._rows):
            return Strip.blank(width, base)
        prefix, text, style = self._rows[row]
        shown = self.get_component_rich_style(style) if style else base
        indent = "" if style == "log--note" else prefix.ljust(self._prefix)
        segments = [Segment(indent, self.get_component_rich_style("log--prefix")), Segment(text, shown)]
        return Strip(segments).adjust_cell_length(width, base)


def _wrapped(text: str, width: int) -> list[str]:
    if not text.isascii():
        width = max(5, width // 2)  # wide characters take two cells: never past the edge
    return textwrap.wrap(text, width, drop_whitespace=True, break_on_hyphens=False) or [""]
