"""What the screen keeps for its next session: the owner's choices, and what it showed last. Two small files."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpubox.sanitize import sanitize_line
from gpubox.storage import DECODE_ERRORS, read_bytes, read_json, write_atomically

MAX_BYTES, MAX_NAMES, MAX_DEVICES = 1 << 16, 100, 8
NAME_CHARS = 80
LARGEST = 1 << 60
"""No number of bytes or of tok/s is larger."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """Choices of the owner, and the terminal's background. Empty: not known, or the default."""

    theme: str = ""
    """A theme that was chosen on the screen; it stands behind the one in config.toml."""
    background: str = ""
    """``light`` or ``dark``: what the terminal answered last."""
    screen: str = ""
    """The last screen."""
    zoom: str = ""
    """The panes that had the whole screen."""
    graph: int = 0
    """Which time the graph showed."""
    toggled_shipped: bool = False
    """Whether the owner shows shipped profiles that the settings hide, or hides those that they show."""


def read_remembered(path: Path) -> Remembered:
    """What the file says; the defaults where it says nothing that makes sense."""
    try:
        values = dict(read_json(read_bytes(path, MAX_BYTES)))
    except (OSError, TypeError, *DECODE_ERRORS):
        return Remembered()
    defaults = asdict(Remembered())
    given = {name: value for name, value in values.items() if type(value) is type(defaults.get(name))}
    return Remembered(**{**defaults, **given})


class LastSeen(NamedTuple):
    """What the screen showed last; it is drawn dim, and with its age. Texts are harmless for a terminal."""

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


def write_remembered(path: Path, remembered: Remembered) -> None:
    """Replaces the file."""
    _write(path, asdict(remembered))


def write_last_seen(path: Path, seen: LastSeen) -> None:
    """Replaces the file."""
    _write(path, seen._replace(memory=seen.memory[:MAX_DEVICES], profiles=seen.profiles[:MAX_NAMES])._asdict())


def _write(path: Path, values: dict[str, Any]) -> None:
    """A disk that takes nothing is no reason to disturb the owner."""
    with contextlib.suppress(OSError):
        write_atomically(path, json.dumps(values).encode(), wait=False)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return sanitize_line(value[:NAME_CHARS])


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST or math.isnan(value):
        raise ValueError("no number")
    return value
