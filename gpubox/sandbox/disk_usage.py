"""How much a program has written into host folders. No process limit and no mount option bounds that."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.sandbox.policy import Policy
from gpubox.sandbox.workspace_scan import CLOCK_NANOSECONDS, Facts
from gpubox.units import MIB

_MIN_PAUSE_SECONDS, _PAUSE_FACTOR = 0.1, 3.0
"""The pause between two walks through a folder, at least, and as a multiple of the time that a walk takes."""


@dataclass(frozen=True, slots=True)
class RecentChanges:
    """What was created or changed in a folder since a moment."""

    entries: int = 0
    size_bytes: int = 0
    """Disk space of the files, less what they used before."""
    too_deep: bool = False
    """Whether some folder's path is longer than the kernel accepts."""


def recent_changes(folder: Path, since_ns: int, max_entries: int, before: Mapping[str, Facts]) -> RecentChanges:
    """Walks through ``folder`` without following links, until more than ``max_entries`` are recent.

    Goes by ctime, which no program can set. ``before`` is ``WorkspaceScan.files`` from the start of the run.
    """
    folders, count, size = [""], 0, 0
    while folders and count <= max_entries:
        parent = folders.pop()
        try:
            with os.scandir(folder / parent) as entries:
                for entry in entries:
                    name = f"{parent}/{entry.name}" if parent else entry.name
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError as error:
                        if error.errno == errno.ENAMETOOLONG:
                            return RecentChanges(count, size, too_deep=True)
                        continue  # it was removed meanwhile
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(name)
                    if status.st_ctime_ns >= since_ns:
                        count += 1
                        if stat.S_ISREG(status.st_mode):
                            size += max(0, status.st_blocks * 512 - (before[name][2] if name in before else 0))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return RecentChanges(count, size, too_deep=True)
    return RecentChanges(count, size)


def written_bytes(pids: Iterable[int]) -> int:
    """Bytes that these processes, and the children they waited for, wrote to disks: proc(5), /proc/PID/io."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/io").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("write_bytes:"))
    return total


@dataclass(eq=False)
class DiskMonitor:
    """What one run writes into the workspace and, if no mount bounds it, into its temporary folder."""

    policy: Policy
    scratch: Path | None
    """The host folder that serves as /tmp. None: the run has mounts of its own with a size limit."""
    before: Mapping[str, Facts]
    _since_ns: int = field(default_factory=lambda: time.time_ns() - CLOCK_NANOSECONDS)
    _free: tuple[int, int] = (0, 0)
    _next_check: float = 0.0

    def __post_init__(self) -> None:
        if self.policy.workspace is not None:
            self._free = _free(self.policy.workspace)[:2]

    def exceeded_limit(self, pids: list[int]) -> str:
        """The limit that the run exceeded, in words; empty if none. Blocks: it may walk through the folders."""
        began = time.monotonic()
        if began < self._next_check:
            return ""
        try:
            return self._check_scratch() or self._check_workspace(pids)
        finally:
            took = time.monotonic() - began
            pause = max(_MIN_PAUSE_SECONDS, took * _PAUSE_FACTOR) if took > 0.01 else 0.0
            self._next_check = time.monotonic() + pause

    def _check_scratch(self) -> str:
        if self.scratch is None:
            return ""
        policy = self.policy
        changes = recent_changes(self.scratch, 0, policy.scratch_files, {})
        return _describe(changes, policy.scratch_files, policy.scratch_bytes, "its temporary folders")

    def _check_workspace(self, pids: list[int]) -> str:
        policy = self.policy
        if policy.workspace is None or policy.read_only:
            return ""
        free_bytes, free_files, counts_files = _free(policy.workspace)
        used_bytes, used_files = self._free[0] - free_bytes, self._free[1] - free_files
        if counts_files and used_bytes <= policy.disk_bytes and used_files <= policy.disk_files:
            return ""
        # The disk filled up. That may be another program, such as a model download: look at the files.
        changes = recent_changes(policy.workspace, self._since_ns, policy.disk_files, self.before)
        problem = _describe(changes, policy.disk_files, policy.disk_bytes, "the workspace")
        if problem or used_bytes <= policy.disk_bytes or written_bytes(pids) <= policy.disk_bytes:
            return problem
        return f"disk: more than {policy.disk_bytes // MIB:,} MiB were written"  # into files that were removed


def _describe(changes: RecentChanges, max_files: int, max_bytes: int, place: str) -> str:
    if changes.too_deep:
        return f"files: its folders in {place} are nested too deeply"
    if changes.entries > max_files:
        return f"files: more than {max_files:,} were made in {place}"
    if changes.size_bytes > max_bytes:
        return f"disk: more than {max_bytes // MIB:,} MiB were written into {place}"
    return ""


def _free(folder: Path) -> tuple[int, int, bool]:
    """Free bytes and inodes of its disk, and whether it counts inodes at all; btrfs does not."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize, disk.f_favail, disk.f_files > 0


def remove_tree(folder: Path) -> None:
    """Removes ``folder`` with everything a program left in it, however deep.

    Moves the contents of each subfolder up before removing it, so that no path gets long. What cannot be removed stays.
    """
    moved, stuck = 0, set[str]()
    with contextlib.suppress(OSError):
        while names := [name for name in os.listdir(folder) if name not in stuck]:  # noqa: PTH208
            for name in names:
                path = folder / name
                try:
                    if path.is_symlink() or not path.is_dir():
                        path.unlink()
                        continue
                    path.chmod(0o700)
                    for inner in os.listdir(path):  # noqa: PTH208
                        moved += 1
                        if not (path / inner).is_symlink() and (path / inner).is_dir():
                            (path / inner).chmod(0o700)  # a folder must be writable for its ".." to change
                        (path / inner).rename(folder / f".{moved}-{secrets.token_hex(4)}")
                    path.rmdir()
                except OSError:
                    stuck.add(name)
        folder.rmdir()
