"""The server's log file: rotate it, read its new lines, split a line into its parts, fold repeated lines.

A line of llama.cpp is ``M.SS.mmm.uuu L text`` with L one of I W E D (common/log.cpp, build 11434). A continuation line
and the messages of the argument parser have no prefix.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.storage import open_regular, private_folder

KEPT_LOGS = 5
HEAD_BYTES = 512 * 1024
"""The start of a log, which holds the load."""
LINE_BYTES = 64 * 1024
"""Longer lines are cut: a line that quotes a prompt can have any length, and a broken program may never end one."""
CUT_MARKER = "gpubox: cut at "
"""Begins the line that replaces the text cut out of a log."""
FOLD_WINDOW = 3
"""A line is folded if it equals one of so many lines shown last."""
LISTENS = re.compile(r"listening on http|HTTP server listening")
"""In the line that says that the model is loaded and the server answers; the second form is ik_llama.cpp's."""
_PREFIX = re.compile(r"^(\d+)\.(\d\d)\.(\d\d\d)\.(\d\d\d) ([IWED]) (.*)$")

_STAGES = (
    ("listening on http", "listening"),
    ("HTTP server listening", "listening"),
    ("model loaded", "loaded"),
    ("warming up the model", "warming up"),
    ("loading draft model", "loading the draft model"),
    ("creating MTP draft context", "creating the MTP context"),
    ("loading mmproj", "loading mmproj"),
    ("KV buffer size", "allocating the KV cache"),
    ("compute buffer size", "reserving compute buffers"),
    ("model buffer size", "loading weights"),
    ("llm_load_tensors: ", "loading weights"),
    ("loading model tensors", "loading weights"),
    ("fitting params to device memory", "fitting to memory"),
    ("loading model", "reading the GGUF"),
)
"""Text of a log line -> the stage of the load that it announces (build 11434)."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. ``seconds`` since the server's start and ``level`` are ``None`` for a line without a prefix."""

    text: str
    seconds: float | None = None
    level: str | None = None


def parse_line(line: str) -> LogLine:
    """Splits ``line`` into its prefix and its text. Never raises."""
    match = _PREFIX.match(line)
    if not match:
        return LogLine(line)
    minutes, seconds, milli, micro, level, text = match.groups()
    at = int(minutes) * 60 + int(seconds) + int(milli) / 1e3 + int(micro) / 1e6
    return LogLine(text.strip(), at, level)


def log_size(path: Path) -> int:
    """The length of the log in bytes; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_cut_at(start: bytes) -> int | None:
    """The position of the line that gpubox left at the last cut, in the ``start`` of a log; ``None`` if it has none."""
    at = (b"\n" + start).rfind(f"\n{CUT_MARKER}".encode())
    return at if at >= 0 else None


def load_stage(text: str) -> str | None:
    """The stage of the load that this line announces, or ``None``."""
    return next((stage for needle, stage in _STAGES if needle in text), None)


def rotate_log(path: Path) -> None:
    """Moves the log of the last launch to ``NAME.1``, the one before to ``.2`` and so on. KEPT_LOGS old logs stay.

    Raises GpuboxError if the folder cannot be written.
    """
    try:
        private_folder(path.parent)
        if not log_size(path):
            return
        for number in range(KEPT_LOGS - 1, -1, -1):
            newer, older = (rotated_path(path, n) if n else path for n in (number, number + 1))
            for source, target in ((newer, older), (record_path(newer), record_path(older))):
                if source.exists():
                    source.replace(target)
    except OSError as error:
        raise GpuboxError(f"The log folder {path.parent} cannot be written: {error.strerror}.") from None


def rotated_path(path: Path, number: int) -> Path:
    """Where the log of ``number`` launches ago is; 1 may also be text cut out of the current log."""
    return path.with_name(f"{path.name}.{number}")


def record_path(log: Path) -> Path:
    """Where ``launch_record`` keeps which launch wrote this log."""
    return log.with_name(f"{log.name}.launch")


def keep_failed_log(path: Path, aside: Path) -> None:
    """Keeps the log of a failed launch as ``aside``, which no rotation removes. Never raises."""
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)
        try:
            os.link(path, aside)  # needs no second copy on the disk
        except OSError:
            import shutil

            shutil.copyfile(path, aside)


def tail_text(path: Path, size: int = 64 * 1024) -> str:
    """The last ``size`` bytes of the log as text; empty if there is no log."""
    try:
        with open_regular(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def tail_lines(path: Path, size: int) -> Iterator[str]:
    """The lines of the last ``size`` bytes of the log, as they are read; a very long one comes in pieces."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        file.seek(max(0, file.seek(0, 2) - size))
        for line in iter(partial(file.readline, LINE_BYTES), b""):
            yield from line.decode("utf-8", errors="replace").splitlines()


