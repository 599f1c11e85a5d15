"""The one writer of a chat file: a line as things happen, never rewritten, never blocking for long.

Lines go to the kernel at once (a killed gpubox loses nothing that was flushed) and to the disk at the end of a turn.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from gpubox import __version__
from gpubox.agent.events import AgentEvent, GenerationStats, PrefillProgress, ReasoningDelta, TextDelta
from gpubox.agent.transcript.records import FORMAT, VERSION, ChatHeader, ChatRecord, LoggedEvent, encode, to_json
from gpubox.errors import GpuboxError, UsageError
from gpubox.server.state import utc_now
from gpubox.storage import try_lock

PENDING_BYTES = 16 * 1024 * 1024
"""Held back while the disk is full; beyond that the newest is lost."""


class ChatJournal:
    """Appends to one chat file, under its lock. A disk that fills up ends no chat: see ``problem``."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Opens the file, or makes it. Raises GpuboxError where it cannot, or another gpubox writes to it.

        With ``new`` a file that is there already is a UsageError.
        """
        self.path = path
        self.problem = ""
        """Why the chat is not saved just now; empty: all is on its way to the disk."""
        self._pending = bytearray()
        self._deltas: list[ReasoningDelta | TextDelta] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_EXCL if new else 0)
            self._file = os.open(path, flags, 0o600)
        except FileExistsError:
            raise UsageError(f"There is a chat {path.stem} already.", "Give another name.") from None
        except OSError as error:
            raise GpuboxError(f"The chat {path} cannot be written: {error.strerror}.") from None
        try:
            self._begin()
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self) -> None:
        if not try_lock(self._file):
            raise GpuboxError(
                f"Another gpubox has the chat {self.path.stem} open.",
                "Close it there, or branch it under another name.",
            )
        size = os.fstat(self._file).st_size
        if size == 0:
            self.add(ChatHeader(FORMAT, VERSION, __version__, utc_now()))
        elif os.pread(self._file, 1, size - 1) != b"\n":
            self._pending += b"\n"  # the line was cut off by a crash: it stays what it is, alone

    def add(self, record: ChatRecord) -> None:
        """Appends one record, after the deltas before it. Never raises; see ``problem``."""
        self.flush()
        self._queue(encode(record))
        self._write()

    def event(self, event: AgentEvent) -> None:
        """Appends one event of the turn. Deltas wait for ``flush`` or the next other event."""
        if isinstance(event, (PrefillProgress, GenerationStats)):
            return  # they say nothing once they are over
        if isinstance(event, (ReasoningDelta, TextDelta)):
            self._deltas.append(event)
            return
        self.add(LoggedEvent(_raw(event), utc_now()))

    @property
    def waiting(self) -> bool:
        """Whether there are deltas that no file holds yet."""
        return bool(self._deltas) or bool(self._pending)

    def flush(self) -> None:
        """Hands the deltas so far to the kernel, joined. Never raises; see ``problem``."""
        deltas, self._deltas = self._deltas, []
        at = utc_now() if deltas else ""
        while deltas:
            kind = type(deltas[0])
            count = next((i for i, delta in enumerate(deltas) if type(delta) is not kind), len(deltas))
            joined = kind("".join(delta.text for delta in deltas[:count]))
            self._queue(encode(LoggedEvent(_raw(joined), at)))
            deltas = deltas[count:]
        self._write()

    def sync(self) -> None:
        """Waits until the disk has it all. Blocks: call it in a thread. Never raises."""
        with contextlib.suppress(OSError):
            os.fdatasync(self._file)

    def is_gone(self) -> bool:
        """Whether the file was deleted while it was open: what is written now can be found by nobody."""
        try:
            return os.fstat(self._file).st_nlink == 0
        except OSError:
            return True

    def close(self) -> None:
        """Writes what is left and gives the lock back."""
        if self._file < 0:
            return
        self.flush()
        os.close(self._file)
        self._file = -1

    def _queue(self, line: bytes) -> None:
        if len(self._pending) + len(line) <= PENDING_BYTES:
            self._pending += line

    def _write(self) -> None:
        while self._pending:
            try:
                written = os.write(self._file, self._pending)
            except OSError as error:
                self.problem = f"The chat is not saved: {error.strerror}."
                return
            del self._pending[:written]  # what is left of a line follows it, as there is but one writer
        self.problem = "The chat is not saved any more: its file was deleted." if self.is_gone() else ""


def _raw(event: AgentEvent) -> msgspec.Raw:
    return msgspec.Raw(to_json(event))
