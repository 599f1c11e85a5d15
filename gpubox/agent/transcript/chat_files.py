"""The folder of chats: names, listing, renaming, removing, and opening one to read."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gpubox.agent.transcript.chat_log import ChatLog, read_chat_log
from gpubox.agent.transcript.records import TurnHeader, decode
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.storage import open_regular, try_lock
from gpubox.toml_table import closest_match

NAME = re.compile(r"[^\W_][\w .+-]{0,79}")
_HEAD_BYTES = 65536
_ASKED = b'{"record":"turn_header",'


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
    """The first thing that was asked."""
    profile: str
    """Who answered last; empty where no turn says."""
    problem: str = ""
    """Why it cannot be opened."""


def chat_path(paths: Paths, name: str) -> Path:
    """The file of the chat ``name``. Raises UsageError where no chat can be called so."""
    if not NAME.fullmatch(name) or name != name.strip() or len(name.encode()) > 200:
        raise UsageError(
            f"{name!r} cannot be a chat's name.",
            "Letters, digits, spaces, '.', '_', '+' and '-', a letter or digit first.",
        )
    return paths.chats / f"{name}.jsonl"


def existing_chat(paths: Paths, name: str) -> Path:
    """The file of a chat that is there. Raises UsageError."""
    path = chat_path(paths, name)
    if not path.is_file():
        near = closest_match(name, names(paths))
        raise UsageError(
            f"There is no chat {name}.", f"Did you mean {near!r}?" if near else "`gpubox chat ls` lists them."
        )
    return path


def names(paths: Paths) -> list[str]:
    """Every chat, the one that changed last first."""
    return [path.stem for path in _files(paths)]


def chat_summaries(paths: Paths) -> list[ChatSummary]:
    """Every chat for a list, the one that changed last first. Reads each file, decodes next to nothing."""
    return [head for path in _files(paths) if (head := _head(path))]


def load_chat(path: Path) -> ChatLog:
    """The chat of a file. Raises UsageError where it is none or cannot be read."""
    try:
        with open_regular(path) as file:
            return read_chat_log(path.stem, file)
    except FileNotFoundError:
        raise UsageError(f"There is no chat {path.stem}.", "`gpubox chat ls` lists them.") from None
    except OSError as error:
        raise UsageError(f"The chat {path} cannot be read: {error.strerror}.") from None


def rename(paths: Paths, name: str, new: str) -> Path:
    """Gives a chat another name. Raises GpuboxError where that is taken, or a gpubox has the chat open."""
    path, target = existing_chat(paths, name), chat_path(paths, new)
    with _alone(path):
        move_chat_file(path, target)
    return target


def move_chat_file(path: Path, target: Path) -> None:
    """Renames the file of a chat, for who has it locked. Raises GpuboxError where the name is taken."""
    try:
        os.link(path, target)  # a rename would silently replace
        path.unlink()
    except FileExistsError:
        raise UsageError(f"There is a chat {target.stem} already.", "Give another name.") from None
    except OSError as error:
        raise GpuboxError(f"{path.stem} cannot be renamed: {error.strerror}.") from None


def remove(paths: Paths, name: str) -> None:
    """Deletes a chat. Raises GpuboxError where a gpubox has it open."""
    path = existing_chat(paths, name)
    with _alone(path):
        try:
            path.unlink()
        except OSError as error:
            raise GpuboxError(f"{name} cannot be removed: {error.strerror}.") from None


def free_name(paths: Paths, text: str) -> str:
    """A name made of what was asked, that no chat has yet."""
    words = re.findall(r"[^\W_]+", text.casefold())[:5]
    base = "-".join(words)[:40].strip("-") or "chat"
    taken = set(names(paths))
    return next(name for name in _numbered(base) if name not in taken)


def _numbered(base: str) -> Iterator[str]:
    yield base
    number = 2
    while True:
        yield f"{base}-{number}"
        number += 1


def _files(paths: Paths) -> list[Path]:
    found: list[tuple[float, Path]] = []
    for path in paths.chats.glob("*.jsonl"):
        with contextlib.suppress(OSError):
            if path.is_file() and NAME.fullmatch(path.stem):
                found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def _head(path: Path) -> ChatSummary | None:
    first = last = None
    count, problem = 0, ""
    try:
        state = path.stat()
        with open_regular(path) as file:
            for line in file:
                if line.startswith(_ASKED):
                    count += 1
                    last = line
                    first = first or line
            file.seek(0)
            read_chat_log(path.stem, [file.readline(_HEAD_BYTES)])
    except UsageError as error:
        problem = error.message
    except OSError:
        return None
    asked, newest = _asked(first), _asked(last)
    return ChatSummary(
        name=path.stem,
        path=path,
        size_bytes=state.st_size,
        changed_at=datetime.fromtimestamp(state.st_mtime, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        turns=count,
        title=" ".join(asked.text.split())[:200] if asked else "",
        profile=newest.profile if newest else "",
        problem=problem,
    )


def _asked(line: bytes | None) -> TurnHeader | None:
    try:
        record = decode(line) if line else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if isinstance(record, TurnHeader) else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise GpuboxError(f"The chat {path.stem} cannot be opened: {error.strerror}.") from None
    try:
        if not try_lock(file):
            raise GpuboxError(f"Another gpubox has the chat {path.stem} open.", "Close it there first.")
        yield
    finally:
        os.close(file)
