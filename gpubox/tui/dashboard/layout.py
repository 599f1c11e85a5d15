"""The panes of the dashboard in one table, and which of them are shown. Pure.

In code, not in styles: Textual evaluates every rule of a stylesheet before the first paint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WIDTHS = ("narrow", "wide", "roomy", "huge")


@dataclass(frozen=True, slots=True)
class Pane:
    """One pane: a widget in a file of this package."""

    name: str
    """Also the name of its file."""
    widget: str
    title: str
    place: Literal["left", "main", "side"]
    up: str = ""
    """The least width at which it is shown while a server is up; empty: only alone on the screen."""
    loading: str = ""
    down: str = ""
    zoom: str = ""
    """The action ``zoom_...`` that shows it alone, with the others of the same zoom; empty: one of its own."""
    key: str = ""
    """The letter, in its menu, of a zoom of its own."""

    @property
    def zoomed_by(self) -> str:
        return self.zoom or self.name


PANES = (
    Pane("vram", "VramPane", "VRAM", "left", up="narrow", loading="narrow", down="narrow", zoom="memory"),
    Pane("offload", "OffloadPane", "CPU offload", "left", up="narrow", loading="narrow", zoom="memory"),
    Pane("profiles", "ProfilePane", "Profiles", "left", up="wide", loading="wide", down="narrow", zoom="profiles"),
    Pane("throughput", "ThroughputPane", "Throughput", "main", up="narrow", loading="narrow", zoom="requests"),
    Pane("requests", "RequestsPane", "Requests", "main", up="narrow", zoom="requests"),
    Pane("detail", "DetailPane", "Profile", "side", up="huge", down="narrow", zoom="detail"),
    Pane("log", "LogPane", "Log", "side", up="roomy", loading="narrow", down="narrow", zoom="log"),
)
"""In their order on the screen. If nothing runs, the owner chooses a profile: profiles, details and the last log."""


def visible_panes(width: str, state: str, zoomed: str, tiny: bool = False) -> frozenset[str]:
    """The panes to show.

    ``width`` is one of WIDTHS, ``state`` up, down or loading, ``zoomed`` a zoom or empty; ``tiny`` means only a few
    rows.
    """
    if zoomed:
        return frozenset(pane.name for pane in PANES if pane.zoomed_by == zoomed)
    if tiny:
        return frozenset({"profiles" if state == "down" else "throughput"})
    widths = WIDTHS[: WIDTHS.index(width) + 1]
    return frozenset(pane.name for pane in PANES if getattr(pane, state) in widths)
