"""A table of text. A verb prints it, the screen draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of equal length. Without a header it is a plain list in columns."""

    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    empty: str = ""
    """What is said in place of a table without rows."""

    @property
    def widths(self) -> tuple[int, ...]:
        """The characters of the widest cell of each column."""
        lines = [self.header, *self.rows] if self.header else list(self.rows)
        return tuple(max(map(len, column)) for column in zip(*lines, strict=False))