class LogReader:
    """Reads the new complete lines of a log, also while the log grows, is rotated or is cut."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self._inode = 0
        self.offset = 0
        """The position in the file where the next read starts."""
        self._partial = b""
        self._skip_rest = False
        """Whether the next bytes are the rest of a line whose start was dropped."""
        if from_end:
            try:
                status = path.stat()
            except OSError:
                return
            self._inode, self.offset = status.st_ino, status.st_size

    def read(self, limit: int = 1024 * 1024) -> list[str]:
        """The lines written since the last call: at most ``limit`` bytes, each line at most LINE_BYTES."""
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())  # the path may name another file by now
                if status.st_ino != self._inode or status.st_size < self.offset:
                    was_cut = status.st_ino == self._inode
                    self._inode, self._partial, self._skip_rest = status.st_ino, b"", False
                    # the text before the cut marker was read already
                    self.offset = last_cut_at(file.read(HEAD_BYTES)) or 0 if was_cut else 0
                file.seek(self.offset)
                data = file.read(limit)
        except OSError:
            return []
        self.offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines and self._skip_rest:
            self._skip_rest = False
            del lines[0]
        if self._skip_rest:
            self._partial = b""
        elif len(self._partial) > LINE_BYTES:
            lines.append(self._partial)
            self._partial, self._skip_rest = b"", True
        return [line[:LINE_BYTES].decode("utf-8", errors="replace").rstrip("\r") for line in lines]

    def behind(self) -> int:
        """Bytes that are written but not read yet."""
        return max(0, log_size(self.path) - self.offset)

    def skip(self, keep: int) -> int:
        """Skips the unread bytes except the last ``keep``; returns how many were skipped."""
        skipped = self.behind() - keep
        if skipped <= 0:
            return 0
        self.offset += skipped
        self._partial, self._skip_rest = b"", True
        return skipped


class RepeatFold:
    """Decides for each line of a log whether to show it: a line that was just shown is counted instead.

    An idle server writes ``all slots are idle`` after each poll (build 11434); others write a few lines in turn.
    """

    def __init__(self) -> None:
        self._shown: deque[tuple[str | None, str]] = deque(maxlen=FOLD_WINDOW)
        self._folded = 0

    def add(self, line: LogLine) -> tuple[int, bool]:
        """How many lines were folded just before ``line``, and whether to show ``line``."""
        key = (line.level, line.text)
        if line.text and key in self._shown:
            self._folded += 1
            return 0, False
        self._shown.append(key)
        return self.flush(), True

    def flush(self) -> int:
        """The number of lines folded since a line was shown; starts a new count."""
        folded, self._folded = self._folded, 0
        return folded

    def reset(self) -> None:
        """Forgets the lines that were shown: the next line is shown whatever it says."""
        self._shown.clear()


def repeats_line(count: int) -> str:
    """The line that stands for ``count`` folded lines."""
    return f"… {count:,} more {'line' if count == 1 else 'lines'} like this"


def fold_repeats(lines: Iterable[str]) -> Iterator[str]:
    """``lines`` with each run of repeats replaced by its count."""
    fold = RepeatFold()
    for line in lines:
        count, shown = fold.add(parse_line(line))
        if count:
            yield repeats_line(count)
        if shown:
            yield line
    if count := fold.flush():
        yield repeats_line(count)
