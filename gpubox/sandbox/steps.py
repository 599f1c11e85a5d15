"""The steps of a chat over its workspace: turns with their layers, and what the owner decided; undo and redo.

Blocking; run it in a thread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gpubox.sandbox.changes import Change, Choice
from gpubox.sandbox.layers import View


@dataclass(frozen=True, slots=True)
class TakeResult:
    """What a take did."""

    taken: tuple[str, ...]
    """Paths that the workspace now has, or has no more."""
    left: tuple[Change, ...]
    """Changes that were chosen, or all, and could not be taken: conflicts, and what needs a yes of its own."""
    notes: tuple[str, ...] = ()
    """Sentences for the owner, such as a setuid bit that was dropped."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an undo or a redo did."""

    turns: tuple[str, ...]
    """Ids of the turns that were undone (the last first) or redone."""
    files: tuple[str, ...] = ()
    """Paths of the workspace that were put back."""
    kept: tuple[str, ...] = ()
    """Paths that the owner changed since, and that stay as they are."""


class Steps:
    """The steps of one chat over one workspace. One owner at a time: it holds a lock until ``close``."""

    def __init__(self, workspace: Path, folder: Path, owner: int | None = None) -> None:
        """Opens ``folder`` (``chats/NAME.layers``; it is made with the first turn) and finishes what a killed gpubox
        had begun. ``owner``: the user of root's programs. Raises GpuboxError."""
        self.workspace, self.folder, self.owner = workspace, folder, owner

    def close(self) -> None:
        """Releases the lock. An open turn is ended by the next ``Steps``."""
        raise NotImplementedError

    @property
    def can_undo(self) -> str:
        """The id of the turn that ``undo`` would undo; empty: none."""
        raise NotImplementedError

    @property
    def can_redo(self) -> str:
        """The id of the turn that ``redo`` would redo; empty: none."""
        raise NotImplementedError

    def view(self) -> View:
        """The workspace as the model sees it: the top layer first (if a turn is open), the workspace last."""
        raise NotImplementedError

    def layers(self) -> tuple[Path, ...]:
        """The folders to mount over the workspace, the top first; beside the top one is its ``work``. Empty: none."""
        raise NotImplementedError

    def begin_turn(self, turn_id: str) -> None:
        """Lays a new, empty layer on top, and forgets what was undone. Raises GpuboxError."""
        raise NotImplementedError

    def note_changes(self, began_ns: int | None = None) -> tuple[str, ...]:
        """After each run or write of the open turn: records what the workspace had in place of each new entry.

        ``began_ns``: when the run began (``now_ns()``); ``None``: at the last call. Returns the paths that were
        changed since the last call, ``x (removed)`` for removed ones.
        """
        raise NotImplementedError

    def end_turn(self) -> None:
        """The open turn's layer is complete. Does nothing if none is open."""
        raise NotImplementedError

    def changes(self) -> list[Change]:
        """What all open layers change in the workspace as it is now, sorted by path. Raises GpuboxError."""
        raise NotImplementedError

    def take(self, choice: Choice | None = None, *, allow: Collection[str] = ()) -> TakeResult:
        """Puts changes into the workspace. ``None``: all but conflicts and what runs by itself.

        ``allow``: paths of what runs by itself that the owner allowed by name. Raises GpuboxError; then nothing has
        changed.
        """
        raise NotImplementedError

    def drop(self, choice: Choice | None = None) -> None:
        """Forgets changes; ``None``: all. The workspace stays as it is. Raises GpuboxError."""
        raise NotImplementedError

    def undo(self, turn_id: str = "", *, keep: Collection[str] = ()) -> StepResult:
        """Undoes the last turn in effect with its takes and drops, or all from ``turn_id`` on.

        ``keep``: paths that stay as they are. Raises GpuboxError, and changes nothing, where the owner changed another
        file since.
        """
        raise NotImplementedError

    def redo(self, *, keep: Collection[str] = ()) -> StepResult:
        """Redoes the turn that was undone last, with its takes and drops. Raises GpuboxError as ``undo`` does."""
        raise NotImplementedError


def now_ns() -> int:
    """The time by the clock of the files' own times, for ``note_changes``."""
    raise NotImplementedError
