"""A post as one picture of 1200 x 630: an SVG of shapes and text without scripts, links and fonts of its own. Pure.

All text is monospaced, because then its width is known: a letter of every common monospaced font is 0.60 of the size
wide (DejaVu Sans Mono 0.602, the widest), and a text that is longer than its place is cut before it is drawn.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from gpubox import units
from gpubox.bench.report.post import Post, PostColumn, PostRow
from gpubox.bench.report.post_text import (
    NO_FIGURE,
    column_title,
    context_text,
    figure,
    flag_words,
    machine_text,
    side_words,
    vram_text,
)
from gpubox.bench.stats import Estimate
from gpubox.sanitize import sanitize_line

WIDTH, HEIGHT, MARGIN = 1200, 630, 44
LETTER = 0.62
"""Width of a letter over the font size, a little more than the widest font has; some viewers round it to pixels."""
MAX_COLUMNS, MAX_TILES, MAX_SIDES = 4, 3, 4
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
_ROW, _SMALL, _BODY = 25.0, 14.0, 16.0
_VERDICTS = frozenset({"ab", "sweep", "soak", "tune"})
"""The kinds whose first sentence is what they were run for."""
_Tile = tuple[PostRow, int]
"""A row and the number of a column."""


def post_svg(post: Post) -> str:
    """The card."""
    return "\n".join([_HEAD, f"<title>{_clean(f'{post.name}: {post.title}')}</title>", *_shapes(post), "</svg>", ""])


def text_width(text: str, size: float) -> float:
    """At most so wide is ``text`` drawn. East Asian wide letters and emoji take two letters."""
    return sum(_cells(letter) for letter in text) * letter_width(size)


def letter_width(size: float) -> float:
    """At most so wide is a letter of ``size``."""
    return max(LETTER * size, round(0.605 * size))


def fitted(text: str, size: float, width: float) -> str:
    """``text`` on one line, cut with an ellipsis to ``width``."""
    text = sanitize_line(text)
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _cells(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" or ord(letter) > 0x1F000 else 1


def _shapes(post: Post) -> Iterator[str]:
    yield _box(0, 0, WIDTH, HEIGHT, _BACKGROUND, radius=18)
    yield f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="18" fill="none" stroke="{_LINE}"/>'
    top, head = _head(post)
    yield from head
    bottom, foot = _foot(post, top)
    yield from foot
    if not post.rows:
        yield _text(MARGIN, (top + bottom) / 2, NO_FIGURE if not post.table else "", 22, _QUIET)
        yield from _plain_table(post, top, bottom)
        return
    rows = _ordered_rows(post)
    tiles, others = _tiles_and_rows(post, rows)
    if not others:
        size = 64.0
        yield from _tiles(post, tiles, (top + bottom - _tile_height(size)) / 2, size)
        return
    size = 40.0
    yield from _tiles(post, tiles, top, size)
    top += _tile_height(size) + 6
    if _label_below(post, tiles):
        yield _text(MARGIN, top + 8, tiles[0][0].label, _SMALL, _QUIET)
        top += 20
    yield from _figures(post, others, top, bottom)


# -- above and below the figures ------------------------------------------------------------------------------------


def _head(post: Post) -> tuple[float, list[str]]:
    """What was measured, on what, with which flags; and where the figures begin."""
    size = 38.0
    while size > 24 and text_width(post.name, size) > _INNER:
        size -= 1
    several = len(post.sides) > 1
    models = dict.fromkeys(
        side.model.details(quant=len({side.model for side in post.sides}) > 1) for side in post.sides
    )
    engines = dict.fromkeys(side.engine or f"engine {units.UNKNOWN}" for side in post.sides)
    lines = [
        ("; ".join(models), _COLOURS["tg"]),
        ("; ".join(post.gpus) or f"card {units.UNKNOWN}", _TEXT),
        (f"{machine_text(post)}; driver {post.driver or units.UNKNOWN}; {', '.join(engines)}", _TEXT),
    ]
    if not several:
        side = post.sides[0]
        lines.append((f"context {context_text(side)}; VRAM {vram_text(post, side)}", _TEXT))
    shapes = [
        _text(MARGIN, 46, f"gpubox bench {post.kind}: {post.title}", _SMALL, _QUIET, _INNER - 120),
        _text(WIDTH - MARGIN, 46, post.measured_on, _SMALL, _QUIET, 110, anchor="end"),
        _text(MARGIN, 90, _title(post.name, size), size, _BRIGHT, bold=True),
    ]
    y = 118.0
    for text, colour in lines:
        shapes.append(_text(MARGIN, y, text, _BODY, colour))
        y += 22
    flags = _filled(flag_words(post), _BODY, _INNER - 32, 1 if several else 2)
    for own in post.sides[:MAX_SIDES] if several else ():
        vram = (f"VRAM {units.memory(own.vram_used_bytes)}",) if own.vram_used_bytes else ()
        words = () if " ".join(own.flags or ()) in ("", own.label) and own.flags is not None else side_words(own)
        flags += _filled((f"{own.label}:", *words, *vram), _BODY, _INNER - 32, 1) if words or vram else []
    if len(post.sides) > MAX_SIDES:
        flags.append(f"and {len(post.sides) - MAX_SIDES} more")
    height = 21.0 * len(flags) + 12
    shapes.append(_box(MARGIN, y - 12, _INNER, height, _PANEL, radius=8))
    for number, line in enumerate(flags):
        shapes.append(_text(MARGIN + 16, y + 9 + 21 * number, line, _BODY, _BRIGHT, _INNER - 32))
    return y + height, shapes


def _title(name: str, size: float) -> str:
    """The name; a long one is cut before its last word, which is the quant."""
    head, _, last = name.rpartition(" ")
    room = _INNER - text_width(f" {last}", size)
    return f"{fitted(head, size, room)} {last}" if head and room > _INNER / 2 else name


def _filled(words: Sequence[str], size: float, width: float, most: int) -> list[str]:
    """The words as at most ``most`` lines; a line breaks only between them."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) <= width or not lines[-1] or len(lines) == most:
            lines[-1] = longer
        else:
            lines.append(word)
    return [fitted(line, size, width) for line in lines]


