"""What the screen remembers of its last session, in one small file."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gpubox.storage import read_json, read_text, write_atomically

MAX_BYTES = 64 * 1024


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
        values = dict(read_json(read_text(path, MAX_BYTES), own=True))
    except (OSError, ValueError, TypeError):
        return Remembered()
    defaults = asdict(Remembered())
    given = {name: value for name, value in values.items() if type(value) is type(defaults.get(name))}
    return Remembered(**{**defaults, **given})


def write_remembered(path: Path, remembered: Remembered) -> None:
    """Writes the file. A disk that refuses is no reason to disturb the owner."""
    with contextlib.suppress(OSError):
        write_atomically(path, json.dumps(asdict(remembered)).encode())
