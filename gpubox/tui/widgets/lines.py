"""The widgets that draw styled lines: the base, one line, phrases, lines that scroll, and the lines of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from gpubox.sanitize import sanitize_line
from gpubox.tui.actions import Scope, bindings
from gpubox.tui.styled_lines import StyledLine, dimmed, figure_of, plain_style, truncate_line

if TYPE_CHECKING:
    from textual.selection import Selection
    from textual.widget import Widget as _Base

    from gpubox.telemetry.snapshot import Snapshot
    from gpubox.tui.remembered import LastSeen
else:
    _Base = object  # Textual inherits styles and bindings along the first base that is a DOMNode: not this one

PHRASE_GAP = "  "
SHRINK_DRAWS = 20
"""Draws with fewer lines before a pane gives up rows, so that one odd reading does not move the other panes."""


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
                visual += self.app.stylesheet.parse_style(plain_style(style_text))
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


class ScrollKeys(_Base):
    """Base class before the scrolling widget; its BINDINGS must have ``bindings(Scope.LISTS)``."""

    def action_down(self) -> None:
        self.scroll_down(animate=False, immediate=True)  # later, keys pressed in a row would be lost

    def action_up(self) -> None:
        self.scroll_up(animate=False, immediate=True)

    def action_top(self) -> None:
        self.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.scroll_end(animate=False)


class ScrollableLines(ScrollKeys, StyledLines, ScrollView, can_focus=True):
    """Shows the lines that ``make`` returns for the width of the widget."""

    DEFAULT_CSS = """
    ScrollableLines { height: auto; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Scope.LISTS)]

    def __init__(self, make: Callable[[int], list[StyledLine]] = lambda width: []) -> None:
        super().__init__()
        self._make = make
        self._columns = 0

    def on_resize(self, event: events.Resize) -> None:
        self.remake()

    def make_again(self, make: Callable[[int], list[StyledLine]] | None = None) -> None:
        """Makes the lines although the width is the same; with another ``make``, if it is given."""
        self._make, self._columns = make or self._make, 0
        self.remake()

    def remake(self) -> None:
        """Makes the lines if the width changed."""
        width = self.scrollable_content_region.width
        if width > 0 and width != self._columns:
            self._columns = width
            self.drawn = self._make(width)
            self.virtual_size = Size(width, len(self.drawn))
            if self.show_vertical_scrollbar:
                # The next layout sets this too, but sometimes too late (seen on a fast machine).
                self.vertical_scrollbar.window_virtual_size = len(self.drawn)
            self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._make(width - 1))  # leaves a column for the scroll bar, shown or not


class FittedLines(ScrollableLines, can_focus=False):
    """Lines that are made for the width of the widget; it is as high as they are."""

    DEFAULT_CSS = "FittedLines { overflow-y: hidden; }"

    def put(self, make: Callable[[int], list[StyledLine]]) -> None:
        """Shows what ``make`` returns now."""
        if make(self.scrollable_content_region.width or 80) != self.drawn:
            self.make_again(make)
            self.refresh(layout=True)


class TitledPane(ScrollableLines):
    """Lines in a frame under a title, such as a report or the details of a row."""

    DEFAULT_CSS = """
    TitledPane {
        height: 1fr; width: 1fr; overflow-y: scroll; border: round $line; padding: 0 1; background: $background;
        border-title-color: $secondary; border-title-style: bold;
        &:focus { border: round $line-focus; border-title-color: $foreground; }
    }
    """

    shown = ""
    """The title."""

    def put(self, title: str, make: Callable[[int], list[StyledLine]]) -> None:
        """Replaces the lines. The scroll position and the selection stay if ``title`` is the same."""
        if title != self.shown:
            self.scroll_to(y=0, animate=False, immediate=True)
            self.clear_selection()
        self.shown = title
        self.border_title = Content(sanitize_line(title))
        self.make_again(make)

    @property
    def text(self) -> str:
        """The whole content as plain text."""
        return "\n".join("".join(text for text, _ in row).rstrip() for row in self.drawn)


