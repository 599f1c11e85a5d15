"""Whether what stands on the screen can be read: the contrast of each piece of text with what is behind it."""

from __future__ import annotations

from typing import Any

from rich.color_triplet import ColorTriplet
from textual.pilot import Pilot

LEAST = 1.5
"""Contrast ratio as WCAG 2 defines it. What a dialog dims behind itself has 1.8; equal colours have 1."""


def unreadable(pilot: Pilot[Any]) -> list[str]:
    """The words whose colour is nearly that of their background, each with both."""
    found = []
    for strip in pilot.app.screen._compositor.render_strips():
        for text, style, _ in strip:
            if style is None or style.color is None or style.bgcolor is None or not any(c.isalnum() for c in text):
                continue
            front, back = style.color.get_truecolor(), style.bgcolor.get_truecolor()
            if style.reverse:
                front, back = back, front
            if contrast(front, back) < LEAST:
                found.append(f"{text!r}: {front.hex} on {back.hex}")
    return found


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    """1 where they are equal, 21 of white and black."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: ColorTriplet) -> float:
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
