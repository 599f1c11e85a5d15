"""The base of the panes that show numbers: lines made from the newest snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive

from gpubox.tui.styled_lines import dimmed, truncate_line
from gpubox.tui.widgets.styled_lines import StyledLines

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.styled_lines import StyledLine

SHRINK_DRAWS = 20
"""Draws with fewer lines before a pane gives up rows, so that one odd reading does not move the other panes."""


class SnapshotPane(StyledLines):
    """Draws ``lines()``. An equal snapshot costs a comparison; a changed number repaints only its row."""

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    stale: reactive[bool] = reactive(False, repaint=False)
    """Old readings stay, drawn dim."""
    compact: reactive[bool] = reactive(False, repaint=False)
    """Whether there is room for only a line or two."""
    own_height = True
    """Whether the number of lines sets the pane's height; else the styles do."""

    def __init__(self) -> None:
        super().__init__()
        self._title = ""
        self._rows, self._draws_with_fewer, self._layout = 0, 0, (0, False)

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        """The content, one entry per row."""
        raise NotImplementedError

    def title(self, snapshot: Snapshot) -> str:
        """The title in the frame."""
        raise NotImplementedError

    def draw(self) -> None:
        """Brings the rows up to date with the snapshot."""
        size = self.content_size
        if self.snapshot is None or not self.is_attached or size.width <= 0:
            self.drawn = []  # a hidden pane must not show old numbers when it comes back
            return
        lines = [truncate_line(line, size.width) for line in self.lines(self.snapshot, size.width, size.height)]
        if self.own_height:
            self._set_height(len(lines), (size.width, self.compact))
        self.show([dimmed(line) for line in lines] if self.stale else lines)
        title = self.title(self.snapshot)
        if title != self._title:
            self._title = title
            self.border_title = Content(title)  # a str would be parsed as markup

    watch_snapshot = watch_stale = watch_compact = on_resize = on_show = draw

    def _set_height(self, rows: int, layout: tuple[int, bool]) -> None:
        self._draws_with_fewer = self._draws_with_fewer + 1 if rows < self._rows else 0
        if rows > self._rows or self._draws_with_fewer > SHRINK_DRAWS or layout != self._layout:
            self._rows, self._draws_with_fewer, self._layout = rows, 0, layout
            self.styles.height = rows  # without the frame: box-sizing is content-box
