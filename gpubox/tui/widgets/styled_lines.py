"""The base of widgets that draw styled lines, and repaint only the lines that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from gpubox.tui.styled_lines import StyledLine


class StyledLines(Widget):
    """Draws the lines in ``drawn``."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[StyledLine] = []
        self.rendered = 0
        """How many rows were rendered so far, for tests."""
        self._styles: dict[str, RichStyle] = {}

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    def style_of(self, style_text: str) -> RichStyle:
        """A style of the theme, on top of the widget's own."""
        style = self._styles.get(style_text)
        if style is None:
            visual = self.visual_style
            if style_text:
                visual += self.app.stylesheet.parse_style(style_text)
            style = self._styles[style_text] = visual.rich_style
        return style

    def strip(self, line: StyledLine, width: int, base: str = "") -> Strip:
        """A line as Textual draws it; ``base`` is the style under all of it."""
        segments = [Segment(text, self.style_of(f"{base} {style}".strip())) for text, style in line]
        return Strip(segments).adjust_cell_length(width, self.style_of(base))

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        return self.strip(self.drawn[y] if y < len(self.drawn) else (), self.content_size.width)

    def show(self, lines: list[StyledLine]) -> None:
        """Draws ``lines`` instead; repaints those that differ."""
        old, self.drawn = self.drawn, lines
        width = self.content_size.width
        for y in range(max(len(old), len(lines))):
            if (old[y] if y < len(old) else ()) != (lines[y] if y < len(lines) else ()):
                self.refresh(Region(0, y, width, 1))
