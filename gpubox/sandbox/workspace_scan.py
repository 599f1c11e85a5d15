"""The folder a program may write: what lies in it before and after a run."""

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
_NOT_LOOKED_INTO = frozenset({".git", "node_modules", "__pycache__", ".venv"})


@dataclass(frozen=True, slots=True)
class WorkspaceScan:
    """The regular files of a workspace with what changes when they do, and what is neither file nor folder nor link."""

    files: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    special_files: tuple[str, ...] = ()
    """Sockets, FIFOs and devices: each leads out of the workspace."""
    size_bytes: int = 0
    entries: int = 0


def check_workspace(folder: Path) -> Path:
    """The folder itself. Raises UsageError where it is none, is the whole machine, or is named through a link.

    A link may have been put there by an earlier program, so who lets the owner name one resolves it once.
    """
    try:
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", "") or "no such folder"
        raise UsageError(f"The workspace {folder} cannot be used: {why}.", "Name a folder that exists.") from None
    if real != folder.absolute():
        raise UsageError(f"The workspace {folder} is reached through a link.", f"Name {real} itself.")
    if not real.is_dir() or real == Path("/"):
        raise UsageError(f"The workspace {folder} cannot be used.", "Name the folder the program may write.")
    return real


def scan(folder: Path) -> WorkspaceScan:
    """What lies in ``folder`` now, without following a link; at most MOST_ENTRIES of it."""
    files: dict[str, tuple[int, int, int, int]] = {}
    special_files: list[str] = []
    waiting, seen, size = [""], 0, 0
    while waiting and seen < MAX_ENTRIES:
        inside = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(folder / inside) as entries:
            for entry in entries:
                seen += 1
                name = f"{inside}/{entry.name}" if inside else entry.name
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        files[name] = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
                        size += found.st_blocks * 512
                    elif stat.S_ISDIR(found.st_mode):
                        if entry.name not in _NOT_LOOKED_INTO:
                            waiting.append(name)
                    elif not stat.S_ISLNK(found.st_mode):
                        special_files.append(name)
                if seen >= MAX_ENTRIES:
                    break
    return WorkspaceScan(files, tuple(special_files), size, seen)


def scan_at_start(folder: Path) -> WorkspaceScan:
    """What lies in the workspace as a run begins. Raises GpuboxError where it cannot be closed."""
    found = scan(folder)
    if len(found.special_files) > MAX_SPECIAL_FILES:
        why = f"The workspace {folder} holds {len(found.special_files)} sockets, FIFOs or devices."
        raise GpuboxError(
            why, f"Each has to be closed to the program, and at most {MAX_SPECIAL_FILES} are: choose another."
        )
    return found


def changed_files(before: WorkspaceScan, after: WorkspaceScan) -> tuple[str, ...]:
    """The files that are new or changed, sorted, at most MOST_LISTED; a name that is no UTF-8 is made printable."""
    names = sorted(name for name, facts in after.files.items() if before.files.get(name) != facts)
    return tuple(os.fsencode(name).decode("utf-8", "replace") for name in names[:MAX_LISTED])
