"""The runs, the newest first: what was measured, what it came to, and how it ended."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType
from textual.message import Message

from gpubox.tui.bench.views import measured_label
from gpubox.tui.formatting import time_or_date
from gpubox.tui.styled_lines import StyledLine, cell_width, pad_line, sanitize_to_width, styled_line
from gpubox.tui.widgets.cursor_rows import CursorRows

if TYPE_CHECKING:
    from gpubox.bench.report.run_summaries import RunSummary

STATES = {
    "running": ("●", "$primary"),
    "finished": ("✓", "$success"),
    "interrupted": ("◐", "$warning"),
    "failed": ("✗", "$error"),
    "damaged": ("✗", "$error"),
}


KIND_CELLS = 9
BESIDE_NAME_CELLS = 38
"""Cells of all that stands beside a name, with a speed such as ``tg 57.9 tok/s``."""


class RunRows(CursorRows["RunSummary"]):
    """The lines. Enter shows one's report alone."""

    EMPTY_TEXT = "No run yet. n plans one; b runs speed at once."
    CURSOR_RETURNS_TO_TOP = False
    BINDINGS: ClassVar[list[BindingType]] = []

    class Moved(Message):
        """The cursor is on another run."""

    marked: tuple[str, ...] = ()
    """Runs to compare, the first one first."""

    def make_row(self, value: RunSummary, width: int) -> StyledLine:
        glyph, colour = STATES.get(value.state, ("?", "$warning"))
        number = f"{self.marked.index(value.id) + 1}" if value.id in self.marked else " "
        kind = value.info.plan.kind if value.info else ""
        at = time_or_date(value.info.created_at) if value.info else ""
        names = max(10, min(26, width - BESIDE_NAME_CELLS))
        said = value.headline.removeprefix("best so far ") or value.problem
        named = measured_label(value.info) if value.info else value.id
        style = "$error" if value.problem else ""
        if value.state in ("interrupted", "running") and value.info:
            said, style = f"{value.done}/{value.info.items} {said}".strip(), "$quiet"
        restore_pending = value.restore_pending and value.state != "running"  # the one at work gives back at its end
        flag = ("! ", "$warning") if value.flags or restore_pending else ("  ", "")
        head = styled_line(
            (number, "bold $accent"), " ", (glyph, colour), " ", (f"{kind:<{KIND_CELLS}.{KIND_CELLS}} ", "$secondary")
        )
        left = (*head, *pad_line(styled_line((sanitize_to_width(named, names), "bold")), names), (" ", ""))
        room = width - cell_width(left) - len(at) - 4
        return (
            *left,
            *pad_line(styled_line((sanitize_to_width(said, room), style)), room),
            (" ", ""),
            flag,
            (at, "$quiet"),
        )

    def key(self, value: RunSummary) -> Hashable:
        return value.id

    def move_cursor(self, at: int) -> None:
        before = self.value
        super().move_cursor(at)
        if self.value is not before:
            self.post_message(self.Moved())

    @property
    def at_top(self) -> bool:
        """Whether the cursor is on the newest run."""
        return self.cursor == 0

    def stand_on(self, run: str) -> bool:
        """Puts the cursor on a run. Returns whether it is in the list."""
        at = next((at for at, head in enumerate(self.values) if head.id == run), None)
        if at is not None:
            self.move_cursor(at)
        return at is not None

    def mark(self) -> None:
        """Marks the run under the cursor, or takes its mark; a third mark takes the place of the first."""
        if self.value is None:
            return
        name = self.value.id
        if name in self.marked:
            self.marked = tuple(one for one in self.marked if one != name)
        else:
            self.marked = (*self.marked, name)[-2:]
        self.redraw()
