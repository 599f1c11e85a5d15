"""The chat as lines: only the turn that runs is made anew, only rows that changed are painted."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpubox.tui.actions import Scope, bindings
from gpubox.tui.chat.wrap import wrap
from gpubox.tui.styled_lines import StyledLine
from gpubox.tui.widgets.scroll_keys import ScrollKeys
from gpubox.tui.widgets.styled_lines import StyledLines

if TYPE_CHECKING:
    from gpubox.tui.chat.parts import TurnPart
    from gpubox.tui.chat.turn import TurnView

CACHED_STRIPS = 4000
"""So many painted lines are remembered."""
MAX_COLUMNS = 132
"""Longer lines are hard to read, however wide the terminal is."""
SCROLL_STEP = 3
"""While an answer comes the text moves up by so many rows at once: moving it is what costs, and is hard to read."""
MARGIN = 1
"""Cells left free at either side."""


class Transcript(ScrollKeys, StyledLines, ScrollView, can_focus=True):
    """Shows ``turns``. Follows the end until somebody scrolls up."""

    DEFAULT_CSS = """
    Transcript { height: 1fr; background: $background; overflow-x: hidden; overflow-y: scroll;
                 scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]

    class Scrolled(Message):
        """The number of lines below the screen changed."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[TurnView] = []
        self.welcome: list[StyledLine] = []
        """What stands there while there is no turn."""
        self.follow = True
        self._rows: list[list[StyledLine]] = []
        """The lines of each turn."""
        self._parts: list[list[tuple[int, TurnPart]]] = []
        """Of each turn: the row at which a part begins, and the part."""
        self._starts: list[int] = []
        """The row at which each turn begins."""
        self._strips: dict[StyledLine, Strip] = {}
        self._columns = 0
        self._below = 0

    # -- what is shown --------------------------------------------------------------------------------

    def load(self, turns: list[TurnView]) -> None:
        """Shows other turns, from their end."""
        self.turns, self.follow = turns, True
        self.remake()

    def add(self, turn: TurnView) -> None:
        """One more turn; what is at the end comes into view."""
        self.turns.append(turn)
        self.follow = True
        self.grow()

    def grow(self) -> None:
        """Makes the last turn anew: it went on."""
        if not self._columns or len(self._rows) < len(self.turns) - 1:
            self.remake()
            return
        if self.turns:
            at = len(self.turns) - 1
            del self._rows[at:], self._parts[at:], self._starts[at:]
            self._make(self.turns[at])
        self._settle()

    def remake(self) -> None:
        """Makes all turns anew: another width, another fold, another chat."""
        self._columns = max(0, min(MAX_COLUMNS, self.scrollable_content_region.width - 2 * MARGIN))
        if not self._columns:
            return
        self._rows, self._parts, self._starts = [], [], []
        for turn in self.turns:
            self._make(turn)
        self._settle()

    def _make(self, turn: TurnView) -> None:
        start = self._starts[-1] + len(self._rows[-1]) if self._rows else 0
        rows: list[StyledLine] = []
        places: list[tuple[int, TurnPart]] = []
        for part in turn.parts:
            lines = part.lines(self._columns)
            if lines and part.gap and (rows or start):
                rows.append(())
            places.append((len(rows), part))
            rows += lines
        if turn.over:
            rows.append(())
        self._rows.append(rows)
        self._parts.append(places)
        self._starts.append(start)

    def _settle(self) -> None:
        """Takes over the new number of rows."""
        count = self._starts[-1] + len(self._rows[-1]) if self._rows else 0
        if self.turns and not self.turns[-1].over:
            count += -count % SCROLL_STEP
        # Not self.virtual_size = ...: that arranges the whole screen anew, and only this pane changed.
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
            self.show([self._line(y) for y in range(top, top + height)])
        else:
            self.show([row for line in self.welcome for row in wrap(line, self._columns)])
        below = max(0, self.max_scroll_y - top)
        if below != self._below:
            self._below = below
            self.post_message(self.Scrolled())

    @property
    def below(self) -> int:
        """Lines that stand below the screen."""
        return self._below

    def _line(self, y: int) -> StyledLine:
        at = bisect_right(self._starts, y) - 1
        if at < 0:
            return ()
        rows, row = self._rows[at], y - self._starts[at]
        return rows[row] if row < len(rows) else ()

    # -- painting -------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        row = self.drawn[y] if y < len(self.drawn) else ()
        strip = self._strips.get(row)
        if strip is None or strip.cell_length != self.size.width:
            if len(self._strips) > CACHED_STRIPS:
                self._strips.clear()
            strip = self._strips[row] = self.strip(((" " * MARGIN, ""), *row), self.size.width)
        return strip

    def on_resize(self, event: events.Resize) -> None:
        self._strips.clear()
        self.remake()

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        self.follow = new >= self.max_scroll_y
        if round(old) != round(new):
            self._draw()

    # -- folds ----------------------------------------------------------------------------------------

    def fold_all(self, open_: bool) -> None:
        """Unfolds or folds everything that can be folded."""
        for turn in self.turns:
            for part in turn.parts:
                if part.folds:
                    part.open = open_
        self.remake()

    def part_at(self, y: int) -> tuple[int, TurnPart] | None:
        """Turn and part at row ``y`` of the chat."""
        at = bisect_right(self._starts, y) - 1
        if at < 0 or not self._parts[at]:
            return None
        places = self._parts[at]
        inside = bisect_right([start for start, _ in places], y - self._starts[at]) - 1
        return (at, places[max(0, inside)][1])

    def on_click(self, event: events.Click) -> None:
        found = self.part_at(self.scroll_offset.y + event.y)
        if found and found[1].folds:
            found[1].open = not found[1].open
            follow, self.follow = self.follow, False
            self.remake()
            self.follow = follow and self.scroll_offset.y >= self.max_scroll_y

    @property
    def turn_in_view(self) -> int | None:
        """The turn that the screen shows the end of: the last where it follows, else the one at its foot."""
        if not self.turns:
            return None
        if self.follow:
            return len(self.turns) - 1
        return max(0, bisect_right(self._starts, self.scroll_offset.y + self.size.height - 1) - 1)

    def action_bottom(self) -> None:
        self.follow = True
        super().action_bottom()
