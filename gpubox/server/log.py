"""The server's log file: rotate it, read its new lines, split a line into its parts, fold repeated lines, cut it.

A line of llama.cpp is ``M.SS.mmm.uuu L text`` with L one of I W E D (common/log.cpp, build 11434). A continuation line
and the messages of the argument parser have no prefix.

The log of a running server that grew too long is cut: the lines of the load stay, the rest is moved aside. The server
opened it in append mode, so it continues at the new end. The line left at the cut says how many requests had ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.storage import open_private, open_regular, private_folder, try_lock

KEPT_LOGS = 5
HEAD_BYTES = 512 * 1024
"""The start of a log, which holds the load."""
LINE_BYTES = 64 * 1024
"""Longer lines are cut: a line that quotes a prompt can have any length, and a broken program may never end one."""
CUT_MARKER = "gpubox: cut at "
"""Begins the line that replaces the text cut out of a log."""
FOLD_WINDOW = 3
"""A line is folded if it equals one of so many lines shown last."""
IDLE = "all slots are idle"
"""In the line that an idle server writes after each poll (build 11434)."""
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
    """Where ``state`` keeps which launch wrote this log."""
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

    @property
    def position(self) -> str:
        """Where the next line begins, for ``go_to`` of another reader."""
        return f"{self._inode}-{self.offset - len(self._partial)}"

    def go_to(self, position: str) -> None:
        """Continues where another reader was. What is no position is the start."""
        inode, _, offset = position.partition("-")
        if all(part.isdecimal() and part.isascii() and len(part) < 20 for part in (inode, offset)):
            self._inode, self.offset = int(inode), int(offset)

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


class LogActivity:
    """Counts how often a log told of something new."""

    def __init__(self, path: Path) -> None:
        self._reader, self._count = LogReader(path, from_end=True), 0

    def count(self) -> int:
        """Grows if the log did, but not for what an idle server writes because gpubox asks it."""
        self._count += any(IDLE not in line for line in self._reader.read())
        return self._count


class RepeatFold:
    """Decides for each line of a log whether to show it: a line that was just shown is counted instead.

    An idle server writes IDLE after each poll; others write a few lines in turn.
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


MAX_LOG_BYTES = 64 * 1024 * 1024
COPY_SECONDS = 60.0
"""A log that grows fast is cut as often as needed, but is copied aside at most once in this time."""
UNLOADED_BYTES = 64 * 1024
MAX_COUNTED_BYTES = 512 * 1024 * 1024
"""Requests are not counted in a longer stretch: reading it would take seconds."""
ENDED = re.compile(rb"\| stop processing: n_|\] slot released \| tid")
"""In the line that a slot writes at the end of a request (tools/server/server-context.cpp, release; ik_llama.cpp's)."""
_OVERLAP = len("| stop processing: n_") - 1
"""Both of them are so long and one more: what two chunks share holds none whole."""
_LOADED = re.compile(LISTENS.pattern.encode())
_CHUNK = 4 * 1024 * 1024
_CUT_LINE = re.compile(rb"^" + CUT_MARKER.encode() + rb"[^,\n]*, after (\d{1,15}) requests:", re.MULTILINE)


def exceeds_limit(path: Path) -> bool:
    """Whether ``truncate_log`` has something to do."""
    return log_size(path) > MAX_LOG_BYTES


def truncate_log(path: Path, *, keep: bool = True) -> None:
    """Cuts the log of a running server if it is longer than MAX_LOG_BYTES. Never raises.

    The lines up to the one that says that the server listens stay, because only they tell where the memory went.
    If it is not in the first HEAD_BYTES, the first UNLOADED_BYTES stay. ``keep``: the old text is copied to ``.log.1``.
    """
    if not exceeds_limit(path):
        return
    try:
        with path.open("r+b") as file:
            if not try_lock(file.fileno()):  # another gpubox truncates it
                return
            if os.fstat(file.fileno()).st_size <= MAX_LOG_BYTES:
                return
            start = file.read(HEAD_BYTES)
            head = _head(start)
            aside = _copy_aside(path) if keep else None
            ended = _ended_requests(path, start)
            file.truncate(len(head))
        with path.open("ab") as file:
            fate = f"the removed lines are in {aside.name}" if aside else "the removed lines are lost"
            after = f", after {ended} requests" if ended is not None else ""
            file.write(f"{CUT_MARKER}{datetime.now(UTC).isoformat(timespec='seconds')}{after}: {fate}\n".encode())
    except (OSError, GpuboxError):
        return


def _head(start: bytes) -> bytes:
    """The lines of the load, without the line of an earlier cut."""
    start = start[: last_cut_at(start)]
    loaded = _LOADED.search(start)
    end = start.find(b"\n", loaded.end()) if loaded else start.rfind(b"\n", 0, UNLOADED_BYTES)
    return start[: end + 1]


def _copy_aside(path: Path) -> Path | None:
    """Copies the log, unless the last copy is newer than COPY_SECONDS. ``None`` if the disk refuses."""
    aside = rotated_path(path, 1)
    try:
        if abs(time.time() - aside.stat().st_mtime) < COPY_SECONDS:
            return aside
    except OSError:
        pass
    import shutil

    try:
        # The log of another launch, whose record says so.
        record_path(aside).unlink(missing_ok=True)
        os.close(open_private(aside, os.O_WRONLY))
        shutil.copyfile(path, aside)
    except OSError:
        aside.unlink(missing_ok=True)
        return None
    return aside


def _ended_requests(path: Path, start: bytes) -> int | None:
    """Requests that ended in the whole log of this launch, also before its last cut; ``None`` if unknown."""
    cut_at, before_cut = last_cut_at(start), 0
    if cut_at is not None:
        if not (cut_line := _CUT_LINE.match(start, cut_at)):
            return None
        before_cut = int(cut_line[1])
    since_cut = count_ended_requests(path, cut_at or 0, log_size(path))
    return None if since_cut is None else before_cut + since_cut


def count_ended_requests(path: Path, begin: int, end: int) -> int | None:
    """Requests whose end is logged in the lines that begin in ``[begin, end)``; 64 MiB take about 30 ms.

    A line that begins before ``end`` and ends behind it is counted: a reader that continues at ``end`` skips it.
    ``None`` if the stretch is too long or cannot be read.
    """
    if end - begin > MAX_COUNTED_BYTES:
        return None
    count, left, overlap = 0, end - begin, b""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            while left > 0 and (data := file.read(min(left, _CHUNK))):
                left -= len(data)
                data = overlap + data
                overlap = data[-_OVERLAP:]
                count += len(ENDED.findall(data))
            rest_of_line = file.read(LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return None
    return count + len(ENDED.findall(overlap + rest_of_line))
