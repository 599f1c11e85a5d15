"""The record of a chat's steps, as it is on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from gpubox.errors import GpuboxError
from gpubox.storage import read_bytes, read_json, write_atomically

T = TypeVar("T")
_MAX_BYTES = 1 << 30


class StepRecord(msgspec.Struct):
    """A turn or a decision."""

    number: int
    kind: Literal["turn", "decision"]
    turn: str
    """Id of the turn; of a decision, of the turn before it."""
    began_ns: int = 0
    has_layer: bool = False
    kept_bytes: int = 0


class StepBook(msgspec.Struct):
    """steps.json"""

    workspace: str
    steps: list[StepRecord] = []
    in_effect: int = 0
    target: int = 0
    """Where ``in_effect`` is going."""
    saved: bool = False
    """Whether all is saved to take the next step on that way."""
    origin: int = 0
    """Where it came from, to go back to if it cannot go on."""
    turning_back: bool = False
    turn_is_open: bool = False
    last_number: int = 0
    identity: tuple[int, int] = (0, 0)
    """Device and inode of the workspace, by which another folder at its path is known."""

    def forget_old(self, turns: int, kept_bytes: int) -> None:
        """Forgets all but the last ``turns`` turns, and those beyond ``kept_bytes``, if their changes are decided."""
        first = size = 0
        closed = max((at for at, step in enumerate(self.steps) if step.kind == "decision"), default=0)
        for at in range(len(self.steps) - 1, -1, -1):
            size += self.steps[at].kept_bytes
            if self.steps[at].kind == "turn":
                first, turns = at, turns - 1
                if at <= closed and (turns <= 0 or size > kept_bytes):
                    break
        del self.steps[:first]
        self.in_effect = self.target = self.origin = self.in_effect - first


def read_record(path: Path, kind: type[T]) -> T | None:
    """``None``: there is no such file. Raises GpuboxError."""
    try:
        return msgspec.convert(read_json(read_bytes(path, _MAX_BYTES), own=True), kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise GpuboxError(f"{path} cannot be read: {error}.", "Move it away to go on without undo.") from None


def write_record(path: Path, value: Any) -> None:
    """Raises OSError."""
    write_atomically(path, json.dumps(msgspec.to_builtins(value)).encode())


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """Makes an OSError one for the owner."""
    try:
        yield
    except OSError as error:
        raise GpuboxError(f"{what} cannot be read or written: {error.strerror}.",
                          "Check the owner of the folder and the free disk space.") from None  # fmt: skip
