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
    flags_text,
    machine_text,
    side_text,
    vram_text,
)
from gpubox.bench.stats import Estimate
from gpubox.sanitize import sanitize_line

WIDTH, HEIGHT, MARGIN = 1200, 630, 44
LETTER = 0.62
"""Width of a letter over the font size, a little more than the widest font has."""
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


def post_svg(post: Post) -> str:
    """The card."""
    return "\n".join([_HEAD, f"<title>{_clean(f'{post.name}: {post.title}')}</title>", *_shapes(post), "</svg>", ""])


def text_width(text: str, size: float) -> float:
    """At most so wide is ``text`` drawn. East Asian wide letters and emoji take two letters."""
    return sum(_cells(letter) for letter in text) * size * LETTER


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
    bottom, foot = _foot(post)
    yield from foot
    if not post.rows:
        yield _text(MARGIN, (top + bottom) / 2, NO_FIGURE if not post.table else "", 22, _QUIET)
        yield from _plain_table(post, top, bottom)
        return
    columns = _chosen_columns(post.columns)
    rows = _chosen_rows(post)
    tiles = [number for number in columns if rows[0].cells[number]][:MAX_TILES]
    end = yield from _tiles(post, rows[0], tiles, top)
    yield from _figures(post, rows[1:], columns, end, bottom)


# -- above and below the figures ------------------------------------------------------------------------------------


def _head(post: Post) -> tuple[float, list[str]]:
    """Who was measured, on what, with which flags; where the figures begin."""
    shapes = [
        _text(MARGIN, 46, f"gpubox bench {post.kind}", _SMALL, _QUIET, _INNER / 2),
        _text(WIDTH - MARGIN, 46, post.measured_on, _SMALL, _QUIET, _INNER / 2, anchor="end"),
    ]
    name, size = post.name, 38.0
    while size > 22 and text_width(name, size) > _INNER:
        size -= 1
    shapes.append(_text(MARGIN, 92, name, size, _BRIGHT, _INNER, bold=True))
    engines = ", ".join(dict.fromkeys(side.engine or f"engine {units.UNKNOWN}" for side in post.sides))
    driver = f"driver {post.driver or units.UNKNOWN}"
    lines = [
        (
            "; ".join(dict.fromkeys(side.model.details(quant=len(post.sides) > 1) for side in post.sides)),
            _COLOURS["tg"],
        ),
        (f"{'; '.join(post.gpus) or f'card {units.UNKNOWN}'}, {driver}", _TEXT),
        (f"{machine_text(post)}; {engines}", _TEXT),
    ]
    several = len(post.sides) > 1
    if not several:
        side = post.sides[0]
        lines.append((f"context {context_text(side)}; VRAM {vram_text(post, side)}", _TEXT))
    y = 121.0
    for text, colour in lines:
        shapes.append(_text(MARGIN, y, text, _BODY, colour, _INNER))
        y += 23
    flags = _wrapped(flags_text(post), _BODY, _INNER - 32, 1 if several else 2)
    if several:
        for own in post.sides[:MAX_SIDES]:
            extra = f"; VRAM {units.memory(own.vram_used_bytes)}" if own.vram_used_bytes else ""
            flags += _wrapped(f"{own.label}: {side_text(own)}{extra}", _BODY, _INNER - 32, 1)
        if len(post.sides) > MAX_SIDES:
            flags.append(f"and {len(post.sides) - MAX_SIDES} more")
    height = 22.0 * len(flags) + 12
    shapes.append(_box(MARGIN, y - 12, _INNER, height, _PANEL, radius=8))
    for number, line in enumerate(flags):
        shapes.append(_text(MARGIN + 16, y + 9 + 22 * number, line, _BODY, _BRIGHT, _INNER - 32))
    return y - 12 + height + 14, shapes


