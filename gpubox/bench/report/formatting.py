"""Numbers, intervals and flags as text, the same in every form of a report; untrusted text as Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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
    "crash": "it was measured again on a restarted server",
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


def written_unit(unit: str, value: float) -> tuple[float, str]:
    """The factor and the unit in which ``value`` is written: less than a second in ms."""
    return (1000.0, "ms") if unit == "s" and value < 1 else (1.0, unit)


def format_interval(estimate: Estimate) -> str:
    """The 95 % interval; the range if the sample is too small for one; empty if all values are the same."""
    if estimate.low is None and (estimate.minimum is None or estimate.n < 2):
        return units.UNKNOWN
    ends = (estimate.minimum, estimate.maximum) if estimate.low is None else (estimate.low, estimate.high)
    low, high = map(format_number, ends)
    return "" if low == high else f"{'range ' if estimate.low is None else ''}{low} – {high}"


def interval_column(estimates: Sequence[Estimate | None]) -> tuple[str, list[str]]:
    """The title of a column of intervals, and its cells. ``range`` stands in the title alone if all are ranges."""
    cells = [format_interval(estimate) if estimate else "" for estimate in estimates]
    if any(estimate and estimate.low is not None for estimate in estimates):
        return "95 % CI" + " or range" * any(cell.startswith("range") for cell in cells), cells
    return "range", [cell.removeprefix("range ") for cell in cells]


def format_sd(estimate: Estimate) -> str:
    """``± 3.00``; empty for one value, and if all are the same."""
    return f"± {format_number(estimate.sd)}" if estimate.sd and float(format_number(estimate.sd)) else ""


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


def request_words(asked: str, depth: int, prefix: str = "") -> str:
    """What is asked in a speed run: ``short prompt, after 8K tokens, cached``; in a report, a list and live alike."""
    before = f"after {units.tokens(depth)} tokens" if depth else ""
    return ", ".join(filter(None, (asked, before, "cached" if prefix == "warm" else "")))


_ITEM = re.compile(r"(?:(\d+)-streams|(\w+)/(cold|warm))/d(\d+)(?:/(w?)(\d+))?")


def item_words(item: str) -> str:
    """``short/cold/d0/w1`` as ``short prompt, warm-up``, its third repeat as ``short prompt #3``; others as they are.

    Also of a group of items: ``short/cold/d0``.
    """

    def words(name: re.Match[str]) -> str:
        streams, prompt, prefix, depth, warmup, number = name.groups()
        asked = stream_words(int(streams)) if streams else f"{prompt} prompt"
        repeat = ", warm-up" if warmup else f" #{number}" if number else ""
        return request_words(asked, int(depth), prefix) + repeat

    return _ITEM.sub(words, item)


def stream_words(count: int) -> str:
    """``2 streams``."""
    return f"{count} stream{'s' if count != 1 else ''}"


def validity_suffix(doubts: Sequence[Doubt]) -> str:
    """The end of a sentence that rests on doubtful items: `` - doubtful: busy CPU in 3 measurements``; else empty."""
    if not doubts:
        return ""
    parts = []
    for kind in dict.fromkeys(doubt.kind for doubt in doubts):
        items = len({doubt.item for doubt in doubts if doubt.kind == kind and doubt.item})
        parts.append(f"{kind} in {items} measurement{'s' * (items != 1)}" if items else kind)
    return f" - {DOUBTFUL} {', '.join(parts)}"


def validity_warnings(doubts: Sequence[Doubt]) -> Iterator[str]:
    """One sentence for each kind of doubt: the number of items, the text of the last one, and what it means."""
    for kind in dict.fromkeys(doubt.kind for doubt in doubts):
        own = [doubt for doubt in doubts if doubt.kind == kind]
        items = len({doubt.item for doubt in own if doubt.item})
        where = f" in {items} measurements" if items > 1 else f" in {item_words(own[-1].item)}" if items else ""
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
