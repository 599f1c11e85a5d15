"""The only writer of a chat file. It appends lines, never rewrites them, and never blocks for long.

Lines reach the kernel at once, so that a killed gpubox loses nothing that was flushed; they reach the disk at the end
of a turn.
"""

from __future__ import annotations

import contextlib
import os
from itertools import groupby
from pathlib import Path

from msgspec import Raw

from gpubox import __version__
from gpubox.agent.chat_log import FORMAT, VERSION, ChatHeader, ChatRecord, LoggedEvent, encode
from gpubox.agent.events import AgentEvent, GenerationStats, PrefillProgress, ReasoningDelta, TextDelta
from gpubox.clock import utc_now
from gpubox.errors import GpuboxError, UsageError
from gpubox.storage import json_line, open_private, private_folder, try_lock

MAX_PENDING_BYTES = 16 * 1024 * 1024
"""Kept while the disk is full. Lines beyond that are lost."""


class ChatJournal:
    """Appends to one chat file and holds its lock. A full disk does not end the chat: see ``problem``."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """Opens the file or creates it. Raises GpuboxError if that fails or another gpubox has it open.

        ``new``: raises UsageError if the file exists.
        """
        self.path = path
        self.problem = ""
        """Why the chat is not saved at the moment; empty: it is."""
        self._pending = bytearray()
        self._deltas: list[ReasoningDelta | TextDelta] = []
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | (os.O_EXCL if new else 0)
            self._file = open_private(private_folder(path.parent) / path.name, flags)
        except FileExistsError:
            raise UsageError(f"There is a chat {path.stem} already.", "Give another name.") from None
        except OSError as error:
            raise GpuboxError(f"The chat {path} cannot be written: {error.strerror}.") from None
        try:
            if not try_lock(self._file):
                raise GpuboxError(
                    f"Another gpubox has the chat {path.stem} open.", "Close it there, or branch it under another name."
                )
            size = os.fstat(self._file).st_size
            if size == 0:
                self.add(ChatHeader(FORMAT, VERSION, __version__, utc_now()))
            elif os.pread(self._file, 1, size - 1) != b"\n":
                self._pending += b"\n"  # a crash cut the last line off: the next one must not continue it
        except BaseException:
            os.close(self._file)
            raise

    def add(self, record: ChatRecord) -> None:
        """Appends one record after the pending deltas. Never raises; see ``problem``."""
        self.flush()
        self._append(record)
        self._write()

    def add_event(self, event: AgentEvent) -> None:
        """Appends one event of the turn. Deltas wait for ``flush`` or for the next other event."""
        if isinstance(event, (PrefillProgress, GenerationStats)):
            return  # of no use once the round is over
        if isinstance(event, (ReasoningDelta, TextDelta)):
            self._deltas.append(event)
        else:
            self.add(LoggedEvent(Raw(json_line(event)), utc_now()))

    @property
    def has_pending(self) -> bool:
        """Whether something is not in the file yet."""
        return bool(self._deltas) or bool(self._pending)

    def flush(self) -> None:
        """Hands the deltas, joined, to the kernel. Never raises; see ``problem``."""
        deltas, self._deltas = self._deltas, []
        for kind, group in groupby(deltas, type):
            joined = kind("".join(delta.text for delta in group))
            self._append(LoggedEvent(Raw(json_line(joined)), utc_now()))
        self._write()

    def sync(self) -> None:
        """Waits until everything is on the disk. Blocking: call it in a thread. Never raises."""
        with contextlib.suppress(OSError):
            os.fdatasync(self._file)

    def close(self) -> None:
        """Writes the rest and releases the lock. May be called twice."""
        if self._file < 0:
            return
        self.flush()
        os.close(self._file)
        self._file = -1

    def _append(self, record: ChatRecord) -> None:
        line = encode(record)
        if len(self._pending) + len(line) <= MAX_PENDING_BYTES:
            self._pending += line

    def _write(self) -> None:
        if self._file < 0:
            return
        while self._pending:
            try:
                written = os.write(self._file, self._pending)
            except OSError as error:
                self.problem = f"The chat is not saved: {error.strerror}."
                return
            del self._pending[:written]  # the next write continues a partial line: nobody else writes to the file
        deleted = os.fstat(self._file).st_nlink == 0
        self.problem = "The chat is not saved any more: its file was deleted." if deleted else ""
