"""Another chat made of one, and going back in one. For chats that are open, and for those that are not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from gpubox.agent.transcript.chat_files import chat_path, existing_chat, load_chat
from gpubox.agent.transcript.chat_log import ChatLog, Turn
from gpubox.agent.transcript.journal import ChatJournal
from gpubox.agent.transcript.records import ChatSettings, HeadMoved, SettingsChanged
from gpubox.clock import utc_now
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths


def branch_chat(paths: Paths, name: str, new: str, turn: str | None) -> None:
    """Makes the chat ``new`` of ``name`` up to ``turn``, without one as far as it is. Raises GpuboxError."""
    log = load_chat(existing_chat(paths, name))
    copy_turns(chat_path(paths, new), log.settings, turns_to(log, turn))


def rewind_chat(paths: Paths, name: str, turn: str | None) -> str:
    """Has ``name`` go on from ``turn``, without one from before its last. Returns the turn. Raises GpuboxError."""
    path = existing_chat(paths, name)
    with contextlib.closing(ChatJournal(path)) as journal:
        log = load_chat(path)
        way = log.path()
        if turn is None and not way:
            raise UsageError(f"Nothing was asked in {name} yet.")
        head = way[-1].parent if turn is None else turn
        require_turn(log, head)
        journal.add(HeadMoved(head, utc_now()))
        if journal.problem:
            raise GpuboxError(journal.problem)
    return head


def turns_to(log: ChatLog, turn: str | None) -> list[Turn]:
    """The turns on the way to ``turn``; without one, to the newest. Raises UsageError."""
    if turn is None:
        return log.path()
    require_turn(log, turn)
    return log.path(turn)


def require_turn(log: ChatLog, turn: str) -> None:
    """Raises UsageError where there is no such turn; empty is the beginning."""
    if turn and turn not in log.turns:
        raise UsageError(
            f"There is no turn {turn} in {log.name}.", f"`gpubox chat show {log.name} --turns` lists them."
        )


def copy_turns(path: Path, settings: ChatSettings, turns: Iterable[Turn]) -> None:
    """Writes a new chat file that holds these turns. Raises UsageError where it is there, GpuboxError."""
    copy = ChatJournal(path, new=True)
    with contextlib.closing(copy):
        if settings != ChatSettings():
            copy.add(SettingsChanged(settings, utc_now()))
        for turn in turns:
            copy.add(turn.header)
            for event in turn.events:
                copy.event(event)
        copy.flush()
        problem = copy.problem
    if problem:
        path.unlink(missing_ok=True)
        raise GpuboxError(f"The chat {path.stem} could not be made. {problem}")
