"""Thinking that arrives inside the content: told apart while it streams, and cut off at the end. Pure.

Models write ``<think>`` (also thinking, reasoning, ``[THINK]``) at the start of a reply; cut short, it is never
closed. A server that parses it sends ``reasoning_content`` instead, and none of this finds anything.
"""

from __future__ import annotations

import re

_NAMES = ("think", "thinking", "reasoning", "thought")
_PAIRS = {f"<{name}>": f"</{name}>" for name in _NAMES} | {
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|>",
}
_ORPHAN = re.compile(r"(?m)^[^`\n]*(?:</(?:think|thinking|reasoning|thought)>|\[/THINK\])[ \t]*$")


def split_thinking(content: str) -> tuple[str, str]:
    """``(thinking, visible)`` of a whole reply. An unclosed ``<think>`` hides everything after it."""
    thinking: list[str] = []
    rest = content
    while opened := _opening(rest):
        start, tag = opened
        inside = rest[start + len(tag) :]
        end = inside.find(_PAIRS[tag])
        if end < 0:
            thinking.append(inside)
            return "".join(thinking), ""
        thinking.append(inside[:end])
        rest = inside[end + len(_PAIRS[tag]) :]
    if not thinking and (orphan := _ORPHAN.search(rest)):  # the template opened it in the prompt
        thinking.append(rest[: orphan.end()])
        rest = rest[orphan.end() :]
    return "".join(thinking), rest.lstrip() if thinking else rest


def _opening(text: str) -> tuple[int, str] | None:
    start = len(text) - len(text.lstrip())
    for tag in _PAIRS:
        if text.startswith(tag, start):
            return start, tag
    return None


class ThinkingSplitter:
    """The same on a stream: pieces of content in, ``(thinking, visible)`` pieces out, a tag never among them."""

    def __init__(self) -> None:
        self._close = ""
        self._held = ""
        self._open = True
        """Whether a tag may still come: only before any visible text."""

    @property
    def closing(self) -> str:
        """The tag that ends the thinking in the middle of which the text is; empty: it is in none."""
        return self._close

    def feed(self, piece: str) -> tuple[str, str]:
        """What ``piece`` makes certain."""
        if not self._open and not self._close:
            return "", piece
        self._held += piece
        thinking = visible = ""
        while self._held:
            if self._close:
                end = self._held.find(self._close)
                if end < 0:
                    keep = _overlap(self._held, self._close)
                    thinking += self._held[: len(self._held) - keep]
                    self._held = self._held[len(self._held) - keep :]
                    break
                thinking += self._held[:end]
                self._held = self._held[end + len(self._close) :]
                self._close = ""
                continue
            opened = _opening(self._held)
            if opened:
                self._held = self._held[opened[0] + len(opened[1]) :]
                self._close = _PAIRS[opened[1]]
                continue
            stripped = self._held.lstrip()
            if not stripped or any(tag.startswith(stripped) for tag in _PAIRS):
                break  # it may still become a tag
            visible, self._held, self._open = self._held, "", False
        return thinking, visible

    def end(self) -> tuple[str, str]:
        """What was held back."""
        held, self._held = self._held, ""
        return (held, "") if self._close else ("", held)


def _overlap(text: str, tag: str) -> int:
    """How many of the last characters of ``text`` begin ``tag``."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)
