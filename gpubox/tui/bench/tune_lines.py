"""A tune that is under way: how far it is, the best so far, and its candidates with their intervals on one scale. Pure.

When it has ended, its report says it all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.bench.compare.words import about_time
from gpubox.bench.report.formatting import format_change, item_words
from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    cell_width,
    gauge,
    join_lines,
    labelled_line,
    merge_neighbours,
    sanitize_to_width,
    styled_line,
    truncate_line,
    wrap_parts,
)

if TYPE_CHECKING:
    from gpubox.bench.kinds.tune.progress import TuneCandidate, TuneProgress

GOALS: Mapping[str, str] = {
    "tg": "fastest flags for writing", "pp": "fastest flags for reading", "agent": "most turns of agents",
}  # fmt: skip
PHASES: Mapping[str, str] = {
    "searching": "one start of those that promise most, then the better half again",
    "comparing": "the finalists and the profile's own flags, on fresh starts",
    "finished": "",
}
STATES: Mapping[str, tuple[str, str]] = {
    "best": ("★", "bold $success"),
    "finalist": ("◆", "$primary"),
    "measuring": ("▶", "$accent"),
    "waiting": ("·", ""),
    "out": ("✗", QUIET),
}
"""State of a candidate -> its mark and its style."""
REFERENCE = ("=", "$secondary")
"""The same for the profile's own flags once they cannot win: all others are compared with them."""
OWN_NAME = "own flags"
GAUGE_CELLS, LABEL_CELLS, STARTS_CELLS, REASON_CELLS = 60, 10, 7, 28
MIN_BAR_CELLS, MAX_BAR_CELLS = 14, 48
WIDE = 100
"""From this width on there is room for a word or a reason behind each row."""
MAX_REASONS = 6


def tune_lines(tune: TuneProgress, label: str, now: StyledLine, width: int) -> list[StyledLine]:
    """``label``: the profile; ``now``: the item and the speed of the server."""
    left = f"at most {about_time(tune.seconds_left)} left" if tune.seconds_left is not None else "no estimate yet"
    starts = styled_line((starts_words(tune), "bold"))
    beside = cell_width(starts) + len(left) + 5
    share = tune.starts_done / tune.starts_limit if tune.starts_limit else 0.0
    done = gauge(share, max(8, min(GAUGE_CELLS, width - beside)), "$primary")
    goal = (f"   {GOALS[tune.goal]}, {tune.unit}", QUIET)
    title = styled_line(("tune  ", "$secondary"), (sanitize_line(label), "bold"), goal)
    return [
        truncate_line(title, width),
        *wrap_parts([join_lines([done, starts], "  "), styled_line(left)], width),
        *_labelled("best", best_so_far(tune), width),
        *_labelled("now", [now, styled_line((PHASES[tune.phase], QUIET))], width),
        (),
        *candidate_lines(tune, width),
        *_counts(tune, width),
    ]


def starts_words(tune: TuneProgress) -> str:
    """How far a tune is."""
    return f"{tune.starts_done} of at most {tune.starts_limit} starts"


def tune_item_words(item: str) -> str:
    """``015/threads=8/short/cold/d0/w1`` as ``threads=8, short prompt, warm-up``."""
    cell, slash, last = item_words(re.sub(r"^\d+/", "", item)).rpartition("/")
    return f"{cell}, {last}" if slash else last


def best_so_far(tune: TuneProgress) -> list[StyledLine]:
    """The fastest candidate that was measured: its rate, how it compares with the profile's own flags, its name."""
    measured = [candidate for candidate in tune.candidates if candidate.rate is not None]
    usable = [c for c in measured if c.state == "best"] or [c for c in measured if c.state != "out"]
    if not usable:
        return []
    best = max(usable, key=lambda candidate: candidate.rate or 0.0)
    own = next((candidate.rate for candidate in measured if candidate.own), None)
    parts = [styled_line((f"{units.rate(best.rate)} {tune.unit}", "bold"))]
    if own and best.rate and not best.own:
        style = "$success" if best.rate > own else QUIET
        against = f" against the profile's flags ({units.rate(own)})"
        parts.append(styled_line((format_change(best.rate / own), style), against))
    return [*parts, styled_line(OWN_NAME if best.own else sanitize_line(best.name))]


