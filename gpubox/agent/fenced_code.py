"""Fenced code of a reply. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*)$")
PYTHON_LANGUAGES = frozenset({"python", "py", "python3", "tool_code", "ipython", "execute", "run"})


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """One fenced block. ``closed`` is false where the text ended first."""

    language: str
    code: str
    closed: bool
    start: int
    """Position of its opening fence in the text."""
    end: int


def fenced_blocks(text: str) -> list[FencedBlock]:
    """The fenced blocks in order; what is inside a longer fence is its content (CommonMark's rule)."""
    found: list[FencedBlock] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    start = position = 0
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line.rstrip("\r\n"))
        if opened is None:
            if match:
                opened, lines, start = match, [], position
        elif match and match[2].startswith(opened[2]) and not match[3].strip():
            found.append(_block(opened, lines, True, start, position + len(line)))
            opened = None
        else:
            lines.append(line)
        position += len(line)
    if opened is not None:
        found.append(_block(opened, lines, False, start, position))
    return found


def _block(opened: re.Match[str], lines: list[str], closed: bool, start: int, end: int) -> FencedBlock:
    indent = opened[1]
    code = "".join(line.removeprefix(indent) for line in lines)
    words = opened[3].split()
    return FencedBlock(words[0].lower() if words else "", code, closed, start, end)


def python_program(text: str) -> tuple[str, bool]:
    """The Python blocks of ``text`` as one program, and whether the last is closed; empty where there is none.

    A reply's blocks belong together: the second calls what the first defines.
    """
    parts = [block for block in fenced_blocks(text) if block.language in PYTHON_LANGUAGES and block.code.strip()]
    return "\n".join(block.code.rstrip() for block in parts), all(block.closed for block in parts)


def ends_with_program(text: str) -> bool:
    """Whether the last whole line of ``text`` closes a Python block."""
    whole = text[: text.rfind("\n") + 1].rstrip()
    if whole.rpartition("\n")[2].strip().strip("`~"):
        return False
    found = fenced_blocks(whole)
    return bool(found) and found[-1].closed and found[-1].language in PYTHON_LANGUAGES and bool(found[-1].code.strip())
