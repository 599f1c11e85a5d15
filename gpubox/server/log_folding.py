"""Folding a log for the eye: a line that was shown a moment ago is counted, not shown again. Pure.

A server that nobody asks anything writes ``all slots are idle`` after each look at it (build 11434); others write two
or three lines in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from gpubox.server.log import LogLine, parse_line

WINDOW = 3
"""So many of the lines shown last are remembered."""


class RepeatFold:
    """Goes along with a log that is shown line by line."""

    def __init__(self) -> None:
        self._shown: deque[tuple[str | None, str]] = deque(maxlen=WINDOW)
        self._folded = 0

    def take(self, line: LogLine) -> tuple[int, bool]:
        """How many lines were left out just before ``line``, and whether it is to be shown itself."""
        key = (line.level, line.text)
        if line.text and key in self._shown:
            self._folded += 1
            return 0, False
        self._shown.append(key)
        return self.rest(), True

    def rest(self) -> int:
        """How many lines were left out at the end; counts anew from here."""
        fold_repeats, self._folded = self._folded, 0
        return fold_repeats

    def forget(self) -> None:
        """Something else was shown in between: the next line is shown whatever it says."""
        self._shown.clear()


def repeats_line(count: int) -> str:
    """The line that stands for ``count`` lines."""
    return f"… {count:,} more {'line' if count == 1 else 'lines'} like this"


def fold_repeats(lines: Iterable[str]) -> Iterator[str]:
    """The lines to show of ``lines``."""
    fold = RepeatFold()
    for line in lines:
        count, shown = fold.take(parse_line(line))
        if count:
            yield repeats_line(count)
        if shown:
            yield line
    if count := fold.rest():
        yield repeats_line(count)
