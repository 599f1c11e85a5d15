"""The folder of chats: names, list, rename, remove, branch, rewind, search. Blocking: a screen searches in a thread."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from gpubox.agent.chat_log import (
    ChatLog,
    ChatSettings,
    HeadMoved,
    OwnerNote,
    SettingsChanged,
    Turn,
    TurnHeader,
    decode,
    read_chat_log,
)
from gpubox.agent.events import FilesChanged
from gpubox.agent.journal import ChatJournal
from gpubox.clock import utc_now
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.sandbox.layers import remove_tree
from gpubox.storage import DECODE_ERRORS, open_lines
from gpubox.toml_table import closest_match

_BRANCHED = (
    "(This chat is a copy: of your changes it has only those that the owner took. Read a file before you edit it.)"
)
T = TypeVar("T")
NAME = re.compile(r"[^\W_][\w .+-]{0,79}")
_MAX_HEADER_BYTES = 65536
_TURN_HEADER_START, _SETTINGS_START = b'{"record":"turn_header",', b'{"record":"settings_changed",'


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """One chat in a list."""

    name: str
    path: Path
    size_bytes: int
    changed_at: str
    """ISO-8601 UTC."""
    turns: int
    title: str
    """The first question."""
    profile: str
    """The profile that answered last; empty if unknown."""
    problem: str = ""
    """Why the chat cannot be opened."""
    agent: str = ""
    """The hosted agent that answered last; empty: gpubox's own."""
    workdir: str = ""
    """Its workspace; empty: none."""


def chat_path(paths: Paths, name: str) -> Path:
    """The file of the chat ``name``. Raises UsageError if that is not a valid name."""
    if not NAME.fullmatch(name) or name != name.strip() or len(name.encode()) > 200:
        raise UsageError(
            f"{name!r} cannot be the name of a chat.",
            "Use letters, digits, spaces, '.', '_', '+' and '-'; start with a letter or digit.",
        )
    return paths.chats / f"{name}.jsonl"


def layers_folder(path: Path) -> Path:
    """Where the layers of the chat with this file are, over its workspace."""
    return path.with_suffix(".layers")


def scratch_folder(path: Path) -> Path:
    """Beside it: the workspace of a chat without one, and the layers over that."""
    return path.with_suffix(".scratch")


def images_folder(path: Path) -> Path:
    """The images of its messages."""
    return path.with_suffix(".images")


def existing_chat(paths: Paths, name: str) -> Path:
    """The file of an existing chat. Raises UsageError."""
    path = chat_path(paths, name)
    if not path.is_file():
        near = closest_match(name, chat_names(paths))
        raise UsageError(
            f"There is no chat {name}.", f"Did you mean {near!r}?" if near else "`gpubox chat ls` lists them."
        )
    return path


def chat_paths(paths: Paths) -> list[Path]:
    """The files of all chats, the last changed first."""
    files: list[tuple[float, Path]] = []
    for path in paths.chats.glob("*.jsonl"):
        with contextlib.suppress(OSError):
            if path.is_file() and NAME.fullmatch(path.stem):
                files.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(files, reverse=True)]


def chat_names(paths: Paths) -> list[str]:
    """All chats, the last changed first."""
    return [path.stem for path in chat_paths(paths)]


def chat_summaries(paths: Paths) -> list[ChatSummary]:
    """All chats, the last changed first. Reads each file but decodes only a few lines of it."""
    return [summary for path in chat_paths(paths) if (summary := _chat_summary(path))]


