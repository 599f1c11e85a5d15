"""A folder for the programs of one open chat that has no workspace. Blocking; run in a thread."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.sandbox.disk_usage import remove_tree


def create_scratch(paths: Paths) -> Path:
    """A new empty folder. Those of gpuboxes that are gone are removed. Raises GpuboxError."""
    try:
        paths.scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in paths.scratch.iterdir():
            if not _lives(left.name.partition("-")[0]):
                remove_tree(left)
        outer = paths.scratch / f"{os.getpid()}-{secrets.token_hex(4)}"
        outer.mkdir(mode=0o700)
        folder = outer / "work"
        folder.mkdir()
        folder.chmod(0o777)  # under root the programs run as another user; the folder around it is closed to others
    except OSError as error:
        raise GpuboxError(f"{paths.scratch} cannot be written: {error.strerror}.", "Free some disk space.") from None
    return folder.resolve()  # the Sandbox takes no folder that is named through a link


def remove_scratch(folder: Path) -> None:
    """Removes what ``create_scratch`` made."""
    remove_tree(folder.parent)


def _lives(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    with contextlib.suppress(PermissionError, OverflowError):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
    return True
