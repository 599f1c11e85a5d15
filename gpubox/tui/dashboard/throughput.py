"""How fast, and what is happening now, in words and lines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubox import units
from gpubox.tui.formatting import block_bar
from gpubox.tui.styled_lines import (
    QUIET,
    StyledLine,
    cell_width,
    fit_by_priority,
    gauge,
    join_lines,
    sanitize_to_width,
    styled_line,
)

if TYPE_CHECKING:
    from gpubox.telemetry.snapshot import Request, SlotReading, Snapshot

LABEL = 9
STATES = {
    "prefill": ("●", "$accent", "reads a prompt"),
    "thinking": ("●", "$primary", "generates, and has not said anything yet"),
    "answering": ("●", "$primary", "generates"),
    "idle": ("●", "$success", "waits for a request"),
    "ready": ("●", "$success", "answers; nothing tells whether it works on a request"),
    "loading": ("◌", "$accent", "a model is being loaded"),
    "stopping": ("◌", "$accent", "was told to stop"),
    "sleeping": ("○", "$secondary", "gave its memory back; the next request wakes it"),
    "stuck": ("✗", "$error", "lives, and does not move"),
    "down": ("○", "$quiet", "nothing answers"),
}
"""State of the moment -> glyph, colour and what it means."""
LONG_PROBLEM = 160
ALONE = 0.9
BAR_CELLS = 6


def state_line(snapshot: Snapshot, width: int) -> StyledLine:
    """The first line: is it hung, or how fast is it?"""
    through = snapshot.throughput
    state = through.state
    if state == "down" and snapshot.server.state == "crashed":
        return styled_line(
            ("✗ crashed", "bold $error"), (f"   {sanitize_to_width(snapshot.server.message, LONG_PROBLEM)}", "")
        )
    glyph, colour, meaning = STATES.get(state, ("●", "$primary", ""))
    head = styled_line((f"{glyph} {state}", f"bold {colour}"))
    if state == "prefill":
        return prefill_line(snapshot, width)
    if state in ("answering", "thinking"):
        now = styled_line(
            ("tg ", QUIET), (units.rate(through.tg_tokens_per_second), "bold $primary"), (" tok/s now", QUIET)
        )
        return fit_by_priority([(1, head), (9, now), *speeds(snapshot)], width)
    if state == "idle":
        found = speeds(snapshot)
        if not found:
            return fit_by_priority([(10, head), (1, styled_line((meaning, QUIET)))], width)
        row = fit_by_priority([(10, head), *found], width)
        return (*row, (" tok/s", QUIET)) if len(row) > 1 and cell_width(row) + 6 <= width else row
    why = next(iter(snapshot.problems), "") if state == "stuck" else ""
    if state == "down" and snapshot.server.state in ("stopped", "unreachable", "error"):
        head = styled_line((f"{glyph} {snapshot.server.state}", f"bold {colour}"))
        why = snapshot.server.message
    return fit_by_priority(
        [(10, head), (5, styled_line((sanitize_to_width(why or meaning, LONG_PROBLEM), "" if why else QUIET)))], width
    )


def speeds(snapshot: Snapshot) -> list[tuple[int, StyledLine]]:
    """Median, peak and effective of all slots together, each with its word; of one request alone where that differs."""
    through = snapshot.throughput
    found = [
        (7, through.tg_median, "median"),
        (5, through.tg_peak, "peak"),
        (8, through.effective_tokens_per_second, "effective"),
    ]
    if side_by_side(snapshot):
        found.append((6, through.request_tg_median, "a request"))
    if all(value is None for _, value, _ in found):
        return []
    return [(weight, styled_line(units.rate(value), (f" {word}", QUIET))) for weight, value, word in found]


def side_by_side(snapshot: Snapshot) -> bool:
    """Whether one request was slower than all slots together: several have generated at once."""
    through = snapshot.throughput
    alone, together = through.request_tg_median, through.tg_median or through.tg_tokens_per_second
    return alone is not None and together is not None and alone < ALONE * together


def prefill_line(snapshot: Snapshot, width: int) -> StyledLine:
    """``prefill ▓▓▓▓░░ 62%  41.2k of 66.3k  548 tok/s  ETA 0:46``."""
    through = snapshot.throughput
    slot = next((slot for slot in snapshot.slots if slot.state == "prefill"), None)
    share = through.prefill_progress
    done = slot.prompt_done_tokens if slot else None
    total = slot.prompt_tokens if slot else None
    amount = f"{units.tokens(done)} of {units.tokens(total)}" if total else f"{units.tokens(done)} tokens"
    eta = styled_line(("ETA ", QUIET), (clock(through.eta_seconds), "bold")) if through.eta_seconds is not None else ()
    percent = styled_line((f"{share:.0%}", "bold $accent")) if share is not None else ()
    parts: list[tuple[int, StyledLine]] = [
        (10, styled_line(("● prefill", "bold $accent"))),
        (9, percent),
        (6, styled_line(amount)),
        (7, styled_line(units.rate(through.pp_tokens_per_second), (" tok/s", QUIET))),
        (8, eta),
    ]
    if share is None:
        return fit_by_priority(parts, width)
    least = BAR_CELLS + 1  # the bar says it at a glance: it has its cells before the rest has
    room = width - cell_width(join_lines([part for _, part in parts], "  ")) - 1
    meter = block_bar(share, max(BAR_CELLS, min(room, 30)))
    if width < 30:
        return fit_by_priority(parts, width, "  ")
    rest = fit_by_priority(parts, width - max(least, len(meter) + 1), "  ")
    return (rest[0], (f" {meter}", "$accent"), *rest[1:])


def clock(value: float | None) -> str:
    """``0:46``: minutes and seconds, as a time to wait is read."""
    if value is None:
        return units.UNKNOWN
    minutes, seconds = divmod(max(0, round(value)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _label(word: str, found: StyledLine) -> StyledLine:
    return styled_line((word.ljust(LABEL), QUIET)) + (found or styled_line((units.UNKNOWN, QUIET)))


def reading_line(snapshot: Snapshot, width: int) -> StyledLine:
    """The prompt's side, of one request: that which is being read, else the last one that ended."""
    through = snapshot.throughput
    last = snapshot.requests[0] if snapshot.requests else None
    slot = next((s for s in snapshot.slots if s.state == "prefill"), None)
    shown = units.duration_at_least(through.ttft_seconds, through.slot_ttft_seconds)
    ttft = styled_line(("TTFT ", QUIET), shown) if shown != units.UNKNOWN and not slot else ()
    prompt = slot.prompt_tokens if slot else last.prompt_tokens if last else None
    cached = slot.cached_tokens if slot else last.cached_tokens if last else None
    parts: list[tuple[int, StyledLine]] = [
        (9, styled_line(units.rate(through.pp_tokens_per_second), (" tok/s", QUIET))),
        (8, ttft),
        (7, reused(prompt, cached)),
    ]
    return _label("pp", fit_by_priority(parts, width - LABEL))


