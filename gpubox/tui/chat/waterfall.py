"""Where a turn's time went: one bar, each part in its own colour everywhere, and its words beside it. Pure."""

from __future__ import annotations

from gpubox import units
from gpubox.agent.events import RoundTiming, TurnTotals
from gpubox.tui.styled_lines import StyledLine, join_lines, styled_line, wrap_parts

PARTS = (
    ("queue", "$turn-queue", "queue_seconds"),
    ("prefill", "$turn-prefill", "prefill_new_seconds"),
    ("re-read", "$turn-reread", "prefill_reprocessed_seconds"),
    ("thinking", "$turn-thinking", "thinking_seconds"),
    ("answer", "$turn-answer", "answer_seconds"),
    ("tools", "$turn-tools", "tool_seconds"),
    ("you", "$turn-approval", "approval_seconds"),
    ("loop", "$turn-loop", "loop_seconds"),
)
"""Word, colour and field of ``RoundTiming``, in the order of the bar. ``you`` is the time an approval waited."""
MIN_PART_SECONDS = 0.0005
"""Seconds that are drawn as a part at all."""


def time_shares(timing: RoundTiming, width: int) -> list[tuple[str, str, float, int]]:
    """Word, colour, seconds and cells of each part that took time; the cells sum to ``width``."""
    found = [(word, colour, getattr(timing, field)) for word, colour, field in PARTS]
    found = [part for part in found if part[2] >= MIN_PART_SECONDS]
    whole = sum(seconds for _, _, seconds in found)
    if not found or whole <= 0:
        return []
    widths = [max(1, round(seconds / whole * width)) for _, _, seconds in found]
    while sum(widths) != width:
        step = 1 if sum(widths) < width else -1
        widths[widths.index(max(widths))] += step
    return [(*part, cells) for part, cells in zip(found, widths, strict=True)]


def waterfall(totals: TurnTotals, reason: str, width: int) -> list[StyledLine]:
    """The bar of the turn, its legend, and what the turn comes to."""
    parts = time_shares(totals.timing, width)
    if not parts:
        return []
    bar: StyledLine = tuple(("█" * cells, colour) for _, colour, _, cells in parts)
    legend = [
        styled_line(("■ ", colour), (f"{word} ", "$quiet"), _short(seconds)) for word, colour, seconds, _ in parts
    ]
    return [*wrap_parts(summary_spans(totals, reason), width), bar, *wrap_parts(legend, width, "  ")]


def summary_spans(totals: TurnTotals, reason: str) -> list[StyledLine]:
    """The turn in a few figures."""
    timing = totals.timing
    generated = f"{timing.generated_tokens:,} tok"
    found: list[StyledLine] = [
        styled_line(("turn ", "$quiet"), (units.duration(timing.wall_seconds), "bold")),
        styled_line(generated),
        styled_line(("effective ", "$quiet"), f"{units.rate(totals.effective_tokens_per_second)} tok/s"),
        *speed_spans(timing),
    ]
    if totals.rounds > 1 or totals.tool_calls:
        found.append(styled_line(f"{totals.rounds} round{'s' * (totals.rounds != 1)}"))
    if totals.tool_calls:
        failed = (f", {totals.failed_tool_calls} failed", "$warning") if totals.failed_tool_calls else ""
        found.append(styled_line(f"{totals.tool_calls} tool{'s' * (totals.tool_calls != 1)}", failed))
    if word := END_REASONS.get(reason):
        found.append(styled_line((word, "$warning")))
    return found


END_REASONS = {
    "rounds": "all rounds used",
    "tokens": "token limit of the turn",
    "wall": "time limit of the turn",
    "stopped": "you stopped it",
    "repetition": "it turned in circles",
    "length": "cut at max_tokens",
}
"""Why a turn ended, where that is not simply an answer."""


def speed_spans(timing: RoundTiming) -> list[StyledLine]:
    """tg, acceptance and the prompt of a round or a turn."""
    found = [styled_line(("tg ", "$quiet"), f"{units.rate(timing.tg_tokens_per_second)} tok/s")]
    if timing.draft_tokens:
        accepted = timing.draft_tokens_accepted
        share = f"{accepted / timing.draft_tokens:.0%}" if accepted is not None else units.UNKNOWN
        found.append(styled_line(("accepted ", "$quiet"), share))
    found.append(styled_line(("prefill ", "$quiet"), f"{units.tokens(timing.prefill_new_tokens)} new, "
                      f"{units.tokens(timing.cached_tokens)} reused"))  # fmt: skip
    if timing.prefill_reprocessed_tokens:
        found.append(styled_line((f"{units.tokens(timing.prefill_reprocessed_tokens)} read again", "$warning")))
    return found


def round_line(number: int, rounds: int, timing: RoundTiming) -> StyledLine:
    """One round of several: ``round 2/5   prefill 73 new, 566 reused   70.4 tok/s``."""
    return join_lines([styled_line((f"round {number}/{rounds}", "$quiet")), *speed_spans(timing)])


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if 0.0995 <= seconds < 1 else units.duration(seconds)
