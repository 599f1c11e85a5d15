"""What a model or a program wrote, as lines that a terminal cannot act on. Pure."""

from __future__ import annotations

from gpubox.sanitize import sanitize_line

LINE_CHARS = 20_000
"""A line is cut here: nobody reads further, and a megabyte on one line must not be wrapped."""

clean = sanitize_line
"""One line of what a model or a program said."""


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