def _foot(post: Post) -> tuple[float, list[str]]:
    """What the run concludes, the doubts, and how to read the figures; where the figures must end."""
    y = HEIGHT - 24.0
    meaning = "value, 95 % CI or range, n samples" if post.rows else ""
    shapes = [
        _text(MARGIN, y, f"measured by gpubox {post.gpubox or units.UNKNOWN}", _SMALL, _QUIET, _INNER / 2),
        _text(WIDTH - MARGIN, y, meaning, _SMALL, _QUIET, _INNER / 2, anchor="end"),
    ]
    y -= 12
    shapes.append(f'<path d="M{MARGIN} {y - 8:.1f}h{_INNER}" stroke="{_LINE}"/>')
    y -= 20
    doubts = [line for doubt in post.doubts[:3] for line in _wrapped(f"! {doubt}", 15, _INNER - 24, 1)]
    if len(post.doubts) > 3:
        doubts[-1] = fitted(f"! and {len(post.doubts) - 2} more reasons to doubt these figures", 15, _INNER - 24)
    if doubts:
        height = 21.0 * len(doubts) + 8
        shapes.append(_box(MARGIN, y - height + 8, 4, height, _DOUBT))
        for number, line in enumerate(reversed(doubts)):
            shapes.append(_text(MARGIN + 18, y - 21 * number, line, 15, _DOUBT, _INNER - 24))
        y -= height + 8
    lines = _conclusions(post, 2 if doubts or len(post.sides) > 2 else 3)
    for line in reversed(lines):
        shapes.append(_text(MARGIN, y, line, 15, _TEXT, _INNER))
        y -= 21
    return y - 6, shapes


def _conclusions(post: Post, most: int) -> list[str]:
    """The first sentences as lines; whole sentences, as far as they fit."""
    lines: list[str] = []
    for sentence in post.sentences:
        wrapped = _wrapped(sentence, 15, _INNER, most if not lines else 99)
        if len(lines) + len(wrapped) > most:
            break
        lines += wrapped
    return lines


# -- the figures ----------------------------------------------------------------------------------------------------


def _tiles(post: Post, row: PostRow, tiles: Sequence[int], top: float) -> Iterator[str]:
    """The first row's figures in large letters. Returns where they end."""
    width = _INNER / max(1, len(tiles))
    for place, number in enumerate(tiles):
        column, x = post.columns[number], MARGIN + place * width
        value, interval = figure(row.cells[number])
        colour = _colour(column, number)
        yield _box(x, top + 4, 4, 78, colour)
        yield _text(x + 18, top + 17, column.name, _SMALL, _QUIET, width - 30)
        yield _text(x + 18, top + 58, value, 40, _BRIGHT, width - 130, bold=True)
        yield _text(x + 28 + text_width(value, 40), top + 58, column.unit, 18, colour, 118)
        yield _text(x + 18, top + 81, interval, _SMALL, _TEXT, width - 30)
    label = row.label or post.title
    yield _text(MARGIN, top + 106, label, _SMALL, _QUIET, _INNER)
    return top + 118


def _figures(post: Post, rows: Sequence[PostRow], columns: Sequence[int], top: float, bottom: float) -> Iterator[str]:
    """The other rows as a table, as many as there is room for."""
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


def _chosen_columns(columns: Sequence[PostColumn]) -> list[int]:
    return list(range(min(MAX_COLUMNS, len(columns))))


def _chosen_rows(post: Post) -> list[PostRow]:
    """The rows in the order of a card: the best first where they are rivals, else cold before warm."""
    if post.kind in ("sweep", "tune") and post.columns[0].better:
        sign = -1 if post.columns[0].better == "higher" else 1
        return sorted(post.rows, key=lambda row: sign * row.cells[0].value if row.cells[0] else math.inf)
    return sorted(post.rows, key=lambda row: ", warm," in f", {row.group},")


def _colour(column: PostColumn, number: int) -> str:
    return _COLOURS.get(column.name) or _OTHER_COLOURS[number % len(_OTHER_COLOURS)]


# -- shapes ---------------------------------------------------------------------------------------------------------


def _wrapped(text: str, size: float, width: float, most: int) -> list[str]:
    """At most ``most`` lines; the last one is cut."""
    letters = max(8, math.floor(width / (size * LETTER)))
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
