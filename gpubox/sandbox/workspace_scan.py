"""The folder that a program may write: its files before and after a run."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.errors import UsageError
from gpubox.sandbox.auto_run_files import AutoRunFile, Entry, Token, readable, walk

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