def candidate_lines(tune: TuneProgress, width: int) -> list[StyledLine]:
    """The profile's own flags, those that were measured, and the next ones: a row each, in the order of the tune."""
    hidden = sum(not c.own and not c.starts and c.state == "waiting" for c in tune.candidates)
    shown = [c for c in tune.candidates if c.own or c.starts or c.state == "measuring"]
    if not shown:
        return []
    rate_cells, reason_cells = max(7, len(tune.unit) + 1), REASON_CELLS if width >= WIDE else 0
    room = width - 2 - rate_cells - 2 - STARTS_CELLS - reason_cells
    names = min(max(len(OWN_NAME), *(len(candidate.name) for candidate in shown)), max(12, room - MIN_BAR_CELLS))
    bar_cells = max(1, min(MAX_BAR_CELLS, room - names))
    racing = [candidate for candidate in shown if candidate.own or (candidate.starts and candidate.state != "out")]
    ends = [end for c in racing for end in (c.rate, c.low, c.high) if end is not None]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    head = f"  {'':<{names}}{tune.unit:>{rate_cells}}  {'':<{bar_cells}}{'starts':>{STARTS_CELLS}}"
    rows: list[StyledLine] = [truncate_line(((head, QUIET),), width)]
    for candidate in shown:
        mark, style = REFERENCE if candidate.own and candidate.state == "out" else STATES[candidate.state]
        name = OWN_NAME if candidate.own else sanitize_to_width(candidate.name, names)
        word = "measured" if candidate.state == "waiting" and candidate.starts else candidate.state
        reason = sanitize_to_width(candidate.reason or word, reason_cells - 2) if reason_cells else ""
        row = styled_line(
            (f"{mark} ", style),
            (f"{name:<{names}}", "bold" if candidate.own else ""),
            _rate(candidate, rate_cells),
            *interval_bar(candidate, low, high, bar_cells),
            (f"{candidate.starts or '':>{STARTS_CELLS}}", QUIET),
            (f"  {reason}" if reason else "", style),
        )
        rows.append(truncate_line(row, width))
    return [*rows, styled_line((f"  {hidden} more; not all will start", QUIET))] if hidden else rows


def interval_bar(candidate: TuneCandidate, low: float, high: float, cells: int) -> StyledLine:
    """The rate as a point in its interval, on the scale from ``low`` to ``high``.

    What lies outside is drawn at the edge: a slow candidate must not squeeze the others.
    """
    if candidate.rate is None:
        return ((" " * cells, ""),)

    def cell(value: float) -> int:
        return max(0, min(cells - 1, round((value - low) / ((high - low) or 1.0) * (cells - 1))))

    style = QUIET if candidate.state == "out" else STATES[candidate.state][1]
    drawn: list[tuple[str, str]] = [(" ", "")] * cells
    first, last = (cell(candidate.rate if end is None else end) for end in (candidate.low, candidate.high))
    drawn[first : last + 1] = [("─", style)] * (last + 1 - first)
    drawn[cell(candidate.rate)] = ("●", style)
    return merge_neighbours(drawn)


def _rate(candidate: TuneCandidate, cells: int) -> tuple[str, str]:
    return f"{units.rate(candidate.rate):>{cells}}  ", "bold"


def _counts(tune: TuneProgress, width: int) -> list[StyledLine]:
    """Why candidates are out, and which sets of flags were none, each reason with its number."""
    out = Counter(c.reason or "out" for c in tune.candidates if c.state == "out" and not c.own).most_common()
    rows: list[StyledLine] = []
    for label, counts in (("left out", out), ("not tried", tune.pruned)):
        parts = [
            styled_line((f"{number} × ", "bold"), (sanitize_line(reason), QUIET))
            for reason, number in counts[:MAX_REASONS]
        ]
        rows += _labelled(label, parts, width)
    return [(), *rows] if rows else []


def _labelled(label: str, parts: Sequence[StyledLine], width: int) -> list[StyledLine]:
    """The parts behind a label, on as few lines as possible; a dash behind ``best`` if there are none."""
    lines = wrap_parts(parts, width - LABEL_CELLS) or ([()] if label == "best" else [])
    return [labelled_line("" if at else label, line, LABEL_CELLS) for at, line in enumerate(lines)]
