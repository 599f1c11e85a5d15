"""A text split into words as a shell does, nothing expanded and an open quote no error (compose, llama-swap)."""

from __future__ import annotations

import re

_PIECE = re.compile(r"""\s+|'([^']*)'?|"((?:\\.|[^"\\])*)"?|\\(.)|([^\s'"\\]+|\\)""", re.S)


def split_words(text: str) -> list[str]:
    """The words of ``text``; a quote that is never closed ends with the text."""
    words: list[str] = []
    open_word = False
    for piece in _PIECE.finditer(re.sub(r"\\[ \t]*\n", " ", text)):
        if piece[0].isspace():
            open_word = False
            continue
        single, double, escaped, plain = piece.groups()
        if double is not None:
            double = re.sub(r'\\(["\\$`])', r"\1", double)
        part = next(part for part in (single, double, escaped, plain) if part is not None)
        words[-1:] = [words[-1] + part] if open_word else [*words[-1:], part]
        open_word = True
    return words
