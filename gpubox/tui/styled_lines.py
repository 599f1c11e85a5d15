"""Lines of styled text as plain tuples: cheap to make, exact to compare. Short texts for narrow places. Pure.

Textual's Content compares only its text. A pane that repaints only what changed must see a change of colour too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import accumulate, groupby

from rich.cells import cell_len, chop_cells, set_cell_size

from gpubox import units
from gpubox.sanitize import sanitize_line
from gpubox.views.marks import Mark

StyledText = tuple[str, str]
"""Text, and its style in Textual's markup (``bold $primary``); an empty style is the widget's own."""
StyledLine = tuple[StyledText, ...]

_WORDS = re.compile(r"\n|[^\S\n]+|\S+")
QUIET = "$quiet"
GAP = "   "
ROLE_STYLES = {
    "good": "$success",
    "doubt": "$warning",
    "bad": "$error",
    "quiet": QUIET,
    "busy": "$accent",
    "offer": "$primary",
}
"""The role of a mark -> its style."""


def marked(mark: Mark) -> StyledText:
    """A mark in its colour."""
    return (mark.glyph, ROLE_STYLES[mark.role])


def styled_line(*texts: StyledText | str) -> StyledLine:
    """A line of texts; a str has the widget's own style. Empty texts are dropped."""
    pairs = [(text, "") if isinstance(text, str) else text for text in texts]
    return tuple(pair for pair in pairs if pair[0])


def fact(label: str, text: str | None, unit: str = "", style: str = "") -> StyledLine:
    """A text between a quiet label and a quiet unit; empty if there is no text."""
    return styled_line((label, QUIET), (text, style), (unit, QUIET)) if text else ()


FIGURE = "figure="
"""In a style: the texts are this figure of ``views.figures``."""


def figure(name: str, line: StyledLine) -> StyledLine:
    """The line as a figure that can be chosen and explained."""
    mark = FIGURE + name.replace(" ", "_")
    return tuple((text, f"{style} {mark}".lstrip()) for text, style in line)


def figure_of(style: str) -> str:
    """The figure that a style marks; empty: none."""
    return style.partition(FIGURE)[2].partition(" ")[0].replace("_", " ")


def plain_style(style: str) -> str:
    """The style without the mark of a figure, as Textual reads it."""
    return " ".join(word for word in style.split() if not word.startswith(FIGURE))


def cell_width(line: StyledLine) -> int:
    """The width of a line in terminal cells."""
    return sum(cell_len(text) for text, _ in line)


def join_lines(parts: Iterable[StyledLine], gap: str = GAP) -> StyledLine:
    """The non-empty parts as one line, with ``gap`` between them."""
    texts: list[StyledText] = []
    for part in parts:
        if part:
            texts += [(gap, ""), *part] if texts else part
    return tuple(texts)


def labelled_line(label: str, line: StyledLine, label_cells: int) -> StyledLine:
    """A quiet label before the line; ``—`` if the line is empty."""
    return styled_line((label.ljust(label_cells), QUIET)) + (line or styled_line((units.UNKNOWN, QUIET)))


def merge_neighbours(texts: Iterable[StyledText]) -> StyledLine:
    """The texts, with neighbours of the same style joined. Empty texts are dropped."""
    shown = [text for text in texts if text[0]]
    return tuple(("".join(text for text, _ in run), style) for style, run in groupby(shown, key=lambda text: text[1]))


def truncate_line(line: StyledLine, width: int) -> StyledLine:
    """The line cut to ``width`` cells, with an ellipsis if something was cut."""
    if cell_width(line) <= width:
        return line
    kept: list[StyledText] = []
    room = max(0, width - 1)
    for text, style in line:
        size = cell_len(text)
        if size > room:
            kept.append((set_cell_size(text, room).rstrip() + "…", style))
            break
        kept.append((text, style))
        room -= size
    return styled_line(*kept) if width > 0 else ()


def pad_line(line: StyledLine, width: int) -> StyledLine:
    """The line cut or filled up to exactly ``width`` cells."""
    line = truncate_line(line, width)
    missing = width - cell_width(line)
    return (*line, (" " * missing, "")) if missing > 0 else line


def first_that_fits(lines: Sequence[StyledLine], width: int) -> StyledLine:
    """The first of the lines that fits: the last says the same in the fewest words."""
    return next((line for line in lines if cell_width(line) <= width), truncate_line(lines[-1], width))


def fit_by_priority(parts: Sequence[tuple[int, StyledLine]], width: int, gap: str = GAP) -> StyledLine:
    """Joins (priority, part) pairs in their order; drops the lowest priorities until the line fits ``width``."""
    kept = [(priority, part) for priority, part in parts if part]
    if cell_width(join_lines([part for _, part in kept], gap)) > width:
        gap = gap[:2]
    while len(kept) > 1 and cell_width(join_lines([part for _, part in kept], gap)) > width:
        del kept[min(range(len(kept)), key=lambda i: kept[i][0])]
    return truncate_line(join_lines([part for _, part in kept], gap), width)


