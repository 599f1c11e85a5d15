"""How much a program has written to the host's disks: into its top layer, and into what serves as its /tmp."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.sandbox.policy import Policy
from gpubox.units import MIB

CLOCK_NANOSECONDS = 20_000_000
"""File times come from a clock that ticks every few milliseconds."""
_MIN_PAUSE_SECONDS, _PAUSE_FACTOR = 0.1, 3.0
"""The pause between two walks through a folder, at least, and as a multiple of the time that a walk takes."""


@dataclass(frozen=True, slots=True)
class RecentChanges:
    """What was created or changed in a folder since a moment."""

    entries: int = 0
    size_bytes: int = 0
    """Disk space of the files."""
    too_deep: bool = False
    """Whether some folder's path is longer than the kernel accepts."""


def recent_changes(folder: Path, since_ns: int, max_entries: int) -> RecentChanges:
    """Walks through ``folder`` without following links, until more than ``max_entries`` are recent.

    Goes by ctime, which no program can set.
    """
    folders, count, size = [""], 0, 0
    while folders and count <= max_entries:
        parent = folders.pop()
        try:
            with os.scandir(folder / parent) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError as error:
                        if error.errno == errno.ENAMETOOLONG:
                            return RecentChanges(count, size, too_deep=True)
                        continue  # it was removed meanwhile
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(f"{parent}/{entry.name}" if parent else entry.name)
                    if status.st_ctime_ns >= since_ns:
                        count += 1
                        if stat.S_ISREG(status.st_mode):
                            size += status.st_blocks * 512
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
    """What one run writes into folders that outlive it and, if no mount bounds it, into its temporary folder."""

    policy: Policy
    scratch: Path | None
    """The host folder that serves as /tmp. None: the run has mounts of its own with a size limit."""
    kept: Sequence[Path] = ()
    """The folders that outlive it, all on one disk: the top layer or the copy."""
    written: int = 0
    """Bytes that its processes had written before."""
    _since_ns: int = field(default_factory=lambda: time.time_ns() - CLOCK_NANOSECONDS)
    _free: tuple[int, int] = (0, 0)
    _next_check: float = 0.0

    def __post_init__(self) -> None:
        if self.kept:
            self._free = _free(self.kept[0])[:2]

    def exceeded_limit(self, pids: list[int]) -> str:
        """The limit that the run exceeded, in words; empty if none. Blocks: it may walk through the folders."""
        began = time.monotonic()
        if began < self._next_check:
            return ""
        try:
            return self._check_scratch() or self._check_kept(pids)
        finally:
            took = time.monotonic() - began
            pause = max(_MIN_PAUSE_SECONDS, took * _PAUSE_FACTOR) if took > 0.01 else 0.0
            self._next_check = time.monotonic() + pause

    def _check_scratch(self) -> str:
        if self.scratch is None:
            return ""
        policy = self.policy
        changes = recent_changes(self.scratch, 0, policy.scratch_files)
        return _describe(changes, policy.scratch_files, policy.scratch_bytes, "its temporary folders")

    def _check_kept(self, pids: list[int]) -> str:
        if not self.kept:
            return ""
        policy = self.policy
        free_bytes, free_files, counts_files = _free(self.kept[0])
        used_bytes, used_files = self._free[0] - free_bytes, self._free[1] - free_files
        if counts_files and used_bytes <= policy.disk_bytes and used_files <= policy.disk_files:
            return ""
        # The disk filled up. That may be another program, such as a model download: look at the files.
        for folder in self.kept:
            changes = recent_changes(folder, self._since_ns, policy.disk_files)
            if problem := _describe(changes, policy.disk_files, policy.disk_bytes, "the workspace"):
                return problem
        if used_bytes <= policy.disk_bytes or written_bytes(pids) - self.written <= policy.disk_bytes:
            return ""
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
