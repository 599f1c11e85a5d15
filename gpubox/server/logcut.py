"""Cutting the log of a running server: how the model was loaded and what comes next stay, the rest goes aside.

The server writes in append mode, so it goes on at the end of what is left.
"""

from __future__ import annotations

import fcntl
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from gpubox.server.log import CUT, HEAD_BYTES, numbered

ROTATE_BYTES = 64 * 1024 * 1024
COPY_SECONDS = 60.0
"""A log that floods is cut as often as it takes, but copied aside no more often than this."""
_LOADED = b"listening on http"


def is_long(path: Path) -> bool:
    """Whether ``trim`` has something to do."""
    try:
        return path.stat().st_size > ROTATE_BYTES
    except OSError:
        return False


def trim(path: Path) -> None:
    """Cuts a running server's log once it is over ROTATE_BYTES, the old text kept as ``.log.1``.

    Its first lines, up to the one that says that the server listens, stay: they alone tell where the memory went.
    A line that begins with CUT comes after them. Never raises.
    """
    if not is_long(path):
        return
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two gpuboxes would copy what the first has left
            if os.fstat(file.fileno()).st_size <= ROTATE_BYTES:
                return
            head = _head(file.read(HEAD_BYTES))
            aside = _keep(path)
            file.truncate(len(head))
        with path.open("ab") as file:
            where = f"what was here is in {aside.name}" if aside else "what was here is gone, it could not be kept"
            file.write(f"{CUT}{datetime.now(UTC).isoformat(timespec='seconds')}: {where}\n".encode())
    except OSError:
        return


def _head(start: bytes) -> bytes:
    """The lines of the load; empty where there are none."""
    found = start.find(_LOADED)
    end = start.find(b"\n", found)
    return start[: end + 1] if found >= 0 and end >= 0 else b""


def _keep(path: Path) -> Path | None:
    """Copies the log aside, if that was not just done; ``None`` where the disk refuses: it is then cut all the same."""
    aside = numbered(path, 1)
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
