"""Cutting the log of a running server: how the model was loaded and what comes next stay, the rest goes aside.

The server writes in append mode, so it goes on at the end of what is left.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.server.log import CUT_MARKER, HEAD_BYTES, rotated_path
from gpubox.server.log_request_count import count_ended_requests, ended_requests_before_cut
from gpubox.storage import try_lock

MAX_LOG_BYTES = 64 * 1024 * 1024
COPY_SECONDS = 60.0
"""A log that floods is cut as often as it takes, but copied aside no more often than this."""
UNLOADED_BYTES = 64 * 1024
_LOADED = b"listening on http"


def exceeds_limit(path: Path) -> bool:
    """Whether ``truncate_log`` has something to do."""
    try:
        return path.stat().st_size > MAX_LOG_BYTES
    except OSError:
        return False


def truncate_log(path: Path, *, keep: bool = True) -> None:
    """Cuts a running server's log once it is over ROTATE_BYTES, the old text kept as ``.log.1`` where ``keep`` says so.

    Its first lines, up to the one that says that the server listens, stay: they alone tell where the memory went.
    Of a server that never said so the first UNLOADED_BYTES stay. A line that begins with CUT comes after them, and
    says how many requests had ended. Never raises.
    """
    if not exceeds_limit(path):
        return
    try:
        with path.open("r+b") as file:
            if not try_lock(file.fileno()):  # another gpubox truncates it
                return
            if os.fstat(file.fileno()).st_size <= MAX_LOG_BYTES:
                return
            head = _head(file.read(HEAD_BYTES))
            aside = _keep(path) if keep else None
            ended = _ended(path)
            file.truncate(len(head))
        with path.open("ab") as file:
            where = f"what was here is in {aside.name}" if aside else "what was here is gone"
            after = f", after {ended} requests" if ended is not None else ""
            file.write(f"{CUT_MARKER}{datetime.now(UTC).isoformat(timespec='seconds')}{after}: {where}\n".encode())
    except (OSError, GpuboxError):
        return


def _ended(path: Path) -> int | None:
    """Requests that ended in all of this launch's log so far; ``None`` where that is not known any more."""
    before = ended_requests_before_cut(path)
    since = count_ended_requests(path, before[1], path.stat().st_size) if before else None
    return before[0] + since if before and since is not None else None


def _head(start: bytes) -> bytes:
    """The lines of the load, without those of an earlier cut."""
    cut = start.find(f"\n{CUT_MARKER}".encode())
    start = start if cut < 0 else start[: cut + 1]
    found = start.find(_LOADED)
    end = start.find(b"\n", found) if found >= 0 else start.rfind(b"\n", 0, UNLOADED_BYTES)
    return start[: end + 1]


def _keep(path: Path) -> Path | None:
    """Copies the log aside, if that was not just done; ``None`` where the disk refuses: it is then cut all the same."""
    aside = rotated_path(path, 1)
    try:
        if abs(time.time() - aside.stat().st_mtime) < COPY_SECONDS:
            return aside
    except OSError:
        pass
    import shutil

    try:
        shutil.copyfile(path, aside)
    except OSError:
        aside.unlink(missing_ok=True)
        return None
    return aside
