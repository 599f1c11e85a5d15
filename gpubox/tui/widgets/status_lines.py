"""A few lines of text that belong together in pieces: broken between the pieces, drawn again only when they change."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.content import Content
from textual.widgets import Static

GAP = "  "


def pack(pieces: Sequence[Content], width: int, indent: str = GAP) -> Content:
    """``pieces`` on as few lines as ``width`` allows; a piece is broken only where it alone is too long."""
    lines: list[Content] = []
    for piece in pieces:
        if lines and lines[-1].cell_length + len(GAP) + piece.cell_length <= width:
            lines[-1] = lines[-1] + GAP + piece
        else:
            room = max(10, width - len(indent))
            parts = [piece] if piece.cell_length <= width and not lines else piece.wrap(room)
            lines += [Content(indent) + part if lines or at else part for at, part in enumerate(parts)]
    return Content("\n").join(lines)


class StatusLines(Static):
    """Shows pieces; invisible when there are none."""

    DEFAULT_CSS = "StatusLines { height: auto; }"

    def __init__(self, name: str) -> None:
        super().__init__(id=name, markup=False)
        self._pieces: tuple[Content, ...] = ()
        self._drawn: tuple[tuple[Content, ...], int] | None = None

    def show(self, pieces: Sequence[Content]) -> None:
        """Shows ``pieces`` instead of what is there."""
        self._pieces = tuple(pieces)
        self.display = bool(self._pieces)
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width or self.app.size.width - 2
        if (drawn := (self._pieces, width)) != self._drawn or _restyled(drawn, self._drawn):
            self._drawn = drawn
            self.update(pack(self._pieces, width))


def _restyled(new: tuple[tuple[Content, ...], int], old: tuple[tuple[Content, ...], int] | None) -> bool:
    """Whether a colour changed where the text did not: Content compares its text alone."""
    return old is not None and any(a.spans != b.spans for a, b in zip(new[0], old[0], strict=True))
