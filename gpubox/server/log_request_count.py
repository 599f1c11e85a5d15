"""How many requests ended in a stretch of a log, without reading it line by line."""

from __future__ import annotations

import re
from pathlib import Path

from gpubox.server.log import CUT_MARKER, HEAD_BYTES, LINE_BYTES

ENDED = b"| stop processing: n_"
"""In the line that a slot writes when it lets go of a request (tools/server/server-context.cpp, release)."""
MOST_BYTES = 512 * 1024 * 1024
"""A longer stretch is not counted: it is of a log that floods, and reading it takes seconds."""
_CHUNK = 4 * 1024 * 1024
_CUT = re.compile(rb"^" + CUT_MARKER.encode() + rb"[^,\n]*, after (\d{1,15}) requests:", re.MULTILINE)


def count_ended_requests(path: Path, begin: int, end: int) -> int | None:
    """Requests whose end is written in the lines that begin in ``[begin, end)``; 64 MiB take about 30 ms.

    A reader that goes on at ``end`` leaves out the line that it comes into the middle of: that one is counted here.
    ``None`` where the stretch is too long or cannot be read.
    """
    if end - begin > MOST_BYTES:
        return None
    count, left, before = 0, end - begin, b""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            while left > 0 and (data := file.read(min(left, _CHUNK))):
                left -= len(data)
                data = before + data
                before = data[-len(ENDED) + 1 :]
                count += data.count(ENDED)
            rest = file.read(LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return None
    return count + (before + rest).count(ENDED)


def ended_requests_before_cut(path: Path) -> tuple[int, int] | None:
    """What the last cut of a log says: requests that had ended, and where the text after it begins.

    ``(0, 0)`` for a log that was never cut; ``None`` where the line does not tell.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return None
    at = head.rfind(f"\n{CUT_MARKER}".encode()) + 1
    if at == 0 and not head.startswith(CUT_MARKER.encode()):
        return 0, 0
    told = _CUT.match(head, at)
    return (int(told[1]), at) if told else None
