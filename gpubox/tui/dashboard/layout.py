"""Which panes the dashboard shows, by the width of the terminal and by what the server does. Pure.

In code, not in styles: every rule of a stylesheet is paid for before the first paint.
"""

from __future__ import annotations

ALONE = {
    "profiles": ("profiles",),
    "memory": ("vram", "offload"),
    "requests": ("throughput", "requests"),
    "log": ("log",),
    "detail": ("detail",),
}
"""What can have the screen for itself, and the panes that it takes."""
LEFT, MAIN, SIDE = ("vram", "offload", "profiles"), ("throughput", "requests"), ("detail", "log")
"""The panes of each part of the screen."""


def shown(width: str, state: str, alone: str, tiny: bool = False) -> frozenset[str]:
    """The panes to show. ``width``: narrow | wide | roomy | huge; ``state``: up | down | loading; ``tiny``: a few rows.

    Nothing runs: one chooses, so profiles, details and the log of what ran. It loads: its log. It is up: numbers.
    """
    if alone:
        return frozenset(ALONE[alone])
    if tiny:
        return frozenset({"profiles" if state == "down" else "throughput"})
    narrow = width == "narrow"
    found = {"vram"}
    if not narrow or state == "down":
        found.add("profiles")
    if state == "down":
        return frozenset(found | {"detail", "log"})
    found |= {"offload", "throughput"}
    if state == "loading":
        return frozenset(found | {"log"})
    found.add("requests")
    if width in ("roomy", "huge"):
        found.add("log")
    if width == "huge":
        found.add("detail")
    return frozenset(found)
