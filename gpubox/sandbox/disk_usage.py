"""How much a program has written into folders of the host: what no limit of a process or a mount bounds."""

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
from gpubox.units import MIB

_CLOCK_NANOSECONDS = 20_000_000
"""File times are taken from a clock that ticks every few milliseconds."""
_LEAST_PAUSE, _PAUSE_FACTOR = 0.1, 3.0
"""Seconds between two walks through a folder, and how many times longer than a walk the pause is."""


@dataclass(frozen=True, slots=True)
class RecentChanges:
    """What was made or changed in a folder since a moment."""

    entries: int = 0
    size_bytes: int = 0
    """Of files, as the disk counts them; what they took before is taken off."""
    too_deep: bool = False
    """Whether there is a folder whose path is longer than the kernel takes."""


def recent_changes(
    folder: Path, since_ns: int, most: int, before: Mapping[str, tuple[int, int, int, int]]
) -> RecentChanges:
    """Walks through all of ``folder`` without following links, until there are more than ``most`` recent entries.

    By ctime, which no program can set. ``before`` holds the files there were, with their size third.
    """
    waiting, count, size = [""], 0, 0
    while waiting and count <= most:
        inside = waiting.pop()
        try:
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    name = f"{inside}/{entry.name}" if inside else entry.name
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError as error:
                        if error.errno == errno.ENAMETOOLONG:
                            return RecentChanges(count, size, too_deep=True)
                        continue  # it went meanwhile
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(name)
                    if found.st_ctime_ns >= since_ns:
                        count += 1
                        if stat.S_ISREG(found.st_mode):
                            size += max(0, found.st_blocks * 512 - (before[name][2] if name in before else 0))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return RecentChanges(count, size, too_deep=True)
    return RecentChanges(count, size)


def written_bytes(pids: Iterable[int]) -> int:
    """What these processes, and the children they have waited for, gave to disks: proc(5), /proc/PID/io."""
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
    """One run's writing into the workspace and, where no mount bounds it, into its scratch folder."""

    policy: Policy
    scratch: Path | None
    """The host folder that stands for /tmp; None: mounts of the run's own bound it."""
    before: Mapping[str, tuple[int, int, int, int]]
    _since_ns: int = field(default_factory=lambda: time.time_ns() - _CLOCK_NANOSECONDS)
    _free: tuple[int, int] = (0, 0)
    _next_look: float = 0.0

    def __post_init__(self) -> None:
        if self.policy.workspace is not None:
            self._free = _free(self.policy.workspace)[:2]

    def exceeded_limit(self, pids: list[int]) -> str:
        """Which bound the run passed, in a few words; empty where none. Blocks: it may walk through the folders."""
        began = time.monotonic()
        if began < self._next_look:
            return ""
        try:
            return self._scratch_excess() or self._workspace_excess(pids)
        finally:
            took = time.monotonic() - began
            self._next_look = time.monotonic() + (max(_LEAST_PAUSE, took * _PAUSE_FACTOR) if took > 0.01 else 0.0)

    def _scratch_excess(self) -> str:
        if self.scratch is None:
            return ""
        policy = self.policy
        found = recent_changes(self.scratch, 0, policy.scratch_files, {})
        return _words(found, policy.scratch_files, policy.scratch_bytes, "its folders that die with it")

    def _workspace_excess(self, pids: list[int]) -> str:
        policy = self.policy
        if policy.workspace is None or policy.read_only:
            return ""
        free_bytes, free_files, counts_files = _free(policy.workspace)
        used_bytes, used_files = self._free[0] - free_bytes, self._free[1] - free_files
        if counts_files and used_bytes <= policy.disk_bytes and used_files <= policy.disk_files:
            return ""
        # Somebody filled the disk; whoever downloads a model meanwhile is not our program.
        found = recent_changes(policy.workspace, self._since_ns, policy.disk_files, self.before)
        words = _words(found, policy.disk_files, policy.disk_bytes, "the workspace")
        if words or used_bytes <= policy.disk_bytes or written_bytes(pids) <= policy.disk_bytes:
            return words
        return f"disk: more than {policy.disk_bytes // MIB:,} MiB were written"  # into files that have no name any more


def _words(found: RecentChanges, files: int, size: int, where: str) -> str:
    if found.too_deep:
        return f"files: its folders in {where} lie too deep"
    if found.entries > files:
        return f"files: more than {files:,} were made in {where}"
    return f"disk: more than {size // MIB:,} MiB were written into {where}" if found.size_bytes > size else ""


def _free(folder: Path) -> tuple[int, int, bool]:
    """Bytes and inodes that its disk has left, and whether it counts inodes at all: btrfs does not."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_favail, found.f_files > 0


def remove_tree(folder: Path) -> None:
    """Removes ``folder`` with all that a program left in it, however deep: no path to a folder in it is ever long.

    Each folder's content is moved up before the folder is removed. What cannot be removed stays.
    """
    moved, stays = 0, set[str]()
    with contextlib.suppress(OSError):
        while names := [name for name in os.listdir(folder) if name not in stays]:  # noqa: PTH208
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
                            (path / inner).chmod(0o700)  # or its own link to the folder above could not be changed
                        (path / inner).rename(folder / f".{moved}-{secrets.token_hex(4)}")
                    path.rmdir()
                except OSError:
                    stays.add(name)
        folder.rmdir()
