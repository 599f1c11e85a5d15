"""That a profile is slower since some day: one calm line, and the figures behind it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.styled_lines import QUIET, StyledLine, fit_by_priority, sanitize_to_width, styled_line
from gpubox.views.history import NOTHING_CHANGED, slowdown_figures

if TYPE_CHECKING:
    from gpubox.telemetry.history.values import Slowdown

CHANGED_CELLS = 60
TOGETHER_SECONDS = 2 * 86_400.0
"""tg and pp that fell within this time fell together."""
NOT_SLOWER = "No profile is slower than before, as far as the history goes back."


def slower_line(slowdowns: Sequence[Slowdown], profile: str, width: int) -> StyledLine:
    """The newest slowdown of ``profile``, tg and pp together if both fell at that time; empty if there is none."""
    own = [slowdown for slowdown in slowdowns if slowdown.profile == profile]
    if not own:
        return ()
    newest = max(slowdown.since for slowdown in own)
    together = sorted((s for s in own if newest - s.since <= TOGETHER_SECONDS), key=lambda s: s.rate != "tg")
    first = together[0]
    rates = ", ".join(f"{slowdown.rate} {-slowdown.change:.0%}" for slowdown in together)
    changed = sanitize_to_width(first.changed[0], CHANGED_CELLS) if first.changed else ""
    parts: list[tuple[int, StyledLine]] = [
        (10, styled_line(("↓ ", "$warning"), f"{rates} slower")),
        (9, styled_line(("since " if first.later_starts > 1 else "since this start, ", QUIET), _moment(first.since))),
        (6, styled_line((f"{units.rate(first.before)} → {units.rate(first.after)} tok/s", QUIET))),
        (7, styled_line((changed, QUIET))),
        (8, styled_line(("S why", QUIET))),
    ]
    return fit_by_priority(parts, width)


def slower_fields(slowdowns: Sequence[Slowdown]) -> list[tuple[str, str]]:
    """Every figure of all slowdowns, the newest first: (name, value)."""
    fields: list[tuple[str, str]] = []
    for slowdown in sorted(slowdowns, key=lambda slowdown: slowdown.since, reverse=True):
        changed = [sanitize_to_width(text, CHANGED_CELLS) for text in slowdown.changed] or [NOTHING_CHANGED]
        fields += [
            *([("", "")] if fields else []),
            ("profile", sanitize_to_width(slowdown.profile, CHANGED_CELLS)),
            ("slower", slowdown_figures(slowdown)),
            ("since", _moment(slowdown.since)),
            *(("changed then" if at == 0 else "", text) for at, text in enumerate(changed)),
        ]
    return fields


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%a %d %b %H:%M}"
