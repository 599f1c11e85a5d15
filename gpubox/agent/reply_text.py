"""What the text of a reply tells while it comes: the model's thinking, and that it repeats itself. Pure.

Models write ``<think>`` (or thinking, reasoning, ``[THINK]``) at the start of a reply. A reply that is cut short may
never close it. A server that parses thinking sends ``reasoning_content``, and the content has no tags.
"""

from __future__ import annotations

import re
from collections import Counter

_NAMES = ("think", "thinking", "reasoning", "thought")
_CLOSING_TAGS = {f"<{name}>": f"</{name}>" for name in _NAMES} | {
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|>",
}
_UNOPENED = re.compile(r"(?m)^[^`\n]*(?:</(?:think|thinking|reasoning|thought)>|\[/THINK\])[ \t]*$")


def split_thinking(content: str) -> tuple[str, str]:
    """``(thinking, visible)`` of a whole reply. An unclosed ``<think>`` hides everything after it."""
    splitter = ThinkingSplitter()
    thinking, visible = (first + rest for first, rest in zip(splitter.feed(content), splitter.end(), strict=True))
    if visible != content:
        return thinking, visible.lstrip()
    if closing := _UNOPENED.search(content):  # the chat template opened it in the prompt
        return content[: closing.end()], content[closing.end() :].lstrip()
    return "", content


class ThinkingSplitter:
    """Splits a stream: pieces of content in, ``(thinking, visible)`` pieces out, without the tags."""

    def __init__(self) -> None:
        self.closing_tag = ""
        """The tag that ends the thinking if the text is within it; else empty."""
        self._buffer = ""
        """Text that may be the start of a tag."""
        self._answer_started = False
        """No tag may open after visible text."""

    def feed(self, piece: str) -> tuple[str, str]:
        """``piece`` and the buffer, as far as they are certainly no part of a tag."""
        if self._answer_started:
            return "", piece
        self._buffer += piece
        thinking = ""
        while self._buffer:
            if self.closing_tag:
                inside, closed, rest = self._buffer.partition(self.closing_tag)
                if not closed:
                    keep = _overlap(inside, self.closing_tag)
                    self._buffer = inside[len(inside) - keep :]
                    return thinking + inside[: len(inside) - keep], ""
                thinking += inside
                self._buffer, self.closing_tag = rest, ""
                continue
            text = self._buffer.lstrip()
            opening_tag = next((tag for tag in _CLOSING_TAGS if text.startswith(tag)), "")
            if opening_tag:
                self._buffer, self.closing_tag = text[len(opening_tag) :], _CLOSING_TAGS[opening_tag]
            elif not text or any(tag.startswith(text) for tag in _CLOSING_TAGS):
                break  # it may still become a tag
            else:
                visible, self._buffer, self._answer_started = self._buffer, "", True
                return thinking, visible
        return thinking, ""

    def end(self) -> tuple[str, str]:
        """The rest of the buffer, at the end of the stream."""
        rest, self._buffer = self._buffer, ""
        return (rest, "") if self.closing_tag else ("", rest)


def _overlap(text: str, tag: str) -> int:
    """How many of the last characters of ``text`` begin ``tag``."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)


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
