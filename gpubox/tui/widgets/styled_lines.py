"""The base of widgets that draw styled lines: repaints only changed lines; the text can be selected with the mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.selection import Selection

    from gpubox.tui.styled_lines import StyledLine


class StyledLines(Widget):
    """Draws the lines in ``drawn``, or those that a subclass returns from ``row``."""

    MARGIN: ClassVar[int] = 0
    """Cells at the left of each strip that are not part of the row."""

    _painting = False
    _painted_selection: Selection | None = None

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[StyledLine] = []
        self.rendered = 0
        """How many rows were rendered so far, for tests."""
        self._styles: dict[str, Style] = {}

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    def style_of(self, style_text: str) -> Style:
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

    def show(self, lines: list[StyledLine]) -> None:
        """Draws ``lines`` instead; repaints those that differ."""
        old, self.drawn = self.drawn, lines
        width = self.content_size.width
        for y in range(max(len(old), len(lines))):
            if (old[y] if y < len(old) else ()) != (lines[y] if y < len(lines) else ()):
                self.refresh(Region(0, y, width, 1))

    def row_count(self) -> int:
        """How many rows the content has."""
        return len(self.drawn)

    def row(self, y: int) -> StyledLine:
        """Row ``y`` of the content; empty below its end."""
        return self.drawn[y] if y < len(self.drawn) else ()

    def row_strip(self, y: int) -> Strip:
        """Row ``y`` of the content behind the margin, as wide as the widget."""
        return self.strip(self.row(y), self.size.width)

    # -- painting and selection -----------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        self._painting, self._painted_selection = True, self.text_selection  # looked up once, not for each row
        try:
            return super().render_lines(crop)
        finally:
            self._painting = False

    def render_line(self, y: int) -> Strip:
        self.rendered += 1
        y += self.scroll_offset.y
        strip = self.row_strip(y)
        if not self._painting:  # Textual looks for the character under the mouse, which needs offsets
            return strip.apply_offsets(-self.MARGIN, y)
        selection = self._painted_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            length = sum(len(text) for text, _ in self.row(y))
            end = length if span[1] < 0 else min(span[1], length)
            strip = self._highlight(strip, self.MARGIN + max(0, span[0]), self.MARGIN + end)
        return strip

    def _highlight(self, strip: Strip, start: int, end: int) -> Strip:
        """``strip`` with its characters from ``start`` to ``end`` shown as selected."""
        background = self.screen.get_component_rich_style("screen--selection").bgcolor
        selected = Style(color=self.rich_style.color, bgcolor=background)  # the text's own colour may be unreadable
        segments: list[Segment] = []
        at = 0
        for text, style, _ in strip:
            first, last = (max(0, min(len(text), edge - at)) for edge in (start, max(start, end)))
            marked = style + selected if style else selected
            parts = ((text[:first], style), (text[first:last], marked), (text[last:], style))
            segments += [Segment(part, part_style) for part, part_style in parts if part]
            at += len(text)
        return Strip(segments, strip.cell_length)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, a line for each row. ``screen.copy_text`` (ctrl+c) copies it."""
        rows = []
        for y in range(self.row_count()):
            if (span := selection.get_span(y)) is not None:
                text = "".join(text for text, _ in self.row(y))
                rows.append(text[max(0, span[0]) : None if span[1] < 0 else span[1]].rstrip())
        return ("\n".join(rows), "\n") if rows else None

    def clear_selection(self) -> None:
        """Ends a selection in this widget: it is by row, and other text would be in it now."""
        if self.text_selection is not None:
            self.screen.clear_selection()

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()


class SingleLine(StyledLines):
    """One line."""

    DEFAULT_CSS = "SingleLine { height: 1; padding: 0 1; }"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.id = name