class SnapshotPane(StyledLines, can_focus=True):
    """Draws ``lines()``. An equal snapshot costs a comparison; a changed number repaints only its row.

    The arrows go over its figures, Enter and the mouse ask for what they mean.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(Scope.LISTS),
        Binding("right,down", "down", show=False),
        Binding("left,up", "up", show=False),
        Binding("enter", "open", show=False),
    ]

    class FigureOpened(Message):
        """Enter was pressed on a figure, or it was double-clicked."""

        def __init__(self, figure: str) -> None:
            super().__init__()
            self.figure = figure

    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    stale: reactive[bool] = reactive(False, repaint=False)
    """Old readings stay, drawn dim."""
    compact: reactive[bool] = reactive(False, repaint=False)
    """Whether there is room for only a line or two."""
    last: LastSeen | None = None
    """What the screen showed last, drawn until the first snapshot comes."""
    own_height = True
    """Whether the number of lines sets the pane's height; else the styles do."""

    def __init__(self) -> None:
        super().__init__()
        self._title = ""
        self._rows, self._draws_with_fewer, self._layout = 0, 0, (0, False)
        self.figure = ""
        """The chosen figure."""
        self.hint: Callable[[str], Content] = Content
        """What stands beside the mouse on a figure."""
        self._hovered = ""

    def lines(self, snapshot: Snapshot, width: int, height: int) -> list[StyledLine]:
        """The content, one entry per row."""
        raise NotImplementedError

    def last_lines(self, last: LastSeen, width: int) -> list[StyledLine]:
        """What of ``last`` belongs here, with its age; it is drawn dim."""
        return []

    def title(self, snapshot: Snapshot) -> str:
        """The title in the frame."""
        raise NotImplementedError

    def draw(self) -> None:
        """Brings the rows up to date with the snapshot."""
        size = self.content_size
        if not self.is_attached or size.width <= 0:
            self.drawn = []  # a hidden pane must not show old numbers when it comes back
            return
        if self.snapshot is None:
            old = self.last_lines(self.last, size.width) if self.last else []
            self.show([dimmed(truncate_line(line, size.width)) for line in old])
            return
        lines = [truncate_line(line, size.width) for line in self.lines(self.snapshot, size.width, size.height)]
        if self.own_height:
            self._set_height(len(lines), (size.width, self.compact))
        lines = [dimmed(line) for line in lines] if self.stale else lines
        if self.has_focus and (names := self._figures(lines)):
            self.figure = self.figure if self.figure in names else names[0]
            lines = [self._with_cursor(line) for line in lines]
        self.show(lines)
        title = self.title(self.snapshot)
        if title != self._title:
            self._title = title
            self.border_title = Content(title)  # a str would be parsed as markup

    watch_snapshot = watch_stale = watch_compact = on_resize = on_show = draw

    # -- the figures ----------------------------------------------------------------------------------

    def _figures(self, lines: list[StyledLine]) -> list[str]:
        """The figures in their order on the screen."""
        return [name for name in dict.fromkeys(figure_of(style) for line in lines for _, style in line) if name]

    def _with_cursor(self, line: StyledLine) -> StyledLine:
        return tuple((t, f"{style} on $cursor") if figure_of(style) == self.figure else (t, style) for t, style in line)

    def figure_at(self, x: int, y: int) -> str:
        """The figure in a cell of the content; empty: none."""
        for text, style in self.row(y):
            x -= cell_len(text)
            if x < 0:
                return figure_of(style)
        return ""

    def choose(self, name: str) -> None:
        """Moves the cursor to a figure."""
        if name:
            self.figure = name
            self.draw()

    def _move(self, steps: int) -> None:
        if names := self._figures(self.drawn):
            at = names.index(self.figure) if self.figure in names else 0
            self.choose(names[max(0, min(len(names) - 1, at + steps))])

    def action_down(self) -> None:
        self._move(1)

    def action_up(self) -> None:
        self._move(-1)

    def action_top(self) -> None:
        self._move(-1000)

    def action_bottom(self) -> None:
        self._move(1000)

    def action_open(self) -> None:
        if self.figure:
            self.post_message(self.FigureOpened(self.figure))

    def on_click(self, event: events.Click) -> None:
        if (at := event.get_content_offset(self)) is not None:
            self.choose(self.figure_at(*at))
            if event.chain == 2:
                self.action_open()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        at = event.get_content_offset(self)
        hovered = self.figure_at(*at) if at is not None else ""
        if hovered != self._hovered:
            self._hovered = hovered
            self.tooltip = self.hint(hovered) if hovered else None

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self.draw()  # the cursor is drawn only with the focus

    def _set_height(self, rows: int, layout: tuple[int, bool]) -> None:
        self._draws_with_fewer = self._draws_with_fewer + 1 if rows < self._rows else 0
        if rows > self._rows or self._draws_with_fewer > SHRINK_DRAWS or layout != self._layout:
            self._rows, self._draws_with_fewer, self._layout = rows, 0, layout
            self.styles.height = rows  # without the frame: box-sizing is content-box


def wrap_phrases(phrases: Sequence[Content], width: int) -> Content:
    """The phrases on as few lines as ``width`` allows. Breaks a phrase only if it alone is too long."""
    lines: list[Content] = []
    for phrase in phrases:
        if lines and lines[-1].cell_length + len(PHRASE_GAP) + phrase.cell_length <= width:
            lines[-1] = lines[-1] + PHRASE_GAP + phrase
        else:
            fits = phrase.cell_length <= width and not lines
            parts = [phrase] if fits else phrase.wrap(max(10, width - len(PHRASE_GAP)))
            lines += [Content(PHRASE_GAP) + part if lines or index else part for index, part in enumerate(parts)]
    return Content("\n").join(lines)


class StatusLines(Static):
    """Shows phrases; hidden if there are none."""

    DEFAULT_CSS = "StatusLines { height: auto; }"

    def __init__(self, name: str) -> None:
        super().__init__(id=name, markup=False)
        self._phrases: tuple[Content, ...] = ()
        self._drawn: object = None

    def show(self, phrases: Sequence[Content]) -> None:
        """Shows ``phrases`` instead of the present ones."""
        self._phrases = tuple(phrases)
        self.display = bool(self._phrases)
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width or self.app.size.width - 2
        # With the spans: Content compares only its text, and a colour may change without it.
        drawn = [(phrase.plain, phrase.spans) for phrase in self._phrases], width
        if drawn != self._drawn:
            self._drawn = drawn
            self.update(wrap_phrases(self._phrases, width))