def _foot(post: Post, top: float) -> tuple[float, list[str]]:
    """What the run concludes, the doubts, and how to read the figures; and where the figures must end."""
    y = HEIGHT - 22.0
    meaning = "value, 95 % CI or range, n samples" if post.rows else ""
    shapes = [
        _text(MARGIN, y, f"measured by gpubox {post.gpubox or units.UNKNOWN}", _SMALL, _QUIET, _INNER / 2),
        _text(WIDTH - MARGIN, y, meaning, _SMALL, _QUIET, _INNER / 2, anchor="end"),
        f'<path d="M{MARGIN} {y - 20:.1f}h{_INNER}" stroke="{_LINE}"/>',
    ]
    y -= 36
    if post.doubts:
        doubts = _wrapped("! " + "; ".join(post.doubts), 15, _INNER - 18, 2)
        shapes.append(_box(MARGIN, y - 21 * len(doubts) + 5, 4, 21.0 * len(doubts), _DOUBT))
        for number, line in enumerate(reversed(doubts)):
            shapes.append(_text(MARGIN + 18, y - 21 * number, line, 15, _DOUBT, _INNER - 18))
        y -= 21 * len(doubts) + 5
    needed = _tile_height(40) + 30 + _ROW * max(0, len(post.rows) - 1)
    room = math.floor((y - top - needed) / 21)
    for line in reversed(_conclusions(post, min(3, max(room, 2 if post.kind in _VERDICTS else 0)))):
        shapes.append(_text(MARGIN, y, line, 15, _TEXT))
        y -= 21
    return y - 4, shapes


