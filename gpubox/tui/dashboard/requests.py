"""Finished requests as one line each, and one of them with all its fields. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.styled_lines import QUIET, StyledLine, cell_width, join_lines, pad_line, sanitize_to_width, styled_line

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Request

COLUMNS = (
    ("time", 8, 0), ("#", 2, 6), ("prompt", 13, 0), ("out", 5, 0), ("TTFT", 6, 3), ("pp", 5, 7), ("tg", 5, 1),
    ("draft", 5, 2), ("took", 6, 5), ("end", 9, 4),
)  # fmt: skip
"""Name, width, and how soon it gives way where the terminal is narrow (0: never)."""
RIGHT = {"out", "TTFT", "pp", "tg", "draft", "took"}
GAP = "  "
LEAST_END = 15
"""Cells of an end that says why a prompt was read again; worth more than pp."""
LEAST_WHY = 10
"""Cells below which the first word of why it was read again would be cut."""


def columns(width: int) -> tuple[tuple[str, int], ...]:
    """The columns that fit into ``width``."""
    kept = list(COLUMNS)
    while len(kept) > 4 and _needs(kept) > width:
        del kept[max(range(len(kept)), key=lambda i: kept[i][2])]
    return tuple((name, size) for name, size, _ in kept)


def _needs(kept: list[tuple[str, int, int]]) -> int:
    """The width that these columns want."""
    names = [name for name, _, _ in kept]
    return sum(size + len(_gap(name)) for name, size, _ in kept) + (LEAST_END - COLUMNS[-1][1]) * ("pp" in names)


def _gap(name: str) -> str:
    """What stands before a column: one cell where what is beside it cannot be taken for its own."""
    return "" if name == "time" else GAP if name in RIGHT - {"out"} else " "


def head(width: int) -> StyledLine:
    """The names of the columns."""
    return _in_a_row([(name, _cell((name, QUIET), name, size)) for name, size in columns(width)])


def _in_a_row(found: list[tuple[str, StyledLine]]) -> StyledLine:
    return styled_line(*(span for name, cell in found for span in ((_gap(name), ""), *cell)))


def row(request: Request, width: int) -> StyledLine:
    """One request; a prompt that was read again although a cache existed (``↻``) says why at the end."""
    shown = columns(width)
    values = {
        "time": (local_time(request.at), QUIET),
        "#": (str(request.slot), QUIET),
        "prompt": (_prompt(request), "$warning" if request.cache_miss else ""),
        "out": (units.tokens(request.generated_tokens), ""),
        "TTFT": (units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds), ""),
        "pp": (units.rate(request.pp_tokens_per_second), ""),
        "tg": (units.rate(request.tg_tokens_per_second), "$primary"),
        "draft": (_percent(request.draft_acceptance), ""),
        "took": (units.duration(request.duration_seconds), ""),
    }
    found = [(name, _cell(values[name], name, size)) for name, size in shown if name != "end"]
    if len(found) < len(shown):
        room = width - sum(size + len(_gap(name)) for name, size in shown if name != "end") - len(_gap("end"))
        found.append(("end", _end(request, room)))
    return _in_a_row(found)


def local_time(iso: str) -> str:
    """``13:02:11``, in the owner's time zone."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone():%H:%M:%S}"
    except ValueError:
        return units.UNKNOWN


def _cell(value: tuple[str, str], name: str, size: int) -> StyledLine:
    text, style = value
    return pad_line(styled_line((text.rjust(size) if name in RIGHT else text, style)), size)


def _prompt(request: Request) -> str:
    """``41.2k+1.8k``: reused and read; ``↻`` where the cache should have served and did not."""
    if request.prompt_tokens is None:
        return units.UNKNOWN
    cached = request.cached_tokens
    if cached is None:
        return units.tokens(request.prompt_tokens)
    again = "↻ " if request.cache_miss else ""
    return f"{again}{units.tokens(cached)}+{units.tokens(max(0, request.prompt_tokens - cached))}"


def _percent(share: float | None) -> str:
    return units.UNKNOWN if share is None else f"{share:.0%}"


def _end(request: Request, room: int) -> StyledLine:
    """Why it stopped; why it was read again says more than an ordinary stop, and stands behind any other end."""
    end = styled_line((sanitize_to_width(request.stop_reason or units.UNKNOWN, room), _end_style(request)))
    why = f"↻ {request.cache_miss}" if request.cache_miss else ""
    if why and request.stop_reason in (None, "stop"):
        return styled_line((sanitize_to_width(why, room), "$warning"))
    left = room - cell_width(end) - len(GAP)
    return (
        join_lines([end, styled_line((sanitize_to_width(why, left), "$warning"))], GAP)
        if why and left >= LEAST_WHY
        else end
    )


def _end_style(request: Request) -> str:
    return "$warning" if request.stop_reason in ("context full", "cancelled", "length", "error") else QUIET


def fields(request: Request) -> list[tuple[str, str]]:
    """Everything known of a request, in words."""
    read = None
    if request.prompt_tokens is not None and request.cached_tokens is not None:
        read = max(0, request.prompt_tokens - request.cached_tokens)
    drafted = units.UNKNOWN
    if request.draft_acceptance is not None:
        drafted = f"{request.draft_acceptance:.1%} ({request.draft_tokens_accepted:,} of {request.draft_tokens:,})"
    places = "  ".join(f"{at}: {share:.0%}" for at, share in enumerate(request.accepted_per_position, 1))
    steps = request.mean_accepted_length
    return [
        ("began", local_time(request.at)),
        ("slot, task", f"{request.slot}, {request.task}"),
        ("prompt", f"{_count(request.prompt_tokens)} tokens"),
        ("reused", f"{_count(request.cached_tokens)} tokens"),
        ("read", f"{_count(read)} tokens"),
        ("read again because", sanitize_to_width(request.cache_miss, 80) if request.cache_miss else "it was not"),
        ("generated", f"{_count(request.generated_tokens)} tokens"),
        ("waited", _waited(request)),
        (
            "TTFT",
            f"{units.duration_at_least(request.ttft_seconds, request.slot_ttft_seconds)} from its arrival, as the server saw it",
        ),
        ("pp", f"{units.rate(request.pp_tokens_per_second)} tok/s over {units.duration(request.prompt_seconds)}"),
        ("tg", f"{units.rate(request.tg_tokens_per_second)} tok/s over {units.duration(request.generation_seconds)}"),
        ("draft accepted", drafted),
        ("tokens per step", f"{steps:.2f}" if steps is not None else units.UNKNOWN),
        ("by position", places or units.UNKNOWN),
        (
            "ended",
            sanitize_to_width(request.stop_reason, 40)
            if request.stop_reason
            else f"{units.UNKNOWN} (its log does not say)",
        ),
        ("took", units.duration(request.duration_seconds)),
    ]


def _waited(request: Request) -> str:
    if request.queue_seconds is None:
        return f"{units.UNKNOWN} (its log does not say when it arrived)"
    return f"{units.duration(request.queue_seconds)} for slot {request.slot}"


def _count(value: int | None) -> str:
    return units.UNKNOWN if value is None else f"{value:,}"
