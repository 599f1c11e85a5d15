"""Short texts for narrow places, and the filter that keeps control characters from the terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual.filter import LineFilter

from gpubox import units
from gpubox.sanitize import blank_controls

if TYPE_CHECKING:
    from textual.color import Color


def shorten(text: str, width: int) -> str:
    """``text`` cut to ``width`` characters, at a word boundary if there is one, with an ellipsis."""
    if len(text) <= width:
        return text
    cut = text[: max(0, width - 1)]
    space = cut.rfind(" ")
    return (cut[:space] if space > width // 2 else cut).rstrip(" ,:;.") + "…"


def part_of_total(part: float | None, total: float | None, text: Callable[[float | None], str] = units.memory) -> str:
    """``0.6 of 1.9 GiB``: the unit is written once if both have the same. ``text`` formats one number."""
    part_text, total_text = text(part), text(total)
    number, _, unit = part_text.partition(" ")
    return f"{number if unit and total_text.endswith(unit) else part_text} of {total_text}"


def block_bar(fraction: float, width: int) -> str:
    """A bar of ``width`` cells, ``fraction`` (0 to 1) of them filled."""
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return "▓" * filled + "░" * (width - filled)


def time_or_date(iso: str) -> str:
    """A moment as lists show it: the time today, else the date."""
    try:
        at = datetime.fromisoformat(iso).astimezone()
    except ValueError:
        return ""
    today = datetime.now().astimezone().date()
    if at.date() == today:
        return f"{at:%H:%M}"
    return f"{at:%d %b}" if at.year == today.year else f"{at:%Y-%m}"


class SanitizeFilter(LineFilter):
    """Blanks control characters in every drawn line; the line keeps its width.

    Views sanitize their own text, so that it is laid out as it is drawn. This is for a view that forgets to.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [Segment(blank_controls(segment.text, cell_len), segment.style, segment.control) for segment in segments]
