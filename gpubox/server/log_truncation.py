"""Cuts the log of a running server that grew too long. The lines of the load stay; the rest is moved aside.

The server opened the log in append mode, so it continues at the new end. The line left at the cut says how many
requests had ended by then.
"""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.server.log import (
    CUT_MARKER,
    HEAD_BYTES,
    LINE_BYTES,
    LISTENS,
    last_cut_at,
    log_size,
    record_path,
    rotated_path,
)
from gpubox.storage import open_private, try_lock

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
