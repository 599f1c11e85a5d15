"""Another chat made of one, and going back in one. For chats that are open, and for those that are not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from gpubox.agent.transcript.fold import ChatLog, Turn
from gpubox.agent.transcript.journal import Journal
from gpubox.agent.transcript.records import Choices, Chosen, Rewound
from gpubox.agent.transcript.store import chat_path, existing, load
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.server.record import now


def branch(paths: Paths, name: str, new: str, turn: str | None) -> None:
    """Makes the chat ``new`` of ``name`` up to ``turn``, without one as far as it is. Raises GpuboxError."""
    log = load(existing(paths, name))
    copy_turns(chat_path(paths, new), log.choices, turns_to(log, turn))


def rewind(paths: Paths, name: str, turn: str | None) -> str:
    """Has ``name`` go on from ``turn``, without one from before its last. Returns the turn. Raises GpuboxError."""
    path = existing(paths, name)
    with contextlib.closing(Journal(path)) as journal:
        log = load(path)
        way = log.path()
        if turn is None and not way:
            raise UsageError(f"Nothing was asked in {name} yet.")
        head = way[-1].parent if turn is None else turn
        known(log, head)
        journal.add(Rewound(head, now()))
        if journal.problem:
            raise GpuboxError(journal.problem)
    return head


def turns_to(log: ChatLog, turn: str | None) -> list[Turn]:
    """The turns on the way to ``turn``; without one, to the newest. Raises UsageError."""
    if turn is None:
        return log.path()
    known(log, turn)
    return log.path(turn)


def known(log: ChatLog, turn: str) -> None:
    """Raises UsageError where there is no such turn; empty is the beginning."""
    if turn and turn not in log.turns:
        raise UsageError(
            f"There is no turn {turn} in {log.name}.", f"`gpubox chat show {log.name} --turns` lists them."
        )


def copy_turns(path: Path, choices: Choices, turns: Iterable[Turn]) -> None:
    """Writes a new chat file that holds these turns. Raises UsageError where it is there, GpuboxError."""
    copy = Journal(path, new=True)
    with contextlib.closing(copy):
        if choices != Choices():
            copy.add(Chosen(choices, now()))
        for turn in turns:
            copy.add(turn.asked)
            for event in turn.events:
                copy.event(event)
        copy.flush()
        problem = copy.problem
    if problem:
        path.unlink(missing_ok=True)
        raise GpuboxError(f"The chat {path.stem} could not be made. {problem}")
