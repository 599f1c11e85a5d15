"""The fenced code blocks of a reply. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*)$")
PYTHON_LANGUAGES = frozenset({"python", "py", "python3", "tool_code", "ipython", "execute", "run"})


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """One fenced block. ``closed`` is False if the text ends before its closing fence."""

    language: str
    code: str
    closed: bool
    start: int
    """Position of the opening fence in the text."""
    end: int

    @property
    def is_program(self) -> bool:
        """Whether it holds Python."""
        return self.language in PYTHON_LANGUAGES and bool(self.code.strip())


def fenced_blocks(text: str) -> list[FencedBlock]:
    """The fenced blocks in order. As in CommonMark, a block ends at a fence at least as long as its opening fence."""
    blocks: list[FencedBlock] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    start = position = 0

    def add_block(fence: re.Match[str], closed: bool) -> None:
        code = "".join(line.removeprefix(fence[1]) for line in lines)
        language = (fence[3].split() or [""])[0].lower()
        blocks.append(FencedBlock(language, code, closed, start, position))

    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line.rstrip("\r\n"))
        line_start, position = position, position + len(line)
        if opening is None:
            if fence:
                opening, lines, start = fence, [], line_start
        elif fence and fence[2].startswith(opening[2]) and not fence[3].strip():
            add_block(opening, True)
            opening = None
        else:
            lines.append(line)
    if opening is not None:
        add_block(opening, False)
    return blocks


def python_program(text: str) -> tuple[str, bool]:
    """``(code, closed)``: the Python blocks of ``text`` joined to one program; ``code`` is empty if there is none.

    The blocks of one reply belong together: the second often calls what the first defines.
    """
    programs = [block for block in fenced_blocks(text) if block.is_program]
    return "\n".join(block.code.rstrip() for block in programs), all(block.closed for block in programs)


def ends_with_program(text: str) -> bool:
    """Whether the last complete line of ``text`` closes a Python block."""
    complete = text[: text.rfind("\n") + 1].rstrip()
    if complete.rpartition("\n")[2].strip().strip("`~"):
        return False
    blocks = fenced_blocks(complete)
    return bool(blocks) and blocks[-1].closed and blocks[-1].is_program
