"""What the screen showed last, for its next first frame: one small file. It is drawn dim, and with its age."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from gpubox.sanitize import sanitize_line
from gpubox.storage import DECODE_ERRORS, read_bytes, read_json, write_atomically

MAX_BYTES, MAX_NAMES, MAX_DEVICES = 1 << 16, 100, 8
NAME_CHARS = 80
LARGEST = 1 << 60
"""No number of bytes or of tok/s is larger."""


class LastSeen(NamedTuple):
    """What is kept. Texts are harmless for a terminal."""

    at: str
    """ISO-8601 with its zone."""
    state: str
    """That of the server, or what it did."""
    profile: str = ""
    memory: tuple[tuple[str, int, int], ...] = ()
    """(device, used bytes, all bytes)."""
    tokens_per_second: float | None = None
    profiles: tuple[str, ...] = ()
    """The names in the list, in their order."""

    def age(self, now: datetime) -> str:
        """``as of 07:41``, with the date if that was another day."""
        at, today = datetime.fromisoformat(self.at).astimezone(), now.date()
        day = "" if at.date() == today else f"{at:%d %b} " if at.year == today.year else f"{at:%d %b %Y} "
        return f"as of {day}{at:%H:%M}"


def read_last_seen(path: Path) -> LastSeen | None:
    """What is in the file; None if there is none, or none that gpubox wrote."""
    try:
        value = read_json(read_bytes(path, MAX_BYTES))
        at, memory, speed = value["at"], value["memory"], value["tokens_per_second"]
        datetime.fromisoformat(at).astimezone()
        return LastSeen(
            at,
            _text(value["state"]),
            _text(value["profile"]),
            tuple((_text(name), int(_number(used)), int(_number(total))) for name, used, total in memory[:MAX_DEVICES]),
            None if speed is None else _number(speed),
            tuple(map(_text, value["profiles"][:MAX_NAMES])),
        )
    except (OSError, KeyError, TypeError, OverflowError, *DECODE_ERRORS):
        return None


def write_last_seen(path: Path, seen: LastSeen) -> None:
    """Replaces the file; a disk that takes nothing costs only the next first frame."""
    shown = seen._replace(memory=seen.memory[:MAX_DEVICES], profiles=seen.profiles[:MAX_NAMES])
    with contextlib.suppress(OSError):
        write_atomically(path, json.dumps(shown._asdict()).encode(), wait=False)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return sanitize_line(value[:NAME_CHARS])


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST or math.isnan(value):
        raise ValueError("no number")
    return value
