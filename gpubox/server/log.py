"""The server's log file: rotation, reading from an offset, and what a line says. The parsing is pure.

Line format: llama.cpp common/log.cpp (build 11434): ``M.SS.mmm.uuu L text`` with L one of I W E D; a
continuation line and the messages of the argument parser carry no prefix.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.storage import open_regular

KEPT_LOGS = 5
HEAD_BYTES = 512 * 1024
"""The start of a log, in which the load is."""
LINE_BYTES = 64 * 1024
"""A longer line is cut: one with a prompt in it can be any length, one of a broken program has no end."""
CUT_MARKER = "gpubox: cut at "
"""Begins the line that stands for what was cut out of a log."""
_PREFIX = re.compile(r"^(\d+)\.(\d\d)\.(\d\d\d)\.(\d\d\d) ([IWED]) (.*)$")

_STAGES = (
    ("listening on http", "listening"),
    ("model loaded", "loaded"),
    ("warming up the model", "warming up"),
    ("loading draft model", "loading the draft model"),
    ("creating MTP draft context", "creating the MTP context"),
    ("loading mmproj", "loading mmproj"),
    ("KV buffer size", "allocating the KV cache"),
    ("compute buffer size", "reserving compute buffers"),
    ("model buffer size", "loading weights"),
    ("loading model tensors", "loading weights"),
    ("fitting params to device memory", "fitting to memory"),
    ("loading model", "reading the GGUF"),
)
"""Text of a log line -> the stage of the load it announces (build 11434; unknown lines announce nothing)."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. ``seconds`` since the server's start and ``level`` are ``None`` where it carries no prefix."""

    text: str
    seconds: float | None = None
    level: str | None = None


def parse_line(line: str) -> LogLine:
    """``line`` split into its prefix and its text; any text is a line, none is an error."""
    match = _PREFIX.match(line)
    if not match:
        return LogLine(line)
    minutes, seconds, milli, micro, level, text = match.groups()
    at = int(minutes) * 60 + int(seconds) + int(milli) / 1e3 + int(micro) / 1e6
    return LogLine(text.strip(), at, level)


def load_stage(text: str) -> str | None:
    """The stage of a load that this line announces, or ``None``."""
    return next((stage for needle, stage in _STAGES if needle in text), None)


def rotate_log(path: Path) -> None:
    """Moves the last launch's log aside (``main.log`` -> ``main.log.1`` ...), keeping KEEP of them.

    Raises GpuboxError when the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.stat().st_size == 0:
            return
        for number in range(KEPT_LOGS - 1, 0, -1):
            older = rotated_path(path, number)
            if older.exists():
                older.replace(rotated_path(path, number + 1))
        path.replace(rotated_path(path, 1))
    except OSError as error:
        raise GpuboxError(f"The log folder {path.parent} cannot be written: {error.strerror}.") from None


def keep_failed_log(path: Path, aside: Path) -> None:
    """Keeps the log of a launch that failed as ``aside``, whatever becomes of it in its rotation. Never raises."""
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)
        try:
            os.link(path, aside)  # no second copy of it on the disk
        except OSError:
            import shutil

            shutil.copyfile(path, aside)


def tail_text(path: Path, size: int = 64 * 1024) -> str:
    """The last ``size`` bytes of the log as text; empty where there is none."""
    try:
        with open_regular(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


class LogReader:
    """Reads the new whole lines of a log that grows, is rotated or is cut under it."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self._inode = 0
        self._offset = 0
        self._partial = b""
        self._cut = False
        """Whether reading goes on in the middle of a line, whose rest says nothing."""
        if from_end:
            try:
                found = path.stat()
            except OSError:
                return
            self._inode, self._offset = found.st_ino, found.st_size

    def read(self, limit: int = 1024 * 1024) -> list[str]:
        """The lines written since the last call, at most ``limit`` bytes of them, each at most LINE_BYTES long."""
        try:
            with open_regular(self.path) as file:
                found = os.fstat(file.fileno())  # the path may name another file by now
                if found.st_ino != self._inode or found.st_size < self._offset:
                    same = found.st_ino == self._inode
                    self._inode, self._partial, self._cut = found.st_ino, b"", False
                    # what was left of it was read before
                    self._offset = max(0, file.read(HEAD_BYTES).rfind(f"\n{CUT_MARKER}".encode()) + 1) if same else 0
                file.seek(self._offset)
                data = file.read(limit)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines and self._cut:
            self._cut = False
            del lines[0]
        if self._cut:
            self._partial = b""
        elif len(self._partial) > LINE_BYTES:
            lines.append(self._partial)
            self._partial, self._cut = b"", True
        return [line[:LINE_BYTES].decode("utf-8", errors="replace").rstrip("\r") for line in lines]

    @property
    def offset(self) -> int:
        """Where in the file it reads on."""
        return self._offset

    def behind(self) -> int:
        """Bytes that are written and not read yet."""
        try:
            return max(0, self.path.stat().st_size - self._offset)
        except OSError:
            return 0

    def skip(self, keep: int) -> int:
        """Leaves out what is unread but for the last ``keep`` bytes; returns how many bytes that was."""
        skipped = self.behind() - keep
        if skipped <= 0:
            return 0
        self._offset += skipped
        self._partial, self._cut = b"", True
        return skipped


def rotated_path(path: Path, number: int) -> Path:
    """The log of ``number`` launches (or one cut) ago."""
    return path.with_name(f"{path.name}.{number}")