def _conclusions(post: Post, most: int) -> list[str]:
    """The first sentences as lines: whole sentences, as many as fit; of a verdict at least the beginning."""
    lines: list[str] = []
    for number, sentence in enumerate(post.sentences):
        wrapped = _wrapped(sentence, 15, _INNER, 99)
        if number == 0 and post.kind in _VERDICTS:
            wrapped = _wrapped(sentence, 15, _INNER, max(1, most))
        if len(lines) + len(wrapped) > most:
            break
        lines += wrapped
    return lines


# -- the figures ----------------------------------------------------------------------------------------------------


def _tile_height(size: float) -> float:
    return 1.16 * size + 40


def _tiles_and_rows(post: Post, rows: Sequence[PostRow]) -> tuple[list[_Tile], Sequence[PostRow]]:
    """The large figures: the first of each side, or those of the first row; and the rows of the table."""
    if len(post.sides) > 1:
        firsts = [next((row for row in rows if row.side == side.label), None) for side in post.sides]
        tiles = [(row, 0) for row in firsts if row and row.cells[0]][:MAX_TILES]
        return tiles, rows if len(post.columns) > 1 or len(rows) > len(tiles) else ()
    return [(rows[0], number) for number, cell in enumerate(rows[0].cells) if cell][:MAX_TILES], rows[1:]


def _label_below(post: Post, tiles: Sequence[_Tile]) -> bool:
    """Whether the row's label is too long to stand in each tile, and is the same for all."""
    width = _INNER / max(1, len(tiles)) - 30
    names = [f"{post.columns[number].name}, {row.label}" for row, number in tiles]
    return len({row.label for row, _ in tiles}) == 1 and any(text_width(name, _SMALL) > width for name in names)


def _tiles(post: Post, tiles: Sequence[_Tile], top: float, size: float) -> Iterator[str]:
    """Figures in large letters, side by side."""
    width = _INNER / max(1, len(tiles))
    is_below = size < 64 and _label_below(post, tiles)
    for place, (row, number) in enumerate(tiles):
        column, x = post.columns[number], MARGIN + place * width
        value, interval = figure(row.cells[number])
        colour = _COLOURS["tg"] if len(post.sides) > 1 else _colour(column, number)
        label = "" if is_below else row.label or post.title
        name = ", ".join(filter(None, (column.name, label)))
        baseline = top + 18 + 0.9 * size
        yield _box(x, top, 4, _tile_height(size) - 4, colour)
        yield _text(x + 18, top + 13, name, _SMALL, _QUIET, width - 30)
        drawn = fitted(value, size, width - 30)
        used = text_width(drawn, size)
        yield _text(x + 18, baseline, drawn, size, _BRIGHT, width - 30, bold=True)
        if column.unit and (left := width - 42 - used) > 30:
            yield _text(x + 28 + used, baseline, column.unit, 18, colour, left)
        yield _text(x + 18, baseline + 0.26 * size + 14, interval, _SMALL, _TEXT, width - 30)


