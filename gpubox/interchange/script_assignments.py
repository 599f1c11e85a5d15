"""Which assignments of a script a server is made of, by the names in its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_NAME = re.compile(r"[$%!@]\{?(?:env:)?(\w+)", re.I)


@dataclass(slots=True)
class ScriptAssignments:
    """The assignments of a script, in order."""

    lines: list[tuple[str, str, bool]] = field(default_factory=list)
    """(name, the assignment as written, whether it adds to what the name held)"""

    def add(self, name: str, text: str, *, adds: bool = False) -> None:
        self.lines.append((name.lower(), text, adds))

    def unused(self, servers: Iterable[str], given: Iterable[str]) -> list[str]:
        """The assignments that no text of ``servers`` is made of, nor of the variables ``given`` to them.

        One that a later assignment overwrites is among them.
        """
        made_of: dict[str, set[str]] = {}
        for name, text, _ in self.lines:
            made_of.setdefault(name, set()).update(_names(_right(text)))
        used = {name.lower() for name in given} | {name for text in servers for name in _names(text)}
        waiting = list(used)
        while waiting:
            new = made_of.get(waiting.pop(), set()) - used
            used |= new
            waiting += new
        overwritten: dict[str, str] = {}
        unused: list[str] = []
        for name, text, adds in reversed(self.lines):
            if name not in used or overwritten.get(name, text) != text:
                unused.append(text)
            if not adds and name not in _names(_right(text)):
                overwritten.setdefault(name, text)
        return unused[::-1]


def _right(assignment: str) -> str:
    return assignment.partition("=")[2]


def _names(text: str) -> set[str]:
    return {name.lower() for name in _NAME.findall(text)}
