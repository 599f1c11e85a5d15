"""What was launched, in a file beside the launch's log: the log of an old launch does not say whose it is.

The history reads it to count the requests that ended while no gpubox looked.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

from gpubox.server.log import record_path
from gpubox.server.state import STATE_BYTES, RunningServer, running_from_values
from gpubox.storage import read_json, read_text, write_atomically


def save_launch_record(log: Path, running: RunningServer) -> None:
    """Writes which launch the log is of. Never raises: a start does not fail for it."""
    with contextlib.suppress(OSError):
        values = {"log_inode": log.stat().st_ino, "running": asdict(running)}
        write_atomically(record_path(log), json.dumps(values).encode())


def read_launch_record(log: Path) -> RunningServer | None:
    """The launch that wrote this log; None if that is not certain."""
    try:
        values = read_json(read_text(record_path(log), STATE_BYTES), own=True)
        # A kill between two renames leaves a record beside the wrong log.
        return running_from_values(values["running"]) if values["log_inode"] == log.stat().st_ino else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def recorded_launches(folder: Path, *, rotated: bool = True) -> list[tuple[Path, RunningServer]]:
    """The logs whose launch is known, the newest of each instance first; ``rotated``: those of earlier launches too."""
    logs = sorted(path.with_suffix("") for path in folder.glob("*.log*.launch" if rotated else "*.log.launch"))
    return [(log, running) for log in logs if (running := read_launch_record(log)) is not None]
