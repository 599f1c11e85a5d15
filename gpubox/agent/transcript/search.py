"""Finding what was said, in all chats. Blocking: a screen calls it in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubox.agent.transcript.chat_files import chat_summaries, load_chat
from gpubox.agent.transcript.chat_log import ChatLog, Turn
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.storage import open_regular

FOUND = 200
_AROUND = 60


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One place where the text stands."""

    chat: str
    turn: str
    at: str
    role: str
    """user | assistant | tool"""
    excerpt: str
    """One line around it."""


def search(paths: Paths, text: str, limit: int = FOUND) -> list[SearchHit]:
    """Where ``text`` was said, in the chat that changed last first; upper and lower case are the same."""
    needle = " ".join(text.split()).casefold()
    found: list[SearchHit] = []
    for head in chat_summaries(paths) if needle else ():
        if head.problem or not _may_hold(head.path, needle):
            continue
        try:
            log = load_chat(head.path)
        except UsageError:
            continue  # it went meanwhile
        for hit in _hits(log, needle):
            found.append(hit)
            if len(found) >= limit:
                return found
    return found


def _may_hold(path: Path, needle: str) -> bool:
    """Whether the whole search is worth it: a word of it that JSON writes as it stands is in the file."""
    word = max(needle.split(), key=len)
    if '"' in word or "\\" in word or not word.isprintable():
        return True
    try:
        with open_regular(path) as file:
            return word in file.read().decode(errors="replace").casefold()
    except OSError:
        return False


def _hits(log: ChatLog, needle: str) -> Iterator[SearchHit]:
    for turn in log.turns.values():
        for role, text in _texts(turn):
            line = " ".join(text.split())
            place = line.casefold().find(needle)
            if place >= 0:
                start = max(0, place - _AROUND)
                end = place + len(needle) + _AROUND
                cut = f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
                yield SearchHit(log.name, turn.id, turn.header.at, role, cut)


def _texts(turn: Turn) -> Iterator[tuple[str, str]]:
    for message in turn.messages():
        if message.role in ("user", "assistant", "tool"):
            yield message.role, message.content
        for call in message.tool_calls:
            yield "assistant", call.code or " ".join(str(value) for value in call.arguments.values())
