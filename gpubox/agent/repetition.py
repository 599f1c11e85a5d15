"""Detects that a model repeats itself while it writes. Pure; costs microseconds per token."""

from __future__ import annotations

from collections import Counter

CHECK_INTERVAL = 200
"""Characters between two checks."""
TAIL = 200
MAX_TAIL_COUNT = 4
WINDOW = 8000
"""Characters in which the tail is counted."""
LINE_WINDOW = 40
MAX_LINE_COUNT = 20
MIN_LINE_LENGTH = 8


class RepetitionDetector:
    """Finds the last 200 characters 4 times in the last 8000, or one line 20 times in the last 40."""

    def __init__(self) -> None:
        self._text = ""
        self._unchecked = 0

    def feed(self, piece: str) -> bool:
        """Adds ``piece`` and returns whether the text is repetitive now."""
        self._text = (self._text + piece)[-WINDOW:]
        self._unchecked += len(piece)
        if self._unchecked < CHECK_INTERVAL:
            return False
        self._unchecked = 0
        tail = self._text[-TAIL:]
        if len(self._text) >= TAIL * MAX_TAIL_COUNT and not tail.isspace() and self._text.count(tail) >= MAX_TAIL_COUNT:
            return True
        lines = [line.strip() for line in self._text.splitlines()[-LINE_WINDOW:]]
        counts = Counter(line for line in lines if len(line) >= MIN_LINE_LENGTH and any(map(str.isalnum, line)))
        return any(count >= MAX_LINE_COUNT for count in counts.values())


def without_repetition(text: str) -> str:
    """``text`` without its repeated end, which would invite more repetition if it stayed in the prompt."""
    first = text.find(text[-TAIL:])
    if 0 <= first < len(text) - TAIL:
        return text[: first + TAIL]
    counts: Counter[str] = Counter()
    kept = []
    for line in text.splitlines(keepends=True):
        counts[line.strip()] += 1
        if len(line.strip()) >= MIN_LINE_LENGTH and counts[line.strip()] > 3:
            break
        kept.append(line)
    return "".join(kept)
