"""A few lines of text made of phrases: wrapped between the phrases, drawn again only when they change."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.content import Content
from textual.widgets import Static

GAP = "  "


def wrap_phrases(phrases: Sequence[Content], width: int) -> Content:
    """The phrases on as few lines as ``width`` allows. Breaks a phrase only if it alone is too long."""
    lines: list[Content] = []
    for phrase in phrases:
        if lines and lines[-1].cell_length + len(GAP) + phrase.cell_length <= width:
            lines[-1] = lines[-1] + GAP + phrase
        else:
            fits = phrase.cell_length <= width and not lines
            parts = [phrase] if fits else phrase.wrap(max(10, width - len(GAP)))
            lines += [Content(GAP) + part if lines or index else part for index, part in enumerate(parts)]
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
