"""What a model or a program wrote, as lines that a terminal cannot act on. Pure."""

from __future__ import annotations

import re

from gpubox.tui.text import plain

LINE_CHARS = 20_000
"""A line is cut here: nobody reads further, and a megabyte on one line must not be wrapped."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
# Joiners and variation selectors: terminals do not agree on how wide what they join is.
_JOINERS = dict.fromkeys([0x200C, 0x200D, 0xFE0E, 0xFE0F])


def clean(line: str) -> str:
    """One line: escape sequences gone, other control characters as their pictures, joined emoji apart."""
    if line.isascii() and line.isprintable():
        return line
    if "\x1b" in line or "\x9b" in line:
        line = _ESCAPES.sub("", line)
    return plain(line.translate(_JOINERS))


def cut(line: str) -> str:
    """``line`` without what is far beyond what anybody reads."""
    if len(line) <= LINE_CHARS:
        return line
    return f"{line[:LINE_CHARS]} … {len(line) - LINE_CHARS:,} more characters"


def clean_lines(text: str) -> list[str]:
    """The lines of a program's output. Of a line that was overwritten (``\\r``) what stood there last."""
    found = []
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if "\r" in line:
            line = line[line.rfind("\r") + 1 :]
        found.append(clean(cut(line)))
    while found and not found[-1]:
        found.pop()
    return found
