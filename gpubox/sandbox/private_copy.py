"""A private copy of what programs see of a workspace, for where no overlay can be mounted.

It is brought up to date before a run, and what the run changed is put into the top layer after it. Blocking.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpubox.sandbox.disk_monitor import CLOCK_NANOSECONDS
from gpubox.sandbox.layers import MAX_DEPTH, LayerItem, Names, TopLayer, View, copy_into, remove_at
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.states import same_content

HEAVY = ("node_modules", ".venv", "venv")
"""Folders that are mounted read-only instead of copied, where there are mounts."""
_KEPT_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Difference:
    """A name that stands for something else in the view than in the copy."""

    names: Names
    seen: LayerItem | None
    """In the view; valid until the next one."""
    copied: LayerItem | None
    """In the copy."""
    folder: int
    """Descriptor of the copy's folder, valid until the next one."""


class PrivateCopy:
    """The copy of one chat."""

    def __init__(self, policy: Policy, folder: Path, owner: int | None, *, heavy: bool) -> None:
        """``heavy``: what HEAVY names can be mounted read-only, and programs may set modes."""
        assert policy.workspace is not None
        self.view = View([*policy.layers, policy.workspace])
        self.folder, self._owner, self._keeps_modes = folder, owner, not heavy
        self._stamp = folder.with_suffix(".stamp")
        self.read_only = tuple(name for name in HEAVY if heavy and self._only_in_workspace(name))
        """Folders that are not copied."""

    def _only_in_workspace(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            own = stat.S_ISDIR((self.view.folders[-1] / name).lstat().st_mode)
            return own and not any(os.path.lexists(layer / name) for layer in self.view.folders[:-1])
        return False

    def synchronize(self) -> None:
        """Makes the copy equal to the view. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._stamp.exists():
            self._require_room()
        for difference in self._differences(from_view=True):
            name, seen, old = difference.names[-1], difference.seen, difference.copied
            if old and not (seen and seen.is_folder and old.is_folder):
                remove_at(difference.folder, name)
            if seen:
                with contextlib.suppress(FileNotFoundError):  # the owner has just removed it
                    copy_into(difference.folder, name, seen, self._owner)
        for name in self.read_only:
            place = self.folder / name
            if not place.is_dir() or place.is_symlink():  # a program may have left a link
                place.unlink(missing_ok=True)
                place.mkdir()
        if self._owner is not None:
            os.chown(self.folder, self._owner, self._owner)
        if not self._stamp.exists():
            self._stamp.touch()
            os.utime(self._stamp, ns=(0, 0))

    def _require_room(self) -> None:
        """The first copy must leave the owner some of his disk. Sparse files are copied whole. Raises OSError."""
        free = shutil.disk_usage(self.folder).free - _KEPT_FREE_BYTES
        for names, item in self.view.walk():
            free -= item.status.st_size if item.is_file and names[0] not in self.read_only else 0
            if free < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))

    def harvest(self) -> None:
        """Puts what differs from the view into its top layer. Raises OSError."""
        now, top = time.time_ns() - CLOCK_NANOSECONDS, TopLayer(self.view, self._owner)
        for difference in self._differences(from_view=False):
            names, seen, new = difference.names, difference.seen, difference.copied
            if seen and (new is None or stat.S_IFMT(new.status.st_mode) != stat.S_IFMT(seen.status.st_mode)):
                top.remove(names)
            if new and seen and self._keeps_modes and new.is_file and seen.is_file:
                os.chmod(new.name, stat.S_IMODE(seen.status.st_mode), dir_fd=new.folder)  # sed -i lost it
                new = replace(new, status=os.stat(new.name, dir_fd=new.folder, follow_symlinks=False))
            if new:
                top.put(names, new)
        os.utime(self._stamp, ns=(now, now))

    def _differences(self, *, from_view: bool) -> Iterator[Difference]:
        """What of the view is not in the copy or else, a folder before what is in it.

        ``from_view``: the caller changes the copy to what is in the view, otherwise the other way round.
        """
        try:
            since = self._stamp.stat().st_mtime_ns
        except FileNotFoundError:
            since = 0
        self.folder.chmod(0o700)
        pending: list[Names] = [()]
        while pending:
            names = pending.pop()
            with contextlib.ExitStack() as opened:
                views: dict[str, LayerItem] = {}
                try:
                    copied = opened.enter_context(View([self.folder]).folder(names))
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        seen = opened.enter_context(self.view.folder(names))
                        views = {item.name: item for item in seen.items() if _can_be_copied(item)}
                except (FileNotFoundError, PermissionError):
                    continue  # the owner has just removed it, or closed it to himself
                items = copied.items(whiteouts=True)
                copies = {item.name: item for item in items if from_view or item.is_ordinary}
                for name in sorted((views.keys() | copies.keys()) - (set() if names else set(self.read_only))):
                    item, copy = views.get(name), copies.get(name)
                    if not _equal(item, copy, since):
                        yield Difference((*names, name), item, copy, copied.descriptors[0])
                    source = item if from_view else copy
                    if source and source.is_folder and len(names) < MAX_DEPTH:
                        if copy and copy.is_folder and copy.status.st_mode & 0o700 != 0o700:  # the program closed it
                            os.chmod(name, stat.S_IMODE(copy.status.st_mode) | 0o700, dir_fd=copy.folder)
                        pending.append((*names, name))


def _equal(item: LayerItem | None, copy: LayerItem | None, since: int) -> bool:
    """Whether both are the same, times of folders and links aside. Files not touched since ``since`` are not read."""
    if item is None or copy is None:
        return item is None and (copy is None or not copy.is_ordinary)
    status, other = item.status, copy.status
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(other.st_mode):
        return False
    if item.is_link:
        return item.link_target() == copy.link_target()
    if item.is_folder:
        return status.st_mode | 0o700 == other.st_mode | 0o700
    if (status.st_mode, status.st_size, status.st_mtime_ns) != (other.st_mode, other.st_size, other.st_mtime_ns):
        return False
    return max(status.st_ctime_ns, other.st_ctime_ns) < since or same_content(item, copy)


def _can_be_copied(item: LayerItem) -> bool:
    """Not sockets, FIFOs and devices, nor files that the owner closed to himself."""
    if item.is_file:
        return os.access(item.name, os.R_OK, dir_fd=item.folder, effective_ids=True)
    return item.is_ordinary
