"""Full-text search in all chats. Blocking: a screen calls it in a thread."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubox.agent.transcript.chat_files import chat_paths, load_chat
from gpubox.agent.transcript.chat_log import ChatLog, Turn
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.storage import open_lines

MAX_HITS = 200
_CONTEXT_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One message or tool call that contains the text."""

    chat: str
    turn: str
    at: str
    role: str
    """user | assistant | tool"""
    excerpt: str
    """The text and what is around it, on one line."""


def search(paths: Paths, text: str, limit: int = MAX_HITS) -> list[SearchHit]:
    """The places that contain ``text``, the last changed chat first. Case and white space do not matter."""
    needle = " ".join(text.split()).casefold()
    return list(itertools.islice(_hits(paths, needle), limit)) if needle else []


def _hits(paths: Paths, needle: str) -> Iterator[SearchHit]:
    for path in chat_paths(paths):
        if _may_contain(path, needle):
            with contextlib.suppress(UsageError):  # it is not a chat, or was removed meanwhile
                yield from _hits_in(load_chat(path), needle)


def _may_contain(path: Path, needle: str) -> bool:
    """A cheap test before the file is decoded: whether it contains the longest word of ``needle``."""
    word = max(needle.split(), key=len)
    if '"' in word or "\\" in word or not word.isprintable():
        return True  # JSON escapes such characters
    try:
        with open_lines(path) as lines:
            return any(word in line.decode(errors="replace").casefold() for line in lines)
    except OSError:
        return False


def _hits_in(log: ChatLog, needle: str) -> Iterator[SearchHit]:
    for turn in log.turns.values():
        for role, text in _texts(turn):
            line = " ".join(text.split())
            position = line.casefold().find(needle)
            if position >= 0:
                start = max(0, position - _CONTEXT_CHARACTERS)
                end = position + len(needle) + _CONTEXT_CHARACTERS
                excerpt = f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
                yield SearchHit(log.name, turn.id, turn.header.at, role, excerpt)


def _texts(turn: Turn) -> Iterator[tuple[str, str]]:
    for message in turn.messages():
        if message.role != "system":
            yield message.role, message.content
        for call in message.tool_calls:
            yield "assistant", call.code or " ".join(str(value) for value in call.arguments.values())
