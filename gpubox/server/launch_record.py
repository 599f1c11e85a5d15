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
from gpubox.storage import read_text, write_atomically


def save_launch_record(log: Path, running: RunningServer) -> None:
    """Writes which launch the log is of. Never raises: a start does not fail for it."""
    with contextlib.suppress(OSError):
        values = {"log_inode": log.stat().st_ino, "running": asdict(running)}
        write_atomically(record_path(log), json.dumps(values).encode())


def read_launch_record(log: Path) -> RunningServer | None:
    """The launch that wrote this log; None if that is not certain."""
    try:
        values = json.loads(read_text(record_path(log), STATE_BYTES))
        # A kill between two renames leaves a record beside the wrong log.
        return running_from_values(values["running"]) if values["log_inode"] == log.stat().st_ino else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def recorded_logs(folder: Path) -> list[Path]:
    """The logs that have a record, the newest of each instance first."""
    return sorted(path.with_suffix("") for path in folder.glob("*.log*.launch"))
