"""Numbers, intervals and flags in words, the same in every form of a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubox import units
from gpubox.bench.model import Flag
from gpubox.bench.report.model import Estimate, Value

FLAG_MEANINGS = {
    "foreign request": "times hold somebody else's share",
    "throttling": "the card could have been faster",
    "swap": "memory was short",
    "clocks": "the card ran at other clocks than before",
    "other GPU process": "the card was shared",
    "busy CPU": "what the CPU does may have been slower",
    "cache": "the prompt cache was not as the protocol has it",
    "length": "answers were not as long as asked for",
    "setup": "what was measured changed within the run",
    "crash": "the item was done again on a fresh server",
}
"""What a kind of flag says of the numbers."""


DOUBTFUL = "doubtful:"
"""In every sentence that rests on flagged items."""


def format_number(value: float | None) -> str:
    """Four significant figures, and no more."""
    if value is None:
        return units.UNKNOWN
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.4f}"


def format_interval(found: Estimate) -> str:
    """The 95 % interval; the range where there are too few for one."""
    if found.low is not None:
        return f"{format_number(found.low)} – {format_number(found.high)}"
    if found.least is not None and found.n > 1:
        return f"range {format_number(found.least)} – {format_number(found.most)}"
    return units.UNKNOWN


def format_sd(found: Estimate) -> str:
    """``± 3.00``; empty for one value."""
    return f"± {format_number(found.sd)}" if found.sd is not None else ""


def format_value(value: Value) -> str:
    """A value of a table."""
    return format_number(value) if isinstance(value, float) else units.UNKNOWN if value is None else str(value)


def format_change(ratio: float | None) -> str:
    """A ratio as a change: ``+3.1 %``."""
    return f"{100 * (ratio - 1):+.1f} %" if ratio is not None else units.UNKNOWN


def validity_suffix(flags: Sequence[Flag]) -> str:
    """The end of a sentence that rests on flagged items: `` - doubtful: busy CPU in 3 items``; empty without flags."""
    if not flags:
        return ""
    words = []
    for kind in dict.fromkeys(flag.kind for flag in flags):
        items = len({flag.item for flag in flags if flag.kind == kind and flag.item})
        words.append(f"{kind} in {items} {'item' if items == 1 else 'items'}" if items else kind)
    return f" - {DOUBTFUL} {', '.join(words)}"


def validity_warnings(flags: Sequence[Flag]) -> Iterator[str]:
    """One sentence for each kind of flag: what it means, how many items have it, and the last one's words."""
    for kind in dict.fromkeys(flag.kind for flag in flags):
        found = [flag for flag in flags if flag.kind == kind]
        items = len({flag.item for flag in found if flag.item})
        where = f" in {items} items" if items > 1 else f" in {found[-1].item}" if items else ""
        means = f" - {FLAG_MEANINGS[kind]}" if kind in FLAG_MEANINGS else ""
        last = "the last one: " if items > 1 and len({flag.text for flag in found}) > 1 else ""
        yield f"! {kind}{where}: {last}{found[-1].text}{means}"