def reused(prompt: int | None, cached: int | None) -> StyledLine:
    """``reused 41.2k of 43.0k (96%)``."""
    if prompt is None or cached is None or not prompt:
        return ()
    share = f" ({cached / prompt:.0%})"
    return styled_line(("reused ", QUIET), f"{units.tokens(cached)} of {units.tokens(prompt)}", (share, QUIET))


def drafted(snapshot: Snapshot) -> Request | None:
    """The last request that drafted."""
    return next((request for request in snapshot.requests if request.draft_tokens), None)


def draft_line(snapshot: Snapshot, width: int) -> StyledLine:
    """Is speculation worth it: acceptance, mean length, and how it falls with the position."""
    through, last = snapshot.throughput, drafted(snapshot)
    if through.draft_acceptance is None:
        return ()
    counts = f"{last.draft_tokens_accepted:,} of {last.draft_tokens:,} " if last else ""
    steps = through.mean_accepted_length
    places = " ".join(f"{share:.0%}".rstrip("%") for share in through.accepted_per_position[:8])
    parts: list[tuple[int, StyledLine]] = [
        (
            9,
            styled_line(
                counts, (f"({through.draft_acceptance:.1%})" if counts else f"{through.draft_acceptance:.1%}", "bold")
            ),
        ),
        (8, styled_line(f"{steps:.2f}", (" tokens/step", QUIET)) if steps is not None else ()),
        (7, styled_line(("pos ", QUIET), places) if places else ()),
    ]
    return _label("draft", fit_by_priority(parts, width - LABEL))


