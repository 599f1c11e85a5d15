"""Markdown that is still being written, in blocks: only the last one can change, so only it is drawn again. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

CODE_LINES = 40
"""An open code block is split after so many lines, and put together again when it is closed."""
BLOCK_CHARS = 3000
"""A block without an end is split here, at a space where there is one."""
JOINED_CODE_CHARS = 60_000
_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r"\s{0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A piece of Markdown that stands for itself."""

    text: str
    tight: bool = False
    """Whether it goes on where the block before it ended: no empty line between them."""
    code: bool = False
    """Whether ``text`` is nothing but lines of a code block in ``language``."""
    language: str = ""


class MarkdownBlocks:
    """Takes text as it comes. ``closed`` blocks do not change, but for a code block that is put together at its end."""

    def __init__(self) -> None:
        self.closed: list[MarkdownBlock] = []
        self.joined_from: int | None = None
        """Since the last ``add``: the first of the closed blocks that were put together anew."""
        self._open = ""
        self._line = 0
        """Where the first line of ``_open`` that was not looked at begins."""
        self._fence: tuple[str, str] | None = None
        """Marker and language of the code block that is open; at the margin only."""
        self._inner = ""
        """Marker of a code block inside a list."""
        self._code_from = 0
        """The block at which the open code block began."""
        self._blank = False
        self._tight = False

    @property
    def tail(self) -> MarkdownBlock | None:
        """The block that is being written."""
        if self._fence:
            return MarkdownBlock(self._open.removesuffix("\n"), self._tight, True, self._fence[1])
        return MarkdownBlock(self._open, self._tight) if self._open.strip() else None

    def add(self, text: str) -> None:
        """Takes ``text`` as the next piece."""
        self.joined_from = None
        self._open += text
        while (end := self._open.find("\n", self._line)) >= 0:
            self._look(self._open[self._line : end], end + 1)
        partial = self._open[self._line :]
        if self._blank and partial.strip() and not self._goes_on(partial):
            self._close(self._line)
        if len(self._open) > BLOCK_CHARS:
            self._cut()

    def end(self) -> None:
        """No more comes: what is open is closed."""
        self.joined_from = None
        if last := self._open[self._line :]:
            self._look(last, len(self._open))
        if self._fence:
            self._end_code(len(self._open), len(self._open))
        elif self._open.strip():
            self._close(len(self._open))

    def _look(self, line: str, after: int) -> None:
        """Looks at one whole line, which begins at ``_line`` and ends before ``after``."""
        if self._fence:
            if line.strip().startswith(self._fence[0]) and not line.strip().strip(self._fence[0][0]):
                self._end_code(self._line, after)
            else:
                self._line = after
                if self._open.count("\n", 0, after) >= CODE_LINES:
                    self._take_code(after)
            return
        found = _FENCE.fullmatch(line)
        if self._inner:
            if found and found[2].startswith(self._inner) and not found[3].strip():
                self._inner = ""
            self._line = after
            return
        if not line.strip():
            self._blank = self._blank or bool(self._open[: self._line].strip())
            self._line = after
            return
        if self._blank and not self._goes_on(line):
            after -= self._close(self._line)
        if found and (not found[1] or not self._in_list):
            if self._open[: self._line].strip():
                after -= self._close(self._line)
            self._fence = (found[2], (found[3].split() or [""])[0].strip("{}."))
            self._code_from, self._open, self._line = len(self.closed), self._open[after:], 0
            return
        if found:
            self._inner = found[2]
        elif self._line > BLOCK_CHARS // 2 and _ITEM.match(line) and self._in_list and not line[0].isspace():
            after -= self._close(self._line)
            self._tight = True
        self._blank = False
        self._line = after

    @property
    def _in_list(self) -> bool:
        return bool(_ITEM.match(self._open.lstrip("\n")))

    def _goes_on(self, line: str) -> bool:
        """Whether a line after an empty one still belongs to the list before it."""
        return self._in_list and line.startswith(("  ", "\t"))

    def _close(self, end: int) -> int:
        """Closes the open block at ``end`` and looks on from there. Returns ``end``: by so much all else moved."""
        self.closed.append(MarkdownBlock(self._open[:end].strip("\n"), self._tight))
        self._open, self._line, self._blank, self._tight = self._open[end:], 0, False, False
        return end

    def _take_code(self, end: int) -> None:
        assert self._fence
        self.closed.append(MarkdownBlock(self._open[:end].removesuffix("\n"), self._tight, True, self._fence[1]))
        self._open, self._line, self._tight = self._open[end:], 0, True

    def _end_code(self, end: int, after: int) -> None:
        """The code block ends at ``end``; its pieces become one, so that its colours are right."""
        assert self._fence
        pieces = self.closed[self._code_from :]
        last = self._open[:end].removesuffix("\n")
        whole = "\n".join([*(piece.text for piece in pieces), *([last] if end or not pieces else [])])
        if len(whole) <= JOINED_CODE_CHARS:
            if pieces:
                self.joined_from = self._code_from
            self.closed[self._code_from :] = [MarkdownBlock(whole, False, True, self._fence[1])]
        elif last:
            self.closed.append(MarkdownBlock(last, True, True, self._fence[1]))
        self._fence, self._tight = None, False
        self._open, self._line = self._open[after:], 0

    def _cut(self) -> None:
        """Splits a block that has no end."""
        if self._fence:
            end = self._open.rfind("\n") + 1 or len(self._open)
            self._take_code(end)
            return
        if self._open.lstrip().startswith("|") and len(self._open) < 4 * BLOCK_CHARS:
            return  # a table in two parts is none
        end = max(self._open.rfind(" "), self._open.rfind("\n")) + 1 or len(self._open)
        tail_line = self._line
        self._close(end)
        self._tight, self._inner = True, ""
        self._line = max(0, tail_line - end)
