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
from dataclasses import dataclass
from pathlib import Path

from gpubox.sandbox.disk_monitor import CLOCK_NANOSECONDS
from gpubox.sandbox.layers import (
    OPEN_FILE,
    OPEN_FOLDER,
    Folder,
    LayerItem,
    Names,
    TopLayer,
    View,
    copy_into,
    remove_at,
)
from gpubox.sandbox.policy import Policy

HEAVY = ("node_modules", ".venv", "venv")
"""Folders that are mounted read-only instead of copied, where there are mounts."""
_PIECE_BYTES = 1 << 20
_KEPT_FREE_BYTES = 1 << 30
_MAX_DEPTH = 128
"""What a program nests deeper is not put into a layer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A name that stands for something else in the view than in the copy."""

    names: Names
    seen: LayerItem | None
    """In the view; valid until the next one."""
    copied: os.stat_result | None
    """In the copy."""
    folder: int
    """Descriptor of the copy's folder, valid until the next one; -1: there is none."""


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
            if old and (seen is None or seen.is_folder != stat.S_ISDIR(old.st_mode) or not seen.is_folder):
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
            if seen and (new is None or stat.S_IFMT(new.st_mode) != stat.S_IFMT(seen.status.st_mode)):
                top.remove(names)
            if new and seen and self._keeps_modes and stat.S_ISREG(new.st_mode) and seen.is_file:
                os.chmod(names[-1], stat.S_IMODE(seen.status.st_mode), dir_fd=difference.folder)  # sed -i lost it
                new = os.stat(names[-1], dir_fd=difference.folder, follow_symlinks=False)
            if new:
                top.put(names, LayerItem(names[-1], new, difference.folder))
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
        copied = os.open(self.folder, OPEN_FOLDER)
        try:
            with self.view.folder() as seen:
                yield from _differences(seen, copied, (), since, from_view, frozenset(self.read_only))
        finally:
            os.close(copied)


def _differences(
    seen: Folder | None, copied: int, names: Names, since: int, from_view: bool, without: frozenset[str]
) -> Iterator[Difference]:
    views = {item.name: item for item in (seen.items() if seen else ())}
    copies: dict[str, os.stat_result] = {}
    with os.scandir(copied) as entries:
        for entry in entries:
            copies[entry.name] = entry.stat(follow_symlinks=False)
    for name in sorted((views.keys() | copies.keys()) - without):
        item, copy, path = views.get(name), copies.get(name), (*names, name)
        if item and not _can_be_copied(item):
            item = None
        if copy and not from_view and not _is_ordinary(copy):
            copy = None
        if not _equal(item, copy, copied, since):
            yield Difference(path, item, copy, copied)
        is_folder = item and item.is_folder if from_view else copy and stat.S_ISDIR(copy.st_mode)
        if not is_folder or len(path) > _MAX_DEPTH:
            continue
        with contextlib.ExitStack() as opened:
            if copy and stat.S_ISDIR(copy.st_mode) and copy.st_mode & 0o700 != 0o700:  # the program closed it
                os.chmod(name, stat.S_IMODE(copy.st_mode) | 0o700, dir_fd=copied)
            try:
                inner = os.open(name, OPEN_FOLDER, dir_fd=copied)
            except FileNotFoundError:
                continue
            opened.callback(os.close, inner)
            below = None
            if seen and item and item.is_folder:
                try:
                    below = seen.open_folder(name)
                except PermissionError:
                    continue  # the owner closed it to himself
                opened.callback(below.close)
            yield from _differences(below, inner, path, since, from_view, frozenset())


def _equal(item: LayerItem | None, copy: os.stat_result | None, folder: int, since: int) -> bool:
    """Whether both are the same, times of folders and links aside. Files not touched since ``since`` are not read."""
    if item is None or copy is None:
        return item is None and (copy is None or not _is_ordinary(copy))
    status = item.status
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(copy.st_mode):
        return False
    if item.is_link:
        return item.link_target() == os.readlink(item.name, dir_fd=folder)
    if item.is_folder:
        return status.st_mode | 0o700 == copy.st_mode | 0o700
    if status.st_mode != copy.st_mode:
        return False
    if (status.st_size, status.st_mtime_ns) != (copy.st_size, copy.st_mtime_ns):
        return False
    if max(status.st_ctime_ns, copy.st_ctime_ns) < since:
        return True
    with contextlib.ExitStack() as files:
        one, other = (
            files.enter_context(os.fdopen(os.open(item.name, OPEN_FILE, dir_fd=fd), "rb"))
            for fd in (item.folder, folder)
        )
        while piece := one.read(_PIECE_BYTES):
            if other.read(_PIECE_BYTES) != piece:
                return False
        return not other.read(1)


def _can_be_copied(item: LayerItem) -> bool:
    """Not sockets, FIFOs and devices, nor files that the owner closed to himself."""
    if item.is_file:
        return os.access(item.name, os.R_OK, dir_fd=item.folder, effective_ids=True)
    return item.is_folder or item.is_link


def _is_ordinary(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)
