"""A post as words: its facts, its figures, the Markdown block; and as one picture of 1200 x 630 (SVG). Pure.

The picture has shapes and text, no scripts, links and fonts of its own. All text is monospaced, because then its width
is known: a letter of every common monospaced font is 0.60 of the size wide (DejaVu Sans Mono 0.602, the widest), and a
text that is longer than its place is cut before it is drawn.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from gpubox import units
from gpubox.bench.report.formatting import format_number, markdown_table, markdown_text
from gpubox.bench.report.post import Post, PostColumn, PostRow, PostSide
from gpubox.bench.stats import Estimate
from gpubox.sanitize import sanitize_line

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
        return NO_FIGURE
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
        post.verdict or headline(post)
    )
    for doubt in post.doubts:
        yield from ("", f"**! {_plain(doubt)}**")
    yield ""
    yield from markdown_table(("", markdown_text(post.title).replace("|", "")), list(_facts(post)))
    if post.rows:
        yield ""
        yield from _figure_tables(post)
    notes = [*post.sentences[bool(post.verdict) :], *([BRACKETS] if post.rows else [])]
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


def _figure_tables(post: Post) -> Iterator[str]:
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


WIDTH, HEIGHT, MARGIN = 1200, 630, 44
LETTER = 0.62
"""Width of a letter over the font size, a little more than the widest font has; some viewers round it to pixels."""
MAX_COLUMNS, MAX_TILES, MAX_SIDES, MAX_SENTENCES = 4, 3, 4, 2
_INNER = WIDTH - 2 * MARGIN
_BACKGROUND, _PANEL, _LINE = "#0f1317", "#171d23", "#2c3540"
_TEXT, _BRIGHT, _QUIET, _DOUBT = "#c9d1d9", "#f0f4f8", "#8b96a3", "#dcae58"
_COLOURS = {"tg": "#6db3c4", "pp": "#a98bd6", "TTFT": "#d8a657", "acceptance": "#86b970"}
_OTHER_COLOURS = ("#d98bb0", "#4fb3a5", "#5a9bd4", "#c9736b")
_FONTS = "'DejaVu Sans Mono', ui-monospace, Menlo, Consolas, 'Liberation Mono', monospace"
"""The first one decides in converters that read no further; the others in browsers that have not got it."""
_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
    f'font-family="{_FONTS}" fill="{_TEXT}">'
)
_ROW, _SMALL, _BODY, _VALUE = 25.0, 14.0, 16.0, 40.0
_TILE = 1.16 * _VALUE + 40
"""The height of a tile."""


def post_svg(post: Post) -> str:
    """The card."""
    return "\n".join([_HEAD, f"<title>{_clean(f'{post.name}: {post.title}')}</title>", *_shapes(post), "</svg>", ""])


def _shapes(post: Post) -> Iterator[str]:
    yield _box(0, 0, WIDTH, HEIGHT, _LINE, radius=18)
    yield _box(1, 1, WIDTH - 2, HEIGHT - 2, _BACKGROUND, radius=17)
    top, head = _head(post)
    yield from head
    bottom, foot = _foot(post)
    yield from foot
    if not post.rows:
        yield _text(MARGIN, (top + bottom) / 2, NO_FIGURE, 22, _QUIET)
        return
    tiles, others = _tiles_and_rows(post)
    yield from _tiles(post, tiles, top)
    yield from _figures(post, others, top + _TILE + 6, bottom)


# -- above and below the figures ------------------------------------------------------------------------------------


def _head(post: Post) -> tuple[float, list[str]]:
    """What was measured, on what, with which flags; and where the figures begin."""
    several = len(post.sides) > 1
    models = dict.fromkeys(side.model.details(quant=several) for side in post.sides)
    engines = dict.fromkeys(side.engine or f"engine {units.UNKNOWN}" for side in post.sides)
    lines = [
        ("; ".join(models), _COLOURS["tg"]),
        ("; ".join(post.gpus) or f"card {units.UNKNOWN}", _TEXT),
        (f"{machine_text(post)}; driver {post.driver or units.UNKNOWN}; {', '.join(engines)}", _TEXT),
    ]
    if not several:
        side = post.sides[0]
        lines.append((f"context {context_text(side)}; VRAM {vram_text(post, side)}", _TEXT))
    size = max(24.0, min(38.0, _INNER / (len(post.name) * LETTER)))
    shapes = [
        _text(MARGIN, 46, f"gpubox bench {post.kind}: {post.title}", _SMALL, _QUIET, _INNER - 120),
        _text(WIDTH - MARGIN, 46, post.measured_on, _SMALL, _QUIET, 110, anchor="end"),
        _text(MARGIN, 90, post.name, size, _BRIGHT, bold=True),
    ]
    y = 118.0
    for text, colour in lines:
        shapes.append(_text(MARGIN, y, text, _BODY, colour))
        y += 22
    flags = _wrapped(flags_text(post.flags), _BODY, _INNER - 32, 1 if several else 2)
    for own in post.sides[:MAX_SIDES] if several else ():
        vram = f"VRAM {units.memory(own.vram_used_bytes)}" if own.vram_used_bytes else ""
        flags += _wrapped(f"{own.label}: {flags_text(own.flags, 'no other flag')} {vram}", _BODY, _INNER - 32, 1)
    height = 21.0 * len(flags) + 12
    shapes.append(_box(MARGIN, y - 12, _INNER, height, _PANEL, radius=8))
    for number, line in enumerate(flags):
        shapes.append(_text(MARGIN + 16, y + 9 + 21 * number, line, _BODY, _BRIGHT, _INNER - 32))
    return y + height, shapes


def _foot(post: Post) -> tuple[float, list[str]]:
    """What the run concludes, the doubts, and how to read the figures; and where the figures must end."""
    y = HEIGHT - 22.0
    meaning = "value, 95 % CI or range, n samples" if post.rows else ""
    shapes = [
        _text(MARGIN, y, f"measured by gpubox {post.gpubox or units.UNKNOWN}", _SMALL, _QUIET, _INNER / 2),
        _text(WIDTH - MARGIN, y, meaning, _SMALL, _QUIET, _INNER / 2, anchor="end"),
        _box(MARGIN, y - 20, _INNER, 1, _LINE),
    ]
    doubts = _wrapped("! " + "; ".join(post.doubts), 15, _INNER, 2) if post.doubts else []
    sentences = _wrapped(post.sentences[0], 15, _INNER, MAX_SENTENCES) if post.sentences else []
    y -= 36
    for line, colour in reversed([*((line, _TEXT) for line in sentences), *((line, _DOUBT) for line in doubts)]):
        shapes.append(_text(MARGIN, y, line, 15, colour))
        y -= 21
    return y - 4, shapes


# -- the figures ----------------------------------------------------------------------------------------------------


def _tiles_and_rows(post: Post) -> tuple[list[tuple[PostRow, int]], Sequence[PostRow]]:
    """The large figures (row, column): the first of each side, or those of the first row; and the rows of the table."""
    if len(post.sides) > 1:
        firsts = [next((row for row in post.rows if row.side == side.label), None) for side in post.sides]
        tiles = [(row, 0) for row in firsts if row and row.cells[0]][:MAX_TILES]
        return tiles, post.rows if len(post.columns) > 1 or len(post.rows) > len(tiles) else ()
    first, *others = post.rows
    return [(first, number) for number, cell in enumerate(first.cells) if cell][:MAX_TILES], others


def _tiles(post: Post, tiles: Sequence[tuple[PostRow, int]], top: float) -> Iterator[str]:
    """Figures in large letters, side by side."""
    width = _INNER / max(1, len(tiles))
    for place, (row, number) in enumerate(tiles):
        column, x = post.columns[number], MARGIN + place * width
        value, interval = figure(row.cells[number])
        colour = _COLOURS["tg"] if len(post.sides) > 1 else _colour(column, number)
        name = ", ".join(filter(None, (column.name, row.label or post.title)))
        baseline = top + 18 + 0.9 * _VALUE
        yield _box(x, top, 4, _TILE - 4, colour)
        yield _text(x + 18, top + 13, name, _SMALL, _QUIET, width - 30)
        drawn = fitted(value, _VALUE, width - 30)
        used = text_width(drawn, _VALUE)
        yield _text(x + 18, baseline, drawn, _VALUE, _BRIGHT, width - 30, bold=True)
        if column.unit and (left := width - 42 - used) > 30:
            yield _text(x + 28 + used, baseline, column.unit, 18, colour, left)
        yield _text(x + 18, baseline + 0.26 * _VALUE + 14, interval, _SMALL, _TEXT, width - 30)


def _figures(post: Post, rows: Sequence[PostRow], top: float, bottom: float) -> Iterator[str]:
    """Rows as a table, as many as there is room for."""
    places = math.floor((bottom - top - 22) / _ROW)
    if not rows or places < 1:
        return
    shown = rows[: places if len(rows) <= places else places - 1]
    label_width = min(max([110.0, *(text_width(row.label, _SMALL) + 14 for row in shown)]), 330.0)
    widths = [text_width(value, 15) + text_width(interval, 12) + 22 for row in shown for value, interval in map(
        figure, row.cells[:MAX_COLUMNS])]  # fmt: skip
    count = max(1, min(MAX_COLUMNS, len(post.columns), math.floor((_INNER - label_width) / max(widths, default=1.0))))
    width = (_INNER - label_width) / count
    for number, column in enumerate(post.columns[:count]):
        x = MARGIN + label_width + number * width
        best = max((abs(cell.value) for row in shown if (cell := row.cells[number])), default=0.0)
        yield _text(x, top + 14, column_title(column), _SMALL, _QUIET, width - 10)
        for line, row in enumerate(shown):
            yield from _cell(row.cells[number], x, top + 22 + line * _ROW, width - 10, best, _colour(column, number))
    for line, row in enumerate(shown):
        y = top + 22 + line * _ROW
        yield _box(MARGIN, y, _INNER, 1, _LINE, opacity=0.6)
        yield _text(MARGIN, y + 17, row.label, _SMALL, _TEXT, label_width - 12)
    if left_out := len(rows) - len(shown):
        more = f"{left_out} more rows are in the Markdown block"
        yield _text(MARGIN, top + 22 + len(shown) * _ROW + 17, more, _SMALL, _QUIET)


def _cell(estimate: Estimate | None, x: float, y: float, width: float, best: float, colour: str) -> Iterator[str]:
    value, interval = figure(estimate)
    if estimate and best > 0 and math.isfinite(estimate.value):
        length = max(0.0, estimate.value / best) * width
        yield _box(x - 4, y + 3, length, 19, colour, radius=3, opacity=0.22)
    yield _text(x, y + 17, value, 15, _BRIGHT, width, bold=True)
    used = text_width(value, 15) + 10
    if estimate and width - used > 40:
        yield _text(x + used, y + 17, interval, 12, _TEXT, width - used)


def _colour(column: PostColumn, number: int) -> str:
    return _COLOURS.get(column.name) or _OTHER_COLOURS[number % len(_OTHER_COLOURS)]


# -- texts and shapes -----------------------------------------------------------------------------------------------


def text_width(text: str, size: float) -> float:
    """At most so wide is ``text`` drawn. East Asian wide letters and emoji take two letters."""
    return sum(_cells(letter) for letter in text) * _letter_width(size)


def fitted(text: str, size: float, width: float) -> str:
    """``text`` on one line, cut with an ellipsis to ``width``."""
    text = sanitize_line(text)
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _letter_width(size: float) -> float:
    return max(LETTER * size, round(0.605 * size))


def _cells(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" or ord(letter) > 0x1F000 else 1


def _wrapped(text: str, size: float, width: float, most: int) -> list[str]:
    """At most ``most`` lines; the last one is cut."""
    letters = max(8, math.floor(width / _letter_width(size)))
    lines = textwrap.wrap(sanitize_line(text), letters, break_on_hyphens=False) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [fitted(line, size, width) for line in lines]


def _text(
    x: float, y: float, text: str, size: float, colour: str, width: float = _INNER, *, anchor: str = "",
    bold: bool = False,
) -> str:  # fmt: skip
    """One line, cut to ``width``."""
    extra = (f' text-anchor="{anchor}"' if anchor else "") + (' font-weight="700"' if bold else "")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"{extra} xml:space="preserve">'
        f"{_clean(fitted(text, size, width))}</text>"
    )


def _box(x: float, y: float, width: float, height: float, colour: str, *, radius: float = 0, opacity: float = 1) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" fill="{colour}" '
        f'fill-opacity="{opacity:g}"/>'
    )


def _clean(text: str) -> str:
    return escape(sanitize_line(text))
