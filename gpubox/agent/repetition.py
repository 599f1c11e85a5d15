"""Noticing that a model turns in circles while it writes. Pure; costs microseconds a token."""

from __future__ import annotations

from collections import Counter

CHECK_EACH = 200
TAIL = 200
WINDOW = 8000
TIMES = 4
LINES = 40
LINE_TIMES = 20


class RepetitionDetector:
    """Fed the text as it comes; says when its last 200 characters came 4 times, or one line 20 times of late."""

    def __init__(self) -> None:
        self._text = ""
        self._unchecked = 0

    def feed(self, piece: str) -> bool:
        """Whether it turns in circles now."""
        self._text = (self._text + piece)[-WINDOW:]
        self._unchecked += len(piece)
        if self._unchecked < CHECK_EACH:
            return False
        self._unchecked = 0
        tail = self._text[-TAIL:]
        if len(self._text) >= TAIL * TIMES and not tail.isspace() and self._text.count(tail) >= TIMES:
            return True
        lines = [line.strip() for line in self._text.splitlines()[-LINES:]]
        common = Counter(line for line in lines if len(line) >= 8 and any(map(str.isalnum, line))).most_common(1)
        return bool(common) and common[0][1] >= LINE_TIMES


def without_repetition(text: str) -> str:
    """``text`` without its repeated end: what is kept in the prompt must not invite more of the same."""
    tail = text[-TAIL:]
    first = text.find(tail)
    if 0 <= first < len(text) - TAIL:
        return text[: first + TAIL]
    seen: Counter[str] = Counter()
    kept = []
    for line in text.splitlines(keepends=True):
        seen[line.strip()] += 1
        if len(line.strip()) >= 8 and seen[line.strip()] > 3:
            break
        kept.append(line)
    return "".join(kept)
