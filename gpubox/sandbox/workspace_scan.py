"""The folder that a program may write: its files before and after a run."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError

MAX_ENTRIES = 50_000
MAX_LISTED = 1_000
MAX_SPECIAL_FILES = 100
_SKIPPED_FOLDERS = frozenset({".git", "node_modules", "__pycache__", ".venv"})


@dataclass(frozen=True, slots=True)
class WorkspaceScan:
    """The contents of a workspace at one moment."""

    files: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """Regular files -> (mtime, ctime, size, inode): at least one of them changes when the file does."""
    special_files: tuple[str, ...] = ()
    """Sockets, FIFOs and devices. Each is a way out of the workspace."""


def check_workspace(folder: Path) -> Path:
    """Returns ``folder`` itself. Raises UsageError if it is no folder, is /, or is reached through a link.

    An earlier program may have made the link, so a front end resolves the owner's path once and keeps the result.
    """
    try:
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", "") or "no such folder"
        raise UsageError(f"The workspace {folder} cannot be used: {why}.", "Name a folder that exists.") from None
    if real != folder.absolute():
        raise UsageError(f"The workspace {folder} is reached through a link.", f"Use {real} instead.")
    if not real.is_dir() or real == Path("/"):
        raise UsageError(f"The workspace {folder} cannot be used.", "Name the folder that the program may write.")
    return real


def scan(folder: Path) -> WorkspaceScan:
    """Lists ``folder`` without following links, at most MAX_ENTRIES of it."""
    files: dict[str, tuple[int, int, int, int]] = {}
    special_files: list[str] = []
    folders, count = [""], 0
    while folders and count < MAX_ENTRIES:
        parent = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder / parent) as entries:
            for entry in entries:
                count += 1
                name = f"{parent}/{entry.name}" if parent else entry.name
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        files[name] = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
                    elif stat.S_ISDIR(status.st_mode):
                        if entry.name not in _SKIPPED_FOLDERS:
                            folders.append(name)
                    elif not stat.S_ISLNK(status.st_mode):
                        special_files.append(name)
                if count >= MAX_ENTRIES:
                    break
    return WorkspaceScan(files, tuple(special_files))


def scan_at_start(folder: Path) -> WorkspaceScan:
    """Scans the workspace before a run. Raises GpuboxError if it has too many special files to block."""
    before = scan(folder)
    if len(before.special_files) > MAX_SPECIAL_FILES:
        raise GpuboxError(
            f"The workspace {folder} holds {len(before.special_files)} sockets, FIFOs or devices.",
            f"gpubox blocks each of them, and at most {MAX_SPECIAL_FILES}: choose another folder.",
        )
    return before


def changed_files(before: WorkspaceScan, after: WorkspaceScan) -> tuple[str, ...]:
    """The new and changed files, sorted, at most MAX_LISTED. Bytes of a name that are not UTF-8 are replaced."""
    names = sorted(name for name, facts in after.files.items() if before.files.get(name) != facts)
    return tuple(os.fsencode(name).decode("utf-8", "replace") for name in names[:MAX_LISTED])
