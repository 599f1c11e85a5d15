"""A post as words: its facts, its figures, and the Markdown block. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpubox import units
from gpubox.bench.report.formatting import format_number, markdown_table, markdown_text
from gpubox.bench.report.post import Post, PostColumn, PostSide
from gpubox.bench.stats import Estimate

MAX_ROWS = 60
"""Of a Markdown table; forums cut longer posts."""
NO_FIGURE = "No figure was measured."
BRACKETS = f"In brackets: the 95 % interval, or the range of the repeats, or {units.UNKNOWN}; and n samples."


def figure(estimate: Estimate | None) -> tuple[str, str]:
    """The value, and its interval with n; a dash twice for what was not measured."""
    if estimate is None:
        return units.UNKNOWN, units.UNKNOWN
    if estimate.low is not None and estimate.high is not None:
        interval = f"{number_text(estimate.low)} – {number_text(estimate.high)}"
    elif estimate.minimum is not None and estimate.maximum is not None and estimate.n > 1:
        interval = f"range {number_text(estimate.minimum)} – {number_text(estimate.maximum)}"
    else:
        interval = units.UNKNOWN
    return number_text(estimate.value), f"{interval}, n {estimate.n}"


def number_text(value: float) -> str:
    """As in a report, but a small distance keeps three digits: ``0.00012`` is not ``0.0001``, and 0 is ``0``."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else units.UNKNOWN
    return format_number(value) if abs(value) >= 0.001 else f"{value:.3g}"


def vram_text(post: Post, side: PostSide) -> str:
    """``14.9 GiB of 16.0 GiB (largest of 212 readings, all programs)``."""
    if side.vram_used_bytes is None:
        return units.UNKNOWN
    total = f" of {units.memory(post.vram_total_bytes)}" if post.vram_total_bytes else ""
    readings = f"largest of {side.vram_readings} readings" if side.vram_readings > 1 else "one reading"
    return f"{units.memory(side.vram_used_bytes)}{total} ({readings}, all programs)"


def context_text(side: PostSide) -> str:
    """``65,536 tokens in each of 4 slots``."""
    if side.context_tokens is None:
        return units.UNKNOWN
    slots = f" in each of {side.slots} slots" if side.slots and side.slots > 1 else ""
    return f"{side.context_tokens:,} tokens{slots}"


def flags_text(flags: tuple[str, ...] | None, none: str = "llama-server's defaults") -> str:
    """``-ngl 99 -c 65536``; a dash if the command line is unknown."""
    return f"flags {units.UNKNOWN}" if flags is None else " ".join(flags) or none


def machine_text(post: Post) -> str:
    """``AMD Ryzen 9 5950X, 64.0 GiB RAM``."""
    ram = f"{units.memory(post.ram_bytes)} RAM" if post.ram_bytes else ""
    return ", ".join(filter(None, (post.cpu, ram))) or units.UNKNOWN


def headline(post: Post) -> str:
    """The first row's first figure: ``tg 58.3 tok/s (57.9 - 58.7, n 5; short, cold, depth 0)``."""
    if not post.rows or not post.columns:
        return NO_FIGURE if not post.table else "llama-bench"
    row = post.rows[0]
    place = next(number for number, cell in enumerate(row.cells) if cell)
    value, interval = figure(row.cells[place])
    where = "; ".join(filter(None, (interval, row.label)))
    return f"{post.columns[place].name} {value} {post.columns[place].unit}".rstrip() + f" ({where})"


def post_markdown(post: Post) -> str:
    """The block to paste."""
    return "\n".join(_lines(post)) + "\n"


def _lines(post: Post) -> Iterator[str]:
    yield f"**{_plain(post.name)}** on {_plain(', '.join(post.gpus) or post.cpu or units.UNKNOWN)}: " + _plain(
        headline(post)
    )
    for doubt in post.doubts:
        yield from ("", f"**! {_plain(doubt)}**")
    yield ""
    yield from markdown_table(("", markdown_text(post.title).replace("|", "")), list(_facts(post)))
    if post.rows:
        yield ""
        yield from _figures(post)
    if post.table:
        yield from ("", "llama-bench (without server, template and speculative decoding)", "")
        yield from markdown_table(post.table[0], post.table[1:])
    notes = [*post.sentences, *([BRACKETS] if post.rows else [])]
    if notes:
        yield ""
    yield from (f"- {markdown_text(note)}" for note in notes)


def _facts(post: Post) -> Iterator[tuple[str, str]]:
    several = len(post.sides) > 1
    models = dict.fromkeys((side.model.name, side.model.details()) for side in post.sides)
    for name, details in models:
        yield "model", f"{name}, {details}"
    yield "card", "; ".join(post.gpus) or units.UNKNOWN
    yield "driver", post.driver or units.UNKNOWN
    yield "machine", machine_text(post)
    yield "engine", ", ".join(dict.fromkeys(side.engine or units.UNKNOWN for side in post.sides))
    yield "flags", _code(flags_text(post.flags))
    yield from ((side.label, _code(flags_text(side.flags))) for side in post.sides if several and side.flags)
    for name, texts in (
        ("VRAM in use", [vram_text(post, side) for side in post.sides]),
        ("context", [context_text(side) for side in post.sides]),
    ):
        if len(set(texts)) == 1:
            yield name, texts[0]
        else:
            yield from ((f"{name} ({side.label})", text) for side, text in zip(post.sides, texts, strict=True))
    yield "measured", f"{post.measured_on}, gpubox {post.gpubox or units.UNKNOWN}, gpubox bench {post.kind}"


def _figures(post: Post) -> Iterator[str]:
    def cell(estimate: Estimate | None) -> str:
        value, interval = figure(estimate)
        return value if estimate is None else f"{value} ({interval})"

    rows = [(row.label, *map(cell, row.cells)) for row in post.rows[:MAX_ROWS]]
    yield from markdown_table(("", *(column_title(column) for column in post.columns)), rows)
    if len(post.rows) > MAX_ROWS:
        yield from ("", f"{len(post.rows) - MAX_ROWS} more rows are left out.")


def column_title(column: PostColumn) -> str:
    """``tg, tok/s``."""
    return ", ".join(filter(None, (column.name, column.unit)))


def _code(text: str) -> str:
    return text if text == units.UNKNOWN or not text.startswith("-") else f"`{text.replace('`', '')}`"


def _plain(text: str) -> str:
    return markdown_text(text).replace("*", "\\*")
