"""Lines of untrusted text: cleaned, cut to a sane length, and wrapped to a width in cells. Pure."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

from gpubox.sanitize import sanitize_line
from gpubox.tui.styled_lines import StyledLine, StyledText, cell_width, merge_neighbours

LINE_CHARS = 20_000
"""Longer lines are cut: nobody reads a megabyte on one line, and wrapping it would block the screen."""
_WORDS = re.compile(r"\s+|\S+")


def cut_long_line(line: str) -> str:
    """``line`` cut after ``LINE_CHARS`` characters, with a count of the rest."""
    if len(line) <= LINE_CHARS:
        return line
    return f"{line[:LINE_CHARS]} … {len(line) - LINE_CHARS:,} more characters"


def output_lines(text: str) -> list[str]:
    """The lines of a program's output. If a line was overwritten (``\\r``), only its last state is kept."""
    lines = [sanitize_line(cut_long_line(line.removesuffix("\r").rpartition("\r")[2])) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def wrap(line: StyledLine, width: int, first: StyledLine = (), rest: StyledLine = ()) -> list[StyledLine]:
    """Wraps ``line`` at words to at most ``width`` cells. ``first`` and ``rest`` are the prefixes of its rows."""
    width = max(4, width - max(cell_width(first), cell_width(rest)))
    rows: list[list[StyledText]] = [[]]
    used, spaced = 0, False
    for text, style in line:
        if text and used + len(text) <= width and text.isascii() and "\n" not in text:
            rows[-1].append((text, style))
            used, spaced = used + len(text), text[-1].isspace()
            continue
        for word in _WORDS.findall(text):
            if word.isspace():
                breaks = word.count("\n")
                if breaks:
                    rows += [[] for _ in range(breaks)]
                    used = 0
                elif used < width:
                    rows[-1].append((word[: width - used], style))
                    used += min(len(word), width - used)
                spaced = True
                continue
            size = len(word) if word.isascii() else cell_len(word)
            if used + size > width and used:
                used = _new_row(rows, glued=not spaced)
            if used + size > width:
                if used:
                    rows.append([])
                *full_rows, word = chop_cells(word, width) or [""]
                for part in full_rows:
                    rows[-1].append((part, style))
                    rows.append([])
                used, size = 0, cell_len(word)
            rows[-1].append((word, style))
            used, spaced = used + size, False
    return [(*(first if not at else rest), *_strip_end(merge_neighbours(row))) for at, row in enumerate(rows)]


def wrap_hard(line: StyledLine, width: int) -> list[StyledLine]:
    """Wraps ``line`` after exactly ``width`` cells, as code needs it: no space is dropped."""
    width = max(4, width)
    rows: list[list[StyledText]] = [[]]
    used = 0
    for text, style in line:
        size = len(text) if text.isascii() else cell_len(text)
        if used + size <= width:
            rows[-1].append((text, style))
            used += size
            continue
        for char in text:
            size = 1 if char.isascii() else cell_len(char)
            if used + size > width:
                rows.append([])
                used = 0
            rows[-1].append((char, style))
            used += size
    return [merge_neighbours(row) for row in rows]


def _new_row(rows: list[list[StyledText]], *, glued: bool) -> int:
    """Starts a row with the spans that touch the next word without a space; returns their cells."""
    row, moved = rows[-1], list[StyledText]()
    while glued and row and not row[-1][0].isspace():
        text, style = row.pop()
        head, space, tail = _last_word(text)
        if space:
            row.append((head, style))
            moved.insert(0, (tail, style))
            break
        moved.insert(0, (text, style))
    if not row:  # one long word fills the whole row: break it here
        row[:], moved = moved, []
    rows.append([span for span in moved if span[0]])
    return cell_width(tuple(rows[-1]))


def _last_word(text: str) -> tuple[str, bool, str]:
    stripped = text.rstrip()
    at = max(stripped.rfind(" "), stripped.rfind("\t")) + 1
    if stripped != text or not at:
        return text, stripped != text, ""
    return text[:at], True, text[at:]


def _strip_end(line: StyledLine) -> StyledLine:
    """``line`` without spaces at its end."""
    while line and line[-1][0].isspace():
        line = line[:-1]
    return (*line[:-1], (line[-1][0].rstrip(), line[-1][1])) if line else ()