def context_line(snapshot: Snapshot, width: int) -> StyledLine:
    """How full the fullest slot is, and how many slots work."""
    through = snapshot.throughput
    used, size = through.context_used_tokens, through.context_size_tokens
    slots: StyledLine = ()
    if through.slots is not None:
        waiting = f"  ◌ {through.queued_requests} queued" if through.queued_requests else ""
        busy = f"{through.busy_slots or 0} of {through.slots}"
        slots = styled_line(("slots ", QUIET), busy, (" busy", QUIET), (waiting, "bold $warning"))
    if size is None:
        return _label("context", slots)
    share = (used or 0) / size if size else 0
    style = "$warning" if share >= 0.9 else "$secondary"
    said = styled_line(f"{units.tokens(used)} of {units.tokens(size)}")
    percent = styled_line((f"{share:.0%}".rjust(4), style if share >= 0.9 else ""))
    room = width - LABEL - cell_width(join_lines([said, percent, slots])) - 3
    meter = gauge(share, min(room, 24), style) if room >= 5 else ()
    return _label(
        "context", fit_by_priority([(8, said), (5, join_lines([meter, percent], " ")), (9, slots)], width - LABEL)
    )


def slot_lines(snapshot: Snapshot, width: int, room: int) -> list[StyledLine]:
    """One line for each busy slot, where several are; the last says how many found no room."""
    busy = [slot for slot in snapshot.slots if slot.state != "idle"]
    if len(busy) < 2 or room < 1:
        return []
    shown = busy if len(busy) <= room else busy[: room - 1]
    rows = [_label(f"slot {slot.index}", _slot(slot, width - LABEL)) for slot in shown]
    if len(shown) < len(busy):
        rows.append(styled_line((f"{len(busy) - len(shown)} more busy slots", QUIET)))
    return rows


def _slot(slot: SlotReading, width: int) -> StyledLine:
    glyph, colour, _ = STATES.get(slot.state, ("●", "$primary", ""))
    parts: list[tuple[int, StyledLine]] = [(9, styled_line((f"{glyph} {slot.state:9}", colour)))]
    if slot.state == "prefill":
        share = f"{slot.prefill_progress:.0%}" if slot.prefill_progress is not None else units.UNKNOWN
        of = f" of {units.tokens(slot.prompt_tokens)}" if slot.prompt_tokens else ""
        parts.append((8, styled_line(f"{share:>5}{of}")))
        parts.append((7, styled_line(units.rate(slot.pp_tokens_per_second), (" tok/s", QUIET))))
    else:
        parts.append((8, styled_line(units.rate(slot.tg_tokens_per_second).rjust(5), (" tok/s", QUIET))))
        parts.append((7, styled_line(units.tokens(slot.generated_tokens), (" out", QUIET))))
    size = slot.context_size_tokens
    if size and slot.context_used_tokens is not None:
        fill = f"{units.tokens(slot.context_used_tokens)} of {units.tokens(size)}"
        parts.append((6, styled_line(("context ", QUIET), fill)))
    return fit_by_priority(parts, width)


def problem_lines(snapshot: Snapshot, room: int) -> list[StyledLine]:
    """What could not be read, one short sentence each."""
    said = [p for p in snapshot.problems if not (snapshot.throughput.state == "stuck" and p == snapshot.problems[0])]
    return [
        styled_line(("! ", "$warning"), (sanitize_to_width(problem, LONG_PROBLEM), QUIET))
        for problem in said[: max(0, room)]
    ]
