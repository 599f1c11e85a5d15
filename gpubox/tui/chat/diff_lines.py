"""Changes as lines: one line for each file, and unified diffs with line numbers, tints and syntax colours. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubox.sandbox.changes import describe
from gpubox.sanitize import sanitize_line, show_name
from gpubox.tui.chat.markdown import LINE_CHARS, cut_long_line, highlight_code
from gpubox.tui.styled_lines import (
    StyledLine,
    cell_width,
    marked,
    pad_line,
    sanitize_to_width,
    styled_line,
    truncate_line,
    wrap_hard,
    wrap_text,
)
from gpubox.views.changes import change_mark, doubt, what_changed

if TYPE_CHECKING:
    from gpubox.agent.events import ChangedFile
    from gpubox.sandbox.changes import Change

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@ ?(.*)")
_TINTS = {"+": ("$success", "on $diff-added"), "-": ("$error", "on $diff-removed"), " ": ("$quiet", "")}
"""First character of a line -> style of its number and sign, and what lies under it."""
COUNT_CELLS = 12
"""Kept for the counts behind a path."""
UNREAD_BYTES = 4 << 20
"""Before and after: more without hunks may well be a text, which is compared up to this."""
DIFF_LINES = 2000
"""Lines of a diff that are laid out; the rest is counted."""
FILE_TEXTS = ("content", "edits", "old", "new", "old_string", "new_string", "oldString", "newString")
"""Arguments of tools that a diff shows better."""


def diff_rows(lines: Sequence[str], path: str, width: int, *, dim: bool = False) -> list[StyledLine]:
    """The rows of a unified diff of the file ``path``. Nothing of a line is hidden: the owner decides by it.

    ``dim``: it is not chosen. What stands before the first hunk is left out.
    """
    rows: list[StyledLine] = []
    start = next((index for index, line in enumerate(lines) if line.startswith("@@")), 0)
    shown = [cut_long_line(line.expandtabs(4)) for line in lines[start : start + DIFF_LINES]]
    language = path.rpartition("/")[2].rpartition(".")[2]
    code = highlight_code("\n".join("" if line.startswith("@@") else line[1:] for line in shown), language)
    old = new = 1
    cells = len(str(max([1, *(int(match[2]) for line in shown if (match := _HUNK.match(line)))]) + len(shown)))
    for line, source in zip(shown, code, strict=True):
        if match := _HUNK.match(line):
            old, new = int(match[1]), int(match[2])
            title = styled_line((f"{'':>{cells}} ╌╌ line {new:,} ", "$primary"), (sanitize_line(match[3]), "$quiet"))
            rows.append(truncate_line(title, width))
            continue
        sign = line[:1] if line[:1] in ("+", "-") else " "
        number = f"{'' if line.startswith(chr(92)) else old if sign == '-' else new:>{cells}} {sign} "
        old, new = old + (sign != "+"), new + (sign != "-")
        edge, tint = _TINTS[sign]
        for index, part in enumerate(wrap_hard(source, width - len(number))):
            gutter: StyledLine = ((number if not index else " " * len(number), edge),)
            row = (*gutter, *(((text, "$quiet") for text, _ in part) if dim else part))
            if tint and not dim:
                row = tuple((text, f"{style} {tint}".strip()) for text, style in pad_line(row, width))
            rows.append(row)
    if len(lines) - start > DIFF_LINES:
        rows.append(((f"… {len(lines) - start - DIFF_LINES:,} more lines", "$quiet"),))
    return rows


def is_shown_whole(change: Change) -> bool:
    """Whether ``change_rows`` has all lines of a text."""
    if not change.hunks:
        return (change.old_bytes or 0) + (change.new_bytes or 0) <= UNREAD_BYTES
    return all(len(hunk.lines) < DIFF_LINES and max(map(len, hunk.lines)) <= LINE_CHARS for hunk in change.hunks)


def file_line(change: Change | ChangedFile, width: int, before: StyledLine = (), *, cells: int = 0) -> StyledLine:
    """One file: ``M src/parse.py   +12 −3``, and what is in doubt about it. ``cells``: of the longest path."""
    name, counts, why = show_name(change.path), _coloured(what_changed(change)), doubt(change)
    room = max(12, min(max(cells, len(name)), width - cell_width(before) - max(COUNT_CELLS, cell_width(counts)) - 4))
    path = sanitize_to_width(name, room).ljust(min(cells, room))
    line: StyledLine = (*before, marked(change_mark(change)), (f" {path}", ""), ("  ", ""), *counts)
    left = width - cell_width(line) - 2
    if len(why) > left:  # the diff has the whole sentence
        why = "conflict" if getattr(change, "conflict", "") else "runs by itself"
    return (*line, (f"  {sanitize_to_width(why, left)}", "$warning")) if why and left >= 8 else line


def _coloured(counts: str) -> StyledLine:
    styles = {"+": "$success", "−": "$error"}
    return tuple(
        (f"{' ' if index else ''}{word}", styles.get(word[:1], "$quiet"))
        for index, word in enumerate(counts.split(" "))
    )


def change_rows(change: Change, width: int, chosen: frozenset[int] | None = None) -> list[StyledLine]:
    """The whole diff of one file. ``chosen``: the hunks that are; ``None``: all."""
    rows: list[StyledLine] = []
    if why := doubt(change):
        rows += wrap_text(f"{why[0].upper()}{why[1:]}.", width, "$warning")
    for hunk in change.hunks:
        dim = chosen is not None and hunk.index not in chosen
        rows += diff_rows((hunk.header, *hunk.lines), change.path, width, dim=dim)
    return rows if change.hunks else [*rows, *wrap_text(f"No lines to show: {describe(change)}.", width, "$quiet")]
