"""The base of the panes that show numbers: lines made from the newest snapshot, and only changed rows repainted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.content import Content
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.styled_lines import StyledLine

SHRINK_DRAWS = 20
"""So many draws with fewer rows before a pane gives rows back: one odd reading does not make the others jump."""


class StyledLines(Widget):
    """Shows the rows of ``drawn``."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[StyledLine] = []
        self.rendered = 0
        """How many rows were made for the screen so far; tests count with it."""
        self._styles_known: dict[str, RichStyle] = {}

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles_known.clear()

    def style_of(self, words: str) -> RichStyle:
        """A style of the theme, on the pane's own colours."""
        known = self._styles_known.get(words)
        if known is None:
            style = self.visual_style
            if words:
                style = style + self.app.stylesheet.parse_style(words)
            known = self._styles_known[words] = style.rich_style
        return known

    def strip(self, row: StyledLine, width: int, base: str = "") -> Strip:
        """A row as the screen takes it; ``base`` is the style under all of it."""
        segments = [Segment(text, self.style_of(f"{base} {style}".strip())) for text, style in row]
        return Strip(segments).adjust_cell_length(width, self.style_of(base))

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        row = self.drawn[y] if y < len(self.drawn) else ()
        return self.strip(row, self.content_size.width)

    def show(self, rows: list[StyledLine]) -> None:
        """Shows ``rows``; repaints those that differ from what stands there."""
        old, self.drawn = self.drawn, rows
        width = self.content_size.width
        for y in range(max(len(old), len(rows))):
            if (old[y] if y < len(old) else ()) != (rows[y] if y < len(rows) else ()):
                self.refresh(Region(0, y, width, 1))


class SnapshotPane(StyledLines):
    """Draws ``lines()``. An equal snapshot costs a comparison; a changed number repaints its row and no other."""

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    stale: reactive[bool] = reactive(False, repaint=False)
    """Whether the readings are old: they stay, drawn dim."""
    compact: reactive[bool] = reactive(False, repaint=False)
    """Whether there is room for little: a line or two."""
    own_height = True
    """Whether the pane is as high as it has lines; else the styles say."""

    def __init__(self) -> None:
        super().__init__()
        self._title = ""
        self._most, self._fewer, self._laid_out = 0, 0, (0, False)

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        """What stands in the pane, one entry a row."""
        raise NotImplementedError

    def title(self, snapshot: Snapshot) -> str:
        """The title in the frame."""
        return ""

    def watch_snapshot(self) -> None:
        self.draw()

    def watch_stale(self) -> None:
        self.draw()

    def watch_compact(self) -> None:
        self.draw()

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    def on_show(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Brings the rows up to date with the snapshot."""
        size = self.content_size
        if self.snapshot is None or not self.is_attached or size.width <= 0:
            self.drawn = []  # when it is seen again, nothing is shown before what is true then
            return
        from gpubox.tui.styled_lines import dimmed, truncate_line

        rows = [truncate_line(row, size.width) for row in self.lines(self.snapshot, size.width, size.height)]
        if self.own_height:
            self._grow(len(rows), (size.width, self.compact))
        self.show([dimmed(row) for row in rows] if self.stale else rows)
        title = self.title(self.snapshot)
        if title != self._title:
            self._title = title
            self.border_title = Content(title)  # a plain text would be read as markup

    def _grow(self, rows: int, laid_out: tuple[int, bool]) -> None:
        self._fewer = self._fewer + 1 if rows < self._most else 0
        if rows > self._most or self._fewer > SHRINK_DRAWS or laid_out != self._laid_out:
            self._most, self._fewer, self._laid_out = rows, 0, laid_out
            self.styles.height = rows  # without the frame: box-sizing is content-box