def free_name(paths: Paths, text: str) -> str:
    """A name that no chat has yet, made of the words of ``text``."""
    words = re.findall(r"[^\W_]+", text.casefold())[:5]
    base = "-".join(words)[:40].strip("-") or "chat"
    used = set(chat_names(paths))
    numbered = (f"{base}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name not in used)


def load_chat(path: Path) -> ChatLog:
    """The chat in a file. Raises UsageError if the file cannot be read or is not a chat."""
    try:
        with open_lines(path) as lines:
            return read_chat_log(path.stem, lines)
    except FileNotFoundError:
        raise UsageError(f"There is no chat {path.stem}.", "`gpubox chat ls` lists them.") from None
    except OSError as error:
        raise UsageError(f"The chat {path} cannot be read: {error.strerror}.") from None


def rename_chat(paths: Paths, name: str, new_name: str) -> None:
    """Renames a chat. Raises GpuboxError if the new name is taken or a gpubox has the chat open."""
    path, target = existing_chat(paths, name), chat_path(paths, new_name)
    with contextlib.closing(ChatJournal(path)):  # it holds the lock
        move_chat_file(path, target)


def move_chat_file(path: Path, target: Path) -> None:
    """Renames the file of a chat that the caller has locked. Raises GpuboxError if the name is taken."""
    try:
        os.link(path, target)  # a rename would silently replace
        path.unlink()
        for folder in (layers_folder, scratch_folder, images_folder):
            with contextlib.suppress(FileNotFoundError):
                folder(path).rename(folder(target))
    except FileExistsError:
        raise UsageError(f"There is a chat {target.stem} already.", "Give another name.") from None
    except OSError as error:
        raise GpuboxError(f"{path.stem} cannot be renamed: {error.strerror}.") from None


def remove_chat(paths: Paths, name: str) -> None:
    """Deletes a chat. Raises GpuboxError if a gpubox has it open."""
    path = existing_chat(paths, name)
    with contextlib.closing(ChatJournal(path)):  # it holds the lock
        for folder in (layers_folder, scratch_folder, images_folder):  # before a new chat has the name
            remove_tree(folder(path))
        try:
            path.unlink()
        except OSError as error:
            raise GpuboxError(f"{name} cannot be removed: {error.strerror}.") from None


def branch_chat(paths: Paths, log: ChatLog, new_name: str, turn_id: str | None = None) -> str:
    """Copies the turns up to ``turn_id`` (without it: up to the head) to a new chat, without the layers.

    Returns a sentence on changes that it may lack; empty: its turns made none. Raises UsageError if there is no such
    turn or the new chat exists, GpuboxError if it cannot be written.
    """
    require_turn(log, turn_id)
    path = chat_path(paths, new_name)
    with contextlib.closing(ChatJournal(path, new=True)) as journal:
        if log.settings != ChatSettings():
            journal.add(SettingsChanged(log.settings, utc_now()))
        for turn in log.path(turn_id):
            journal.add(turn.header)
            for event in turn.events:
                journal.add_event(event)
        changed = any(isinstance(event, FilesChanged) for turn in log.path(turn_id) for event in turn.events)
        if changed:
            journal.add(OwnerNote(_BRANCHED, utc_now()))
        journal.flush()
    if journal.problem:
        path.unlink(missing_ok=True)
        raise GpuboxError(f"The chat {new_name} could not be created. {journal.problem}")
    return f"Changes that you have not taken stay in {log.name}." if changed else ""


def rewind_chat(paths: Paths, name: str, turn_id: str | None) -> str:
    """Moves the head to ``turn_id``; without it, before the last turn. Returns the new head. Raises GpuboxError."""
    path = existing_chat(paths, name)
    with contextlib.closing(ChatJournal(path)) as journal:
        log = load_chat(path)
        require_turn(log, turn_id)
        if turn_id is None:
            turns = log.path()
            if not turns:
                raise UsageError(f"{name} has no turn yet.")
            turn_id = turns[-1].parent_id
        journal.add(HeadMoved(turn_id, utc_now()))
        if journal.problem:
            raise GpuboxError(journal.problem)
    return turn_id


def require_turn(log: ChatLog, turn_id: str | None) -> None:
    """Raises UsageError if ``turn_id`` is not empty and the chat has no such turn."""
    if turn_id and turn_id not in log.turns:
        raise UsageError(
            f"There is no turn {turn_id} in {log.name}.", f"`gpubox chat show {log.name} --turns` lists them."
        )


def _chat_summary(path: Path) -> ChatSummary | None:
    """``None`` if the file cannot be read."""
    problem = ""
    turn_lines: list[bytes] = []
    settings_line = b""
    try:
        state = path.stat()
        with open_lines(path) as lines:
            read_chat_log(path.stem, [line[:_MAX_HEADER_BYTES] for line in itertools.islice(lines, 1)])
            for line in lines:
                settings_line = line if line.startswith(_SETTINGS_START) else settings_line
                turn_lines += [line] if line.startswith(_TURN_HEADER_START) else []
    except UsageError as error:
        problem = error.message
    except OSError:
        return None
    first, last = (_record(turn_lines[index], TurnHeader) if turn_lines else None for index in (0, -1))
    changed = _record(settings_line, SettingsChanged)
    return ChatSummary(
        name=path.stem,
        path=path,
        size_bytes=state.st_size,
        changed_at=datetime.fromtimestamp(state.st_mtime, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        turns=len(turn_lines),
        title=" ".join(first.text.split())[:200] if first else "",
        profile=last.profile if last else "",
        workdir=changed.settings.workdir if changed else "",
        problem=problem,
        agent=last.agent if last else "",
    )


def _record(line: bytes, kind: type[T]) -> T | None:
    try:
        record = decode(line)
    except DECODE_ERRORS:
        return None
    return record if isinstance(record, kind) else None


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
