"""Styled text broken to a width, at words where there are any, counted in cells. Pure."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

from gpubox.tui.styled_lines import StyledLine, StyledText

_WORDS = re.compile(r"\s+|\S+")


def wrap(found: StyledLine, width: int, first: StyledLine = (), rest: StyledLine = ()) -> list[StyledLine]:
    """``found`` on lines of at most ``width`` cells, with ``first`` before the first and ``rest`` before the others."""
    width = max(4, width - max(_cells(first), _cells(rest)))
    rows: list[list[StyledText]] = [[]]
    used, spaced = 0, False
    for text, style in found:
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
                *full, word = chop_cells(word, width) or [""]
                for piece in full:
                    rows[-1].append((piece, style))
                    rows.append([])
                used, size = 0, cell_len(word)
            rows[-1].append((word, style))
            used, spaced = used + size, False
    return [(*(first if not at else rest), *_merged(row)) for at, row in enumerate(rows)]


def wrap_hard(found: StyledLine, width: int) -> list[StyledLine]:
    """``found`` cut into pieces of ``width`` cells, as code has to be: no space is lost."""
    width = max(4, width)
    rows: list[list[StyledText]] = [[]]
    used = 0
    for text, style in found:
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
    return [_merged(row, strip=False) for row in rows]


def _new_row(rows: list[list[StyledText]], *, glued: bool) -> int:
    """Begins a row. Spans that stand together without a space move together; returns the cells they take."""
    row, moved = rows[-1], list[StyledText]()
    while glued and row and not row[-1][0].isspace():
        text, style = row.pop()
        head, space, tail = _last_word(text)
        if space:
            row.append((head, style))
            moved.insert(0, (tail, style))
            break
        moved.insert(0, (text, style))
    if not row:  # one long word fills the row: it is broken where it stands
        row[:], moved = moved, []
    rows.append([span for span in moved if span[0]])
    return sum(cell_len(text) for text, _ in rows[-1])


def _last_word(text: str) -> tuple[str, bool, str]:
    stripped = text.rstrip()
    at = max(stripped.rfind(" "), stripped.rfind("\t")) + 1
    if stripped != text or not at:
        return text, stripped != text, ""
    return text[:at], True, text[at:]


def _merged(row: list[StyledText], *, strip: bool = True) -> StyledLine:
    """The spans with equal neighbours as one, without spaces at the end unless ``strip`` is false."""
    merged: list[StyledText] = []
    for text, style in row:
        if merged and merged[-1][1] == style:
            merged[-1] = (merged[-1][0] + text, style)
        elif text:
            merged.append((text, style))
    while strip and merged and not (stripped := merged[-1][0].rstrip()):
        merged.pop()
    if strip and merged and len(stripped) < len(merged[-1][0]):
        merged[-1] = (stripped, merged[-1][1])
    return tuple(merged)


def _cells(found: StyledLine) -> int:
    return sum(cell_len(text) for text, _ in found)
