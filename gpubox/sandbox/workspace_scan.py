"""The folder that a program may write: its files before and after a run, and how much it has written."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.sandbox.auto_run_files import AutoRunFile, Entry, Token, readable, walk
from gpubox.sandbox.policy import Policy
from gpubox.units import MIB

MAX_ENTRIES = 200_000
"""Files whose changes are seen. Folders and auto-run files are seen however many there are."""
MAX_LISTED = 1_000
CLOCK_NANOSECONDS = 20_000_000
"""File times come from a clock that ticks every few milliseconds."""
Facts = tuple[int, int, int, int, int, int]
"""mtime, ctime, size, inode, mode and device of a file: at least one of them changes when the file does. Of a folder,
whose times change with what it holds, only the last three."""


@dataclass(eq=False, slots=True)
class WorkspaceScan:
    """The contents of a workspace at one moment."""

    files: dict[str, Facts] = field(default_factory=dict)
    """Every file, link and folder, itself (``""``) included, but those in protected folders."""
    auto_run: list[AutoRunFile] = field(default_factory=list)
    known: set[Token] = field(default_factory=set)
    """By what its auto-run files, and what may become part of a repository, are known."""
    special_files: list[str] = field(default_factory=list)
    """Sockets, FIFOs and devices. Each is a way out of the workspace."""
    linked: list[str] = field(default_factory=list)
    """Files with another name outside, as in the stores of pnpm and uv, or that is an auto-run file."""
    unreadable: list[str] = field(default_factory=list)
    """Folders that even their owner cannot read."""
    complete: bool = True
    """Whether there are no more than MAX_ENTRIES."""
    began_ns: int = field(default_factory=lambda: time.time_ns() - CLOCK_NANOSECONDS)

    def modes(self) -> dict[str, int]:
        """The permissions of every folder."""
        return {path: stat.S_IMODE(facts[4]) for path, facts in self.files.items() if stat.S_ISDIR(facts[4])}


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


def facts_of(status: os.stat_result) -> Facts:
    """What is compared of one file or folder."""
    times = (0, 0, 0) if stat.S_ISDIR(status.st_mode) else (status.st_mtime_ns, status.st_ctime_ns, status.st_size)
    return *times, status.st_ino, status.st_mode, status.st_dev


def scan(
    folder: Path,
    *,
    inside: bool = False,
    modes: Mapping[str, int] | None = None,
    moves: Callable[[Entry], bool] | None = None,
) -> WorkspaceScan:
    """Lists ``folder`` without following links. ``modes`` as in ``walk``. After a run, what ``moves`` away is left out.

    ``inside``: the program could change what is in auto-run files. Raises OSError if ``folder`` cannot be read.
    """
    result = WorkspaceScan(files={"": facts_of(os.lstat(folder))})
    seen: Counter[tuple[int, int]] = Counter()
    linked: list[tuple[str, os.stat_result]] = []
    for entry in walk(folder, result.unreadable, modes=modes, inside=inside or not moves):
        try:
            if moves and moves(entry):
                result.files.pop(entry.path, None)
                continue
            item = entry.item
            if not (item.is_file(follow_symlinks=False) or item.is_dir(follow_symlinks=False) or item.is_symlink()):
                result.special_files.append(entry.path)
            if entry.within and not inside:
                continue  # read-only for the program
            if entry.kind:
                result.auto_run.append(entry.auto_run_file())
            if entry.kind or entry.is_part:
                result.known.add(entry.token())
            status = entry.status
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # otherwise it was removed meanwhile
                result.unreadable.append(entry.path)
            continue
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode) and (inside or not entry.kind):  # else read-only
            seen[status.st_dev, status.st_ino] += 1
            linked.append((entry.path, status))
        if len(result.files) <= MAX_ENTRIES or stat.S_ISDIR(status.st_mode):
            result.files[entry.path] = facts_of(status)
        else:
            result.complete = False
    result.linked = [path for path, status in linked if status.st_nlink > seen[status.st_dev, status.st_ino]]
    return result


def changed_files(before: WorkspaceScan, after: WorkspaceScan, moved: Collection[str] = ()) -> tuple[str, ...]:
    """What was created, changed or removed, sorted, but not what was ``moved`` out.

    A folder stands for itself (``folder/``) if it is new and empty or its mode changed. Bytes of a name that are not
    UTF-8 are replaced. Of more than MAX_LISTED the new files are only counted, for each folder at the top.
    """
    parents = {path.rpartition("/")[0] for path in after.files}
    texts: dict[str, bool] = {}  # -> whether it is new
    for path, facts in after.files.items():
        old, is_folder = before.files.get(path), stat.S_ISDIR(facts[4])
        if old == facts or (is_folder and (old is None or old[4] == facts[4]) and path in parents):
            continue
        if old is None and not before.complete and not is_folder and facts[1] < before.began_ns:
            continue  # it was there
        texts[f"{path or '.'}/" if is_folder else path] = old is None
    gone = {path for path in before.files.keys() - after.files.keys() if after.complete and path not in moved}
    texts |= {f"{path} (removed)": False for path in gone if path.rpartition("/")[0] not in gone}
    names = sorted(texts, key=(lambda name: (texts[name], name)) if len(texts) > MAX_LISTED else None)
    more = Counter(name.partition("/")[0] if "/" in name else "." for name in names[MAX_LISTED:])
    rest = (f"{folder}/ ({count:,} more)" for folder, count in more.items())
    return tuple(map(readable, (*names[:MAX_LISTED], *rest)))


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