def wrap_parts(parts: Iterable[StyledLine], width: int, gap: str = GAP) -> list[StyledLine]:
    """The parts on as few lines as ``width`` allows, broken between parts; inside a part only if it is longer."""
    lines: list[StyledLine] = []
    for part in parts:
        if not part:
            continue
        if lines and cell_width(lines[-1]) + len(gap) + cell_width(part) <= width:
            lines[-1] = join_lines([lines[-1], part], gap)
        else:
            lines += wrap(part, width)
    return lines


LEAST_TEXT_CELLS = 16


def wrap_text(
    text: str, width: int, style: str = "", head: StyledLine = (), *, indent: str = "", rest: str | None = None
) -> list[StyledLine]:
    """A sentence on as many lines as it needs, behind ``head``: what states a reason is never cut.

    ``indent`` stands before its lines, ``rest`` before all but the first.
    """
    line = styled_line((sanitize_line(text), style))
    if indent or rest is not None:
        return wrap(line, width, styled_line(indent), styled_line(indent if rest is None else rest))
    before: StyledLine = (*head, (GAP, "")) if head else ()
    if head and width - cell_width(before) < min(LEAST_TEXT_CELLS, cell_width(line)):
        return [head, *wrap(line, width)]
    return wrap(line, width, before)


def wrap(line: StyledLine, width: int, first: StyledLine = (), rest: StyledLine = ()) -> list[StyledLine]:
    """Wraps ``line`` at words to at most ``width`` cells. ``first`` and ``rest`` are the prefixes of its rows."""
    width = max(4, width - max(cell_width(first), cell_width(rest)))
    text = "".join(text for text, _ in line)
    starts, used = [0], 0
    for match in _WORDS.finditer(text):
        word, at = match[0], match.start()
        if word == "\n":
            starts.append(match.end())
            used = 0
            continue
        size = cell_len(word)
        if used and used + size > width and not word.isspace():
            starts.append(at)
            used = 0
        if not used and size > width:
            *full_rows, word = chop_cells(word, width)
            for piece in full_rows:
                at += len(piece)
                starts.append(at)
            size = cell_len(word)
        used += size
    rows = _cut(line, starts)
    return [(*(rest if at else first), *_strip_end(row)) for at, row in enumerate(rows)]


def wrap_hard(line: StyledLine, width: int) -> list[StyledLine]:
    """Wraps ``line`` after exactly ``width`` cells, as code needs it: no space is dropped."""
    pieces = chop_cells("".join(text for text, _ in line), max(4, width)) or [""]
    return _cut(line, [0, *accumulate(map(len, pieces[:-1]))])


def _cut(line: StyledLine, starts: Sequence[int]) -> list[StyledLine]:
    """``line`` in rows, which begin at these characters."""
    rows: list[list[StyledText]] = [[]]
    position = 0
    for text, style in line:
        while len(rows) < len(starts) and starts[len(rows)] <= position + len(text):
            cut = starts[len(rows)] - position
            rows[-1].append((text[:cut], style))
            rows.append([])
            text, position = text[cut:], position + cut
        rows[-1].append((text, style))
        position += len(text)
    return [merge_neighbours(row) for row in rows]


def _strip_end(line: StyledLine) -> StyledLine:
    """``line`` without spaces at its end."""
    while line and line[-1][0].isspace():
        line = line[:-1]
    return (*line[:-1], (line[-1][0].rstrip(), line[-1][1])) if line else ()


def dimmed(line: StyledLine) -> StyledLine:
    """The line in the style of an old reading."""
    return tuple((text, f"{style} dim".strip()) for text, style in line)


def gauge(fraction: float, width: int, style: str) -> StyledLine:
    """A bar of ``width`` cells, ``fraction`` (0 to 1) of them filled."""
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return styled_line(("━" * filled, style), ("─" * (width - filled), "$line"))


def sanitize_to_width(text: str | None, width: int) -> str:
    """Text from outside without control characters, cut to ``width`` cells."""
    shown = sanitize_line(text or "")
    return shown if cell_len(shown) <= width else set_cell_size(shown, max(0, width - 1)).rstrip() + "…"


def shorten(text: str, width: int) -> str:
    """``text`` cut to ``width`` characters, at a word boundary if there is one, with an ellipsis."""
    if len(text) <= width:
        return text
    cut = text[: max(0, width - 1)]
    space = cut.rfind(" ")
    return (cut[:space] if space > width // 2 else cut).rstrip(" ,:;.") + "…"


def part_of_total(part: float | None, total: float | None, text: Callable[[float | None], str] = units.memory) -> str:
    """``0.6 of 1.9 GiB``: the unit is written once if both have the same. ``text`` formats one number."""
    part_text, total_text = text(part), text(total)
    number, _, unit = part_text.partition(" ")
    return f"{number if unit and total_text.endswith(unit) else part_text} of {total_text}"


def block_bar(fraction: float, width: int) -> str:
    """A bar of ``width`` cells, ``fraction`` (0 to 1) of them filled."""
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return "▓" * filled + "░" * (width - filled)


def time_or_date(iso: str) -> str:
    """A moment as lists show it: the time today, else the date."""
    try:
        at = datetime.fromisoformat(iso).astimezone()
    except ValueError:
        return ""
    today = datetime.now().astimezone().date()
    if at.date() == today:
        return f"{at:%H:%M}"
    return f"{at:%d %b}" if at.year == today.year else f"{at:%Y-%m}"
