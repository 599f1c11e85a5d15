"""What the readers of scripts share: commands, assignments, words, and limits of their size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from gpubox.errors import UsageError

ScriptValue = str | list[str]
"""The value of a variable of a script."""
MAX_INPUT_CHARS = 256 * 1024
"""Characters of a file or of a pasted text."""
_MAX_EXPANDED_CHARS = 1024 * 1024
SERVER_VARIABLE = re.compile(r"(?:CUDA|GGML|LLAMA_ARG|HF|HIP|HSA|ROCR|VK|OMP|NVIDIA|SYCL|ONEAPI|ZES)_|LD_", re.I)
"""Variables that programs read; a script does not use such a name for itself."""
_VARIABLE_NAME = re.compile(r"[$%!@]\{?(?:env:)?(\w+)", re.I)
_PIECE = re.compile(r"""\s+|'([^']*)'?|"((?:\\.|[^"\\])*)"?|\\(.)|([^\s'"\\]+|\\)""", re.S)


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """One command of a script."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    """The variables that the script sets for the command."""
    unresolved: tuple[str, ...] = ()
    """The expansions that only a shell can do, as written."""
    branched: tuple[str, ...] = ()
    """The used variables that the script sets in a branch (``if``, ``case``). Every branch is read as if taken."""
    text: str = ""
    """As written."""
    line: str = ""
    """The whole line if ``text`` is a part of it."""
    dropped: tuple[str, ...] = ()
    """Redirections and other parts for the shell alone."""


class ExpansionBudget:
    """Expands variables, and limits the characters that this produces: a variable may double itself in each line."""

    def __init__(self) -> None:
        self._left = _MAX_EXPANDED_CHARS

    def spend(self, count: int) -> None:
        """Raises UsageError if the budget is spent."""
        self._left -= count
        if self._left < 0:
            raise UsageError("The variables of this text expand to more than 1 MiB.", "Paste the command line itself.")

    def expand(
        self, variable: re.Pattern[str], text: str, value_of: Callable[[re.Match[str]], str | None], left: list[str]
    ) -> str:
        """``text`` with the value of each ``variable``. Those without one stay as written, and are added to ``left``.

        Raises UsageError if the budget is spent.
        """

        def replacement(match: re.Match[str]) -> str:
            value = value_of(match)
            if value is None:
                left.append(match[0])
                return match[0]
            self.spend(len(value))
            return value

        return variable.sub(replacement, text)


@dataclass(slots=True)
class ScriptAssignments:
    """The assignments of a script, in order."""

    lines: list[tuple[str, str, bool]] = field(default_factory=list)
    """(name, the assignment as written, whether it appends to the variable)"""

    def add(self, name: str, text: str, *, appends: bool = False) -> None:
        self.lines.append((name.lower(), text, appends))

    def unused(self, commands: Iterable[str], env: Iterable[str]) -> list[str]:
        """The assignments that neither the texts ``commands`` nor the variables ``env`` depend on.

        Overwritten assignments are among them.
        """
        references: dict[str, set[str]] = {}
        for name, text, _ in self.lines:
            references.setdefault(name, set()).update(_names(_right_side(text)))
        used = {name.lower() for name in env} | {name for text in commands for name in _names(text)}
        unvisited = list(used)
        while unvisited:
            new = references.get(unvisited.pop(), set()) - used
            used |= new
            unvisited += new
        overwritten: dict[str, str] = {}
        unused: list[str] = []
        for name, text, appends in reversed(self.lines):
            if name not in used or overwritten.get(name, text) != text:
                unused.append(text)
            if not appends and name not in _names(_right_side(text)):
                overwritten.setdefault(name, text)
        return unused[::-1]


def split_words(text: str) -> list[str]:
    """The words of ``text`` as a shell splits them. Nothing is expanded; an open quote ends with the text."""
    return joined_words(
        re.sub(r'\\(["\\$`])', r"\1", piece[2])
        if piece[2] is not None
        else piece[piece.lastindex]
        if piece.lastindex
        else None
        for piece in _PIECE.finditer(re.sub(r"\\[ \t]*\n", " ", text))
    )


def joined_words(pieces: Iterable[str | None]) -> list[str]:
    """The words that consist of ``pieces``; ``None`` stands for the blanks between words."""
    groups = groupby(pieces, key=lambda piece: piece is None)
    return ["".join(map(str, parts)) for blank, parts in groups if not blank]


def joined_values(old: ScriptValue, new: ScriptValue) -> ScriptValue:
    """``old += new`` in a script: texts are concatenated, lists get more items."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    return [*([old] if isinstance(old, str) else old), *([new] if isinstance(new, str) else new)]


def base_name(word: str) -> str:
    """The last part of a path of any system."""
    return re.split(r"[\\/]", word)[-1]


def _right_side(assignment: str) -> str:
    return assignment.partition("=")[2]


def _names(text: str) -> set[str]:
    return {name.lower() for name in _VARIABLE_NAME.findall(text)}
