"""Untrusted text and tables as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubox.sanitize import sanitize_line


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; bars in the cells are escaped."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(markdown_text(text).replace('|', chr(92) + '|') for text in row)} |"


def markdown_text(text: str) -> str:
    """Untrusted text on one line: no tag, link or image. A code span is left as it is, because it renders none."""
    line = sanitize_line(text)
    if len(line) > 1 and line[0] == line[-1] == "`" and "`" not in line[1:-1]:
        return line
    return line.replace("<", "\\<").replace("[", "\\[")