def _figures(post: Post, rows: Sequence[PostRow], top: float, bottom: float) -> Iterator[str]:
    """Rows as a table, as many as there is room for."""
    columns: Sequence[int] = range(min(MAX_COLUMNS, len(post.columns)))
    places = math.floor((bottom - top - 22) / _ROW)
    if not rows or places < 1:
        return
    shown = rows[: places if len(rows) <= places else places - 1]
    wanted = max((text_width(row.label, _SMALL) for row in shown), default=0.0)
    label_width = min(max(110.0, wanted + 14), 330.0)
    while len(columns) > 1 and (_INNER - label_width) / len(columns) < _cell_width(shown, columns):
        columns = columns[:-1]
    width = (_INNER - label_width) / len(columns)
    for place, number in enumerate(columns):
        title = column_title(post.columns[number])
        yield _text(MARGIN + label_width + place * width, top + 14, title, _SMALL, _QUIET, width - 10)
    top += 22
    for line, row in enumerate(shown):
        y = top + line * _ROW
        yield f'<path d="M{MARGIN} {y:.1f}h{_INNER}" stroke="{_LINE}" stroke-opacity="0.6"/>'
        yield _text(MARGIN, y + 17, row.label, _SMALL, _TEXT, label_width - 12)
        for place, number in enumerate(columns):
            best = max((abs(other.cells[number].value) for other in shown if other.cells[number]), default=0.0)  # type: ignore[union-attr]
            yield from _cell(row.cells[number], MARGIN + label_width + place * width, y, width - 10, best,
                             _colour(post.columns[number], number))  # fmt: skip
    left_out = len(rows) - len(shown)
    if left_out > 0:
        more = f"{left_out} more rows are in the Markdown block"
        yield _text(MARGIN, top + len(shown) * _ROW + 17, more, _SMALL, _QUIET, _INNER)


def _cell(estimate: Estimate | None, x: float, y: float, width: float, best: float, colour: str) -> Iterator[str]:
    value, interval = figure(estimate)
    if estimate and best > 0 and math.isfinite(estimate.value):
        length = max(0.0, estimate.value / best) * width
        yield _box(x - 4, y + 3, length, 19, colour, radius=3, opacity=0.22)
    yield _text(x, y + 17, value, 15, _BRIGHT, width, bold=True)
    used = text_width(value, 15) + 10
    if estimate and width - used > 40:
        yield _text(x + used, y + 17, interval, 12, _TEXT, width - used)


def _cell_width(rows: Sequence[PostRow], columns: Sequence[int]) -> float:
    """Of the widest cell with its interval."""
    widths = []
    for row in rows:
        for number in columns:
            value, interval = figure(row.cells[number])
            widths.append(text_width(value, 15) + text_width(interval, 12) + 22)
    return max(widths, default=0.0)


def _plain_table(post: Post, top: float, bottom: float) -> Iterator[str]:
    """llama-bench's rows."""
    for number, row in enumerate(post.table[: math.floor((bottom - top) / _ROW)]):
        for place, cell in enumerate(row):
            width = _INNER / len(row)
            colour = _QUIET if number == 0 else _BRIGHT if place else _TEXT
            yield _text(MARGIN + place * width, top + 17 + number * _ROW, cell, _BODY, colour, width - 12)


def _ordered_rows(post: Post) -> list[PostRow]:
    """The best first where the rows are rivals; else one prompt over all depths, other prompts, a warm cache."""
    if post.kind in ("sweep", "tune") and post.columns[0].better:
        sign = -1 if post.columns[0].better == "higher" else 1
        return sorted(post.rows, key=lambda row: sign * row.cells[0].value if row.cells[0] else math.inf)
    first = post.rows[0].group.partition(",")[0]

    def place(row: PostRow) -> tuple[bool, bool]:
        return ", warm," in row.group, ", cold," in row.group and row.group.partition(",")[0] != first

    return sorted(post.rows, key=place) if post.kind == "speed" else list(post.rows)


def _colour(column: PostColumn, number: int) -> str:
    return _COLOURS.get(column.name) or _OTHER_COLOURS[number % len(_OTHER_COLOURS)]


# -- shapes ---------------------------------------------------------------------------------------------------------


def _wrapped(text: str, size: float, width: float, most: int) -> list[str]:
    """At most ``most`` lines; the last one is cut."""
    letters = max(8, math.floor(width / letter_width(size)))
    lines = textwrap.wrap(sanitize_line(text), letters, break_on_hyphens=False) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], fitted(" ".join(lines[most - 1 :]), size, width)]
    return [fitted(line, size, width) for line in lines]


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    colour: str,
    width: float = _INNER,
    *,
    anchor: str = "",
    bold: bool = False,
) -> str:
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
