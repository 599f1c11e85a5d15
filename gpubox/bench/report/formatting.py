"""Numbers, intervals and flags as text, the same in every form of a report; untrusted text as Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpubox import units
from gpubox.bench.model import Doubt
from gpubox.bench.report.model import Value
from gpubox.bench.stats import Estimate, PairedRatio
from gpubox.sanitize import sanitize_line

DOUBT_MEANINGS = {
    "foreign request": "times include another client's requests",
    "throttling": "the GPU could have been faster",
    "swap": "memory was short",
    "clocks": "the GPU ran at other clocks than before",
    "other GPU process": "the GPU was shared",
    "busy CPU": "work on the CPU may have been slower",
    "cache": "the prompt cache was not used as the protocol requires",
    "length": "answers did not have the requested length",
    "setup": "the setup changed during the run",
    "crash": "the item was repeated on a restarted server",
}
"""Kind of doubt -> what it means for the numbers."""
MAX_INTERVAL_FACTOR = 10
"""A ratio whose interval spans more is as good as unknown."""
DOUBTFUL = "doubtful:"
"""Marks every sentence that rests on doubtful items."""


def format_number(value: float | None) -> str:
    """At most four significant digits."""
    if value is None:
        return units.UNKNOWN
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.4f}"


def format_interval(estimate: Estimate) -> str:
    """The 95 % interval; the range if the sample is too small for one."""
    if estimate.low is not None:
        return f"{format_number(estimate.low)} – {format_number(estimate.high)}"
    if estimate.minimum is not None and estimate.n > 1:
        return f"range {format_number(estimate.minimum)} – {format_number(estimate.maximum)}"
    return units.UNKNOWN


def interval_title(cells: Iterable[str]) -> str:
    """The title of a column of intervals; it names what stands in place of some: ``95 % CI or range``."""
    others = {cell.split()[0] for cell in cells if cell[:1].isalpha()}
    return " or ".join(["95 % CI", *sorted(others)])


def format_sd(estimate: Estimate) -> str:
    """``± 3.00``; empty for one value."""
    return f"± {format_number(estimate.sd)}" if estimate.sd is not None else ""


def format_value(value: Value) -> str:
    """A cell of a table."""
    return format_number(value) if isinstance(value, float) else units.UNKNOWN if value is None else str(value)


def format_change(ratio: float | None) -> str:
    """A ratio as a relative change: ``+3.1 %``."""
    return f"{100 * (ratio - 1):+.1f} %" if ratio is not None else units.UNKNOWN


def format_ratio(ratio: PairedRatio, *, short: bool = False) -> str:
    """A paired ratio as a change: ``+3.1 %``, with its interval if it has one: ``+3.1 % (95 % CI +1.0 to +5.2 %)``.

    ``short``, for a table: ``+3.1 % (+1.0 to +5.2)``.
    """
    if ratio.low is None or ratio.high is None:
        return format_change(ratio.ratio)
    if ratio.high > MAX_INTERVAL_FACTOR * ratio.low:
        clause = "" if short else f" ({ratio.n} starts differ too much for an interval)"
        return f"{format_change(ratio.ratio)}{clause}"
    low, high = (100 * (end - 1) for end in (ratio.low, ratio.high))
    if short:
        return f"{format_change(ratio.ratio)} ({low:+.1f} to {high:+.1f})"
    return f"{format_change(ratio.ratio)} (95 % CI {low:+.1f} to {high:+.1f} %)"


_ITEM = re.compile(r"(\w+)/(cold|warm)/d(\d+)/(w?)(\d+)")


def item_words(item: str) -> str:
    """``short/cold/d0/w1`` as ``short prompt, warm-up``; the name of any other item as it is."""

    def words(name: re.Match[str]) -> str:
        prompt, prefix, depth, warmup, number = name.groups()
        parts = [f"{prompt} prompt", "cached" if prefix == "warm" else "", f"after {units.tokens(int(depth))}"]
        return ", ".join(filter(None, [*parts[: 3 if int(depth) else 2], "warm-up" if warmup else number]))

    return _ITEM.sub(words, item)


def validity_suffix(doubts: Sequence[Doubt]) -> str:
    """The end of a sentence that rests on doubtful items: `` - doubtful: busy CPU in 3 items``; else empty."""
    if not doubts:
        return ""
    parts = []
    for kind in dict.fromkeys(doubt.kind for doubt in doubts):
        items = len({doubt.item for doubt in doubts if doubt.kind == kind and doubt.item})
        parts.append(f"{kind} in {items} {'item' if items == 1 else 'items'}" if items else kind)
    return f" - {DOUBTFUL} {', '.join(parts)}"


def validity_warnings(doubts: Sequence[Doubt]) -> Iterator[str]:
    """One sentence for each kind of doubt: the number of items, the text of the last one, and what it means."""
    for kind in dict.fromkeys(doubt.kind for doubt in doubts):
        own = [doubt for doubt in doubts if doubt.kind == kind]
        items = len({doubt.item for doubt in own if doubt.item})
        where = f" in {items} items" if items > 1 else f" in {item_words(own[-1].item)}" if items else ""
        meaning = f" - {DOUBT_MEANINGS[kind]}" if kind in DOUBT_MEANINGS else ""
        last = "the last one: " if items > 1 and len({doubt.text for doubt in own}) > 1 else ""
        yield f"! {kind}{where}: {last}{own[-1].text}{meaning}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; bars in the cells are escaped."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(markdown_text(text).replace('|', chr(92) + '|') for text in row)} |"


def markdown_text(text: str) -> str:
    """Untrusted text on one line: no tag, link or image. A code span is left as it is, because it renders none."""
    line = sanitize_line(text)
    if len(line) > 1 and line[0] == line[-1] == "`" and "`" not in line[1:-1]:
        return line
    return line.replace("<", "\\<").replace("[", "\\[")
