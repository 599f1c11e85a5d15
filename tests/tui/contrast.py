"""Finds text on the screen whose colour is too close to its background."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from rich.color_triplet import ColorTriplet
from textual.strip import Strip

MIN_CONTRAST = 1.5
"""Text that a dialog dims has 1.8, which is intended."""


def unreadable(screen: Iterable[Strip]) -> list[str]:
    """Texts without enough contrast, each with both colours."""
    problems = []
    for strip in screen:
        for text, style, _ in strip:
            if style is None or style.color is None or style.bgcolor is None or not any(c.isalnum() for c in text):
                continue
            front, back = style.color.get_truecolor(), style.bgcolor.get_truecolor()
            if style.reverse:
                front, back = back, front
            if contrast(front, back) < MIN_CONTRAST:
                problems.append(f"{text!r}: {front.hex} on {back.hex}")
    return problems


@cache
def contrast(first: ColorTriplet, second: ColorTriplet) -> float:
    """The WCAG 2 contrast ratio: 1 for equal colours, 21 for white and black."""
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: ColorTriplet) -> float:
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
