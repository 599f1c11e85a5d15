"""Where a turn's time went: one bar, each part in its own colour everywhere, and its words beside it. Pure."""

from __future__ import annotations

from gpubox import units
from gpubox.agent.events import Timing, Totals
from gpubox.tui.cells import Line, flow, join, line

PARTS = (
    ("queue", "$turn-queue", "queue_seconds"),
    ("prefill", "$turn-prefill", "prefill_new_seconds"),
    ("re-read", "$turn-reread", "prefill_reread_seconds"),
    ("thinking", "$turn-thinking", "thinking_seconds"),
    ("answer", "$turn-answer", "answer_seconds"),
    ("tools", "$turn-tools", "tool_seconds"),
    ("you", "$turn-approval", "approval_seconds"),
    ("loop", "$turn-loop", "loop_seconds"),
)
"""Word, colour and field of ``Timing``, in the order of the bar. ``you`` is the time an approval waited."""
WORST = 0.0005
"""Seconds that are drawn as a part at all."""


def shares(timing: Timing, width: int) -> list[tuple[str, str, float, int]]:
    """Word, colour, seconds and cells of each part that took time; the cells sum to ``width``."""
    found = [(word, colour, getattr(timing, field)) for word, colour, field in PARTS]
    found = [part for part in found if part[2] >= WORST]
    whole = sum(seconds for _, _, seconds in found)
    if not found or whole <= 0:
        return []
    widths = [max(1, round(seconds / whole * width)) for _, _, seconds in found]
    while sum(widths) != width:
        step = 1 if sum(widths) < width else -1
        widths[widths.index(max(widths))] += step
    return [(*part, cells) for part, cells in zip(found, widths, strict=True)]


def waterfall(totals: Totals, reason: str, width: int) -> list[Line]:
    """The bar of the turn, its legend, and what the turn comes to."""
    parts = shares(totals.timing, width)
    if not parts:
        return []
    bar: Line = tuple(("█" * cells, colour) for _, colour, _, cells in parts)
    legend = [line(("■ ", colour), (f"{word} ", "$quiet"), _short(seconds)) for word, colour, seconds, _ in parts]
    return [*flow(summary(totals, reason), width), bar, *flow(legend, width, "  ")]


def summary(totals: Totals, reason: str) -> list[Line]:
    """The turn in a few figures."""
    timing = totals.timing
    generated = f"{timing.generated_tokens:,} tok"
    found: list[Line] = [
        line(("turn ", "$quiet"), (units.seconds(timing.wall_seconds), "bold")),
        line(generated),
        line(("effective ", "$quiet"), f"{units.rate(totals.effective_tokens_per_second)} tok/s"),
        *speeds(timing),
    ]
    if totals.rounds > 1 or totals.tools:
        found.append(line(f"{totals.rounds} round{'s' * (totals.rounds != 1)}"))
    if totals.tools:
        failed = (f", {totals.tools_failed} failed", "$warning") if totals.tools_failed else ""
        found.append(line(f"{totals.tools} tool{'s' * (totals.tools != 1)}", failed))
    if word := ENDS.get(reason):
        found.append(line((word, "$warning")))
    return found


ENDS = {
    "rounds": "all rounds used",
    "tokens": "token limit of the turn",
    "wall": "time limit of the turn",
    "stopped": "you stopped it",
    "repetition": "it turned in circles",
    "length": "cut at max_tokens",
}
"""Why a turn ended, where that is not simply an answer."""


def speeds(timing: Timing) -> list[Line]:
    """tg, acceptance and the prompt of a round or a turn."""
    found = [line(("tg ", "$quiet"), f"{units.rate(timing.tg_tokens_per_second)} tok/s")]
    if timing.draft_tokens:
        accepted = timing.draft_tokens_accepted
        share = f"{accepted / timing.draft_tokens:.0%}" if accepted is not None else units.UNKNOWN
        found.append(line(("accepted ", "$quiet"), share))
    found.append(line(("prefill ", "$quiet"), f"{units.tokens(timing.prefill_new_tokens)} new, "
                      f"{units.tokens(timing.cached_tokens)} reused"))  # fmt: skip
    if timing.prefill_reread_tokens:
        found.append(line((f"{units.tokens(timing.prefill_reread_tokens)} read again", "$warning")))
    return found


def round_line(number: int, rounds: int, timing: Timing) -> Line:
    """One round of several: ``round 2/5   prefill 73 new, 566 reused   70.4 tok/s``."""
    return join([line((f"round {number}/{rounds}", "$quiet")), *speeds(timing)])


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if 0.0995 <= seconds < 1 else units.seconds(seconds)
