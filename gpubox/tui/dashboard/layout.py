"""Which panes the dashboard shows, by the width of the terminal and the state of the server. Pure.

In code, not in styles: Textual evaluates every rule of a stylesheet before the first paint.
"""

from __future__ import annotations

ZOOMABLE = {
    "profiles": ("profiles",),
    "memory": ("vram", "offload"),
    "requests": ("throughput", "requests"),
    "log": ("log",),
    "detail": ("detail",),
}
"""What can take the whole screen, and its panes."""
LEFT, MAIN, SIDE = ("vram", "offload", "profiles"), ("throughput", "requests"), ("detail", "log")
"""The panes of each part of the screen."""


def visible_panes(width: str, state: str, zoomed: str, tiny: bool = False) -> frozenset[str]:
    """The panes to show.

    ``width`` is narrow, wide, roomy or huge, ``state`` up, down or loading, ``zoomed`` a key of ZOOMABLE or empty;
    ``tiny`` means only a few rows. If nothing runs, the owner chooses a profile: profiles, details and the last log.
    """
    if zoomed:
        return frozenset(ZOOMABLE[zoomed])
    if tiny:
        return frozenset({"profiles" if state == "down" else "throughput"})
    panes = {"vram"}
    if width != "narrow" or state == "down":
        panes.add("profiles")
    if state == "down":
        return frozenset(panes | {"detail", "log"})
    panes |= {"offload", "throughput"}
    if state == "loading":
        return frozenset(panes | {"log"})
    panes.add("requests")
    if width in ("roomy", "huge"):
        panes.add("log")
    if width == "huge":
        panes.add("detail")
    return frozenset(panes)
