"""The one way to the screen: every line of every widget passes this filter, whatever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual.filter import LineFilter

from gpubox.sanitize import blank_controls

if TYPE_CHECKING:
    from textual.color import Color


class SanitizeFilter(LineFilter):
    """Takes out of a drawn line what a terminal would obey. The line keeps its width.

    Views clean what they show themselves (``plain``), so that it is laid out as it is seen; this is for the one that
    forgets.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [Segment(blank_controls(segment.text, cell_len), segment.style, segment.control) for segment in segments]
