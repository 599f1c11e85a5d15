"""The turns of a chat as scrolling lines: only the running turn is laid out again, only changed rows are painted."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gpubox.tui.styled_lines import StyledLine, wrap
from gpubox.tui.widgets.lines import ScrollableLines

if TYPE_CHECKING:
    from gpubox.tui.chat.turn import TurnView
    from gpubox.tui.chat.turn_parts import TurnPart

CACHED_STRIPS = 4000
MAX_COLUMNS = 132
"""Longer lines are hard to read, however wide the terminal is."""
SCROLL_STEP = 3
"""Rows that a streamed answer scrolls at once: scrolling is expensive, and single rows are hard to read."""


class Transcript(ScrollableLines, can_focus=True):
    """Shows ``turns``, and follows the end until the user scrolls up."""

    DEFAULT_CSS = """
    Transcript { height: 1fr; background: $background; overflow-y: scroll; }
    """
    MARGIN: ClassVar[int] = 1

    class LinesBelowChanged(Message):
        """The number of lines below the screen changed."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[TurnView] = []
        self.welcome: list[StyledLine] = []
        """Shown while there is no turn."""
        self.follow = True
        self.lines_below = 0
        """Lines below the screen."""
        self._rows: list[list[StyledLine]] = []
        """The lines of each turn."""
        self._parts: list[list[tuple[int, TurnPart]]] = []
        """Of each turn: the row at which a part starts, and the part."""
        self._starts: list[int] = []
        """The row at which each turn starts."""
        self._strips: dict[StyledLine, Strip] = {}

    # -- layout ---------------------------------------------------------------------------------------

    def load(self, turns: list[TurnView]) -> None:
        """Replaces all turns and shows the end of the last one."""
        self.turns, self.follow = turns, True
        self.clear_selection()
        self.remake()

    def add(self, turn: TurnView) -> None:
        self.turns.append(turn)
        self.follow = True
        self.update_last()

    def update_last(self) -> None:
        if not self._columns or len(self._rows) < len(self.turns) - 1:
            self.remake()
            return
        if self.turns:
            last = len(self.turns) - 1
            del self._rows[last:], self._parts[last:], self._starts[last:]
            self._lay_out(self.turns[last])
        self._update_size()

    def remake(self) -> None:
        self._columns = max(0, min(MAX_COLUMNS, self.scrollable_content_region.width - 2 * self.MARGIN))
        if not self._columns:
            return
        self._rows, self._parts, self._starts = [], [], []
        for turn in self.turns:
            self._lay_out(turn)
        self._update_size()

    def _lay_out(self, turn: TurnView) -> None:
        start = self._starts[-1] + len(self._rows[-1]) if self._rows else 0
        rows: list[StyledLine] = []
        parts: list[tuple[int, TurnPart]] = []
        for part in turn.parts:
            lines = part.lines(self._columns)
            if lines and part.gap and (rows or start):
                rows.append(())
            parts.append((len(rows), part))
            rows += lines
        if turn.over:
            rows.append(())
        self._rows.append(rows)
        self._parts.append(parts)
        self._starts.append(start)

    def row_count(self) -> int:
        return self._starts[-1] + len(self._rows[-1]) if self._rows else 0

    def row(self, y: int) -> StyledLine:
        if not self.turns:
            return super().row(y)
        turn = bisect_right(self._starts, y) - 1
        if turn < 0:
            return ()
        rows, index = self._rows[turn], y - self._starts[turn]
        return rows[index] if index < len(rows) else ()

    def _update_size(self) -> None:
        count = self.row_count()
        if self.turns and not self.turns[-1].over:
            count += -count % SCROLL_STEP
        # Assigning self.virtual_size would lay out the whole screen again, but only this widget changed.
        self.set_reactive(Widget.virtual_size, Size(self.size.width, count))
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = count
        if self.follow:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)
            self.follow = True
        elif self.scroll_offset.y > self.max_scroll_y:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)
        self._draw()

    def _draw(self) -> None:
        top, height = self.scroll_offset.y, self.size.height
        if self.turns:
            self.show([self.row(y) for y in range(top, top + height)])
        else:
            self.show([row for line in self.welcome for row in wrap(line, self._columns)])
        lines_below = max(0, self.max_scroll_y - top)
        if lines_below != self.lines_below:
            self.lines_below = lines_below
            self.post_message(self.LinesBelowChanged())

    # -- painting -------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()

    def row_strip(self, y: int) -> Strip:
        row = self.row(y)
        strip = self._strips.get(row)
        if strip is None or strip.cell_length != self.size.width:
            if len(self._strips) > CACHED_STRIPS:
                self._strips.clear()
            strip = self._strips[row] = self.strip(((" " * self.MARGIN, ""), *row), self.size.width)
        return strip

    def on_resize(self, event: events.Resize) -> None:
        self._strips.clear()
        self.remake()

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self.follow = new >= self.max_scroll_y
        if round(old) != round(new):
            self._draw()

    # -- folding and scrolling ------------------------------------------------------------------------

    def fold_all(self, open_: bool) -> None:
        for turn in self.turns:
            for part in turn.parts:
                if part.folds:
                    part.open = open_
        self.remake()

    def part_at(self, y: int) -> TurnPart | None:
        turn = bisect_right(self._starts, y) - 1
        if turn < 0 or not self._parts[turn]:
            return None
        parts = self._parts[turn]
        index = bisect_right([start for start, _ in parts], y - self._starts[turn]) - 1
        return parts[max(0, index)][1]

    def on_click(self, event: events.Click) -> None:
        if self.text_selection is not None:
            return  # the mouse was dragged to select text
        part = self.part_at(self.scroll_offset.y + event.y)
        if part and part.folds:
            part.open = not part.open
            follow, self.follow = self.follow, False
            self.remake()
            self.follow = follow and self.scroll_offset.y >= self.max_scroll_y

    @property
    def turn_in_view(self) -> int | None:
        """Index of the turn at the bottom of the screen; of the last one while following the end."""
        if not self.turns:
            return None
        if self.follow:
            return len(self.turns) - 1
        return max(0, bisect_right(self._starts, self.scroll_offset.y + self.size.height - 1) - 1)

    def action_bottom(self) -> None:
        self.follow = True
        super().action_bottom()
