"""Exchanges files of a workspace with those of a step: by descriptor, each complete, and so that a kill loses nothing.

A step keeps two sides of each path that it takes, ``before`` and ``after``. What is not in the workspace lies in the
folder of its side. All of it is on the disk before the first file is exchanged, and doing it again does no harm: after
a kill it is done once more.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from gpubox.sandbox.layers import Names, View
from gpubox.sandbox.states import State, content_of, is_still, names_of, open_file, state_of
from gpubox.storage import copy_attributes, sync_folder

T = TypeVar("T")
_NO_WAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_BLOCK_BYTES = 1 << 20
_SYNC_THREADS = 32


class Put(msgspec.Struct):
    """One path of a step: what the workspace had, and what it gets. ``None``: nothing.

    Of a folder only mode and time are exchanged; a time of 0 is not known, and left as it is.
    """

    path: str
    before: State | None
    after: State | None
    parent: bool = False
    """An owner's folder in which something is exchanged: only its time is put back."""
    slot: int = 0
    """Its name in the folder of a side, unlike that of any other put of the step."""

    @property
    def names(self) -> Names:
        return names_of(self.path)

    @property
    def is_mode(self) -> bool:
        """Whether a folder that stays gets another mode."""
        old, new = self.before, self.after
        both = old and new and old.kind == new.kind == "folder" and not self.parent
        return bool(both and old and new and old.mode != new.mode)

    def is_at(self, folder: int, name: str, state: State | None) -> bool:
        """Whether the path is in this state, one of its two. ``folder``: -1 if there is none. Raises OSError."""
        return is_still(folder, name, state, folder_modes=self.is_mode) if folder >= 0 else state is None

    def is_at_or_gone(self, folder: int, name: str, state: State | None) -> bool:
        """Whether the path may be written: it is in this state, or a kill came between removing and making it."""
        return self.is_at(folder, name, state) or self.is_at(folder, name, None)


class FileExchange:
    """The puts of one step, in both directions."""

    def __init__(self, workspace: Path, folder: Path, puts: list[Put]) -> None:
        self._live, self.puts = View([workspace]), puts
        self.before, self.after = folder / "before", folder / "after"
        self._step = folder.name

    def save(self, *, forward: bool, turning_back: bool = False) -> list[Put]:
        """Copies what the workspace has, to go back to it. Returns the puts of which it has something else.

        Those that are there already need no copy. ``turning_back``: it was changed by what could not be ended. Raises
        OSError.
        """
        others: list[Put] = []
        side = self.before if forward else self.after
        for put in self.puts:
            have, want = (put.before, put.after) if forward else (put.after, put.before)
            with _parent(self._live, put.names) as (folder, name):
                if not put.is_at(folder, name, have):
                    if not put.is_at(folder, name, want):
                        others.append(put)
                    continue
                state = state_of(folder, name) if have else None
                if state and have and state.kind == "folder" and turning_back:
                    state = have  # its time is of what is now undone
                elif state and have and want and state.kind == "folder" and have.mtime_ns not in (0, state.mtime_ns):
                    want = msgspec.structs.replace(want, mtime_ns=0)  # the owner was in it: its time is his
                if state and not put.parent:
                    self._save(folder, name, state, side / str(put.slot))
                put.before, put.after = (state, want) if forward else (want, state)
        together(sync_file, side.iterdir())
        sync_folder(side)
        return others

    @staticmethod
    def _save(folder: int, name: str, state: State, slot: Path) -> None:
        like = Path(f"/proc/self/fd/{folder}/{name}")
        if state.kind == "folder":
            slot.mkdir(mode=0o700, exist_ok=True)
            _set_folder(slot, like, state)
        elif state.kind == "link":
            make_link(slot, state)
        else:
            with open_file(folder, name) as file:
                write_file(slot, file, like, state.mode, state.mtime_ns)

    def apply(self, *, forward: bool) -> list[Put]:
        """Makes the workspace what the side says. Returns the puts that the owner's own changes forbade.

        Raises OSError, after some are done.
        """
        side = self.after if forward else self.before
        puts = [(put, *((put.before, put.after) if forward else (put.after, put.before))) for put in self.puts]
        refused: list[Put] = []
        open_puts: list[tuple[Put, State | None, State | None]] = []
        for put, have, want in puts:
            with _parent(self._live, put.names) as (folder, name):
                if folder >= 0:
                    with contextlib.suppress(OSError):
                        os.unlink(self._temporary(put), dir_fd=folder)
                if put.is_at(folder, name, want):
                    continue
                between = folder < 0 or state_of(folder, name, digest=False) is None
                if put.is_at(folder, name, have) or (between and have and want):  # killed between removing and making
                    open_puts.append((put, have, want))
                else:
                    refused.append(put)
        copies: list[tuple[Put, State | None]] = []
        by_depth = sorted(open_puts, key=lambda item: len(item[0].names))
        for put, have, want in reversed(by_depth):
            goes = have and (want is None or (have.kind == "folder") != (want.kind == "folder"))
            if have and goes and not self._remove(put, have) and want is None:
                refused.append(put)
        for put, have, want in by_depth:
            if want:
                with _parent(self._live, put.names) as (folder, name):
                    if folder < 0:
                        refused.append(put)
                    elif want.kind != "folder":
                        if not put.is_at_or_gone(folder, name, have):  # the owner has just changed it
                            refused.append(put)
                            continue
                        try:
                            os.rename(side / str(put.slot), name, dst_dir_fd=folder)
                        except OSError as error:
                            if error.errno != errno.EXDEV:
                                raise
                            copies.append((put, have))
                            self._copy(folder, self._temporary(put), side / str(put.slot), want)
                    elif have is None or have.kind != "folder":
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o700, dir_fd=folder)
                            if os.geteuid() == 0:
                                owner = os.fstat(folder)
                                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
        together(self._sync_copy, (put for put, _ in copies))
        for put, have in copies:
            with _parent(self._live, put.names) as (folder, name):
                if folder >= 0 and put.is_at_or_gone(folder, name, have):  # the copies took their time
                    os.rename(self._temporary(put), name, src_dir_fd=folder, dst_dir_fd=folder)
                    (side / str(put.slot)).unlink()
                    continue
                refused.append(put)
                if folder >= 0:
                    os.unlink(self._temporary(put), dir_fd=folder)
        self._finish_folders([item for item in puts if item[0] not in refused], side, forward=forward)
        return refused

    def _remove(self, put: Put, have: State) -> bool:
        """False: the owner has just changed it."""
        with _parent(self._live, put.names) as (folder, name):
            if folder >= 0 and not put.is_at_or_gone(folder, name, have):
                return False
            try:
                if folder >= 0:
                    (os.rmdir if have.kind == "folder" else os.unlink)(name, dir_fd=folder)
            except OSError as error:  # it holds something of the owner: it stays
                if error.errno not in (errno.ENOTEMPTY, *_NO_WAY):
                    raise
            return True

    def _temporary(self, put: Put) -> str:
        return f".gpubox-{self._step}-{put.slot}.tmp"

    @staticmethod
    def _copy(folder: int, temporary: str, slot: Path, want: State) -> None:
        """Of a side on another disk, to be renamed once it is on this one."""
        beside = Path(f"/proc/self/fd/{folder}/{temporary}")
        if want.kind == "link":
            make_link(beside, want)
        else:
            with slot_file(slot) as file:
                write_file(beside, file, slot, want.mode, want.mtime_ns)

    def _sync_copy(self, put: Put) -> None:
        with _parent(self._live, put.names) as (folder, _):
            sync_file(Path(f"/proc/self/fd/{folder}/{self._temporary(put)}"))

    def _finish_folders(self, puts: list[tuple[Put, State | None, State | None]], side: Path, *, forward: bool) -> None:
        for put, have, want in sorted(puts, key=lambda item: -len(item[0].names)):
            with _parent(self._live, put.names) as (folder, name):
                if folder < 0 or not want or want.kind != "folder" or not is_still(folder, name, want):
                    continue
                handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    path = Path(f"/proc/self/fd/{handle}")
                    if not put.parent:
                        new, slot = have is None or have.kind != "folder", side / str(put.slot)
                        _set_folder(path, slot if new and slot.is_dir() else None, want)
                    if want.mtime_ns == path.stat().st_mtime_ns:
                        continue
                    if want.mtime_ns:
                        os.utime(path, ns=(want.mtime_ns, want.mtime_ns))
                    else:
                        want = msgspec.structs.replace(want, mtime_ns=path.stat().st_mtime_ns)
                        put.before, put.after = (put.before, want) if forward else (want, put.after)
                finally:
                    os.close(handle)
        together(self._sync_parent, {put.names[:-1] for put, *_ in puts})

    def _sync_parent(self, names: Names) -> None:
        with _parent(self._live, (*names, "")) as (folder, _):
            if folder >= 0:
                os.fsync(folder)


@contextlib.contextmanager
def _parent(live: View, names: Names) -> Iterator[tuple[int, str]]:
    """The open folder of a path, and the name in it; -1: there is no such folder. Raises OSError."""
    with contextlib.ExitStack() as stack:
        folder = -1
        try:
            folder = stack.enter_context(live.folder(names[:-1])).descriptors[0]
        except OSError as error:
            if not names or error.errno not in _NO_WAY:
                raise
        yield folder, names[-1] if names else "."


def write_file(path: Path, source: BinaryIO, like: Path | None, mode: int, mtime_ns: int | None) -> State:
    """Makes a complete file, with owner and attributes of ``like``. Raises OSError."""
    path.unlink(missing_ok=True)
    digest, size = hashlib.blake2b(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            size += file.write(block)
        file.flush()
        if like:
            copy_attributes(like, descriptor)
        os.fchmod(descriptor, mode)
        if mtime_ns is not None:
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        mtime_ns = os.fstat(descriptor).st_mtime_ns
    return State("file", mode, size, mtime_ns, digest=digest.hexdigest()[:40])


def make_link(path: Path, state: State) -> None:
    """Makes a symbolic link with its time. Raises OSError."""
    path.unlink(missing_ok=True)
    path.symlink_to(state.target)
    os.utime(path, ns=(state.mtime_ns, state.mtime_ns), follow_symlinks=False)


def together(sync: Callable[[T], None], items: Iterable[T]) -> None:
    """Calls ``sync`` for each, several at a time, so that the disk writes many at once. Raises what it raises."""
    with ThreadPoolExecutor(_SYNC_THREADS) as threads:
        list(threads.map(sync, items))


def sync_file(path: Path) -> None:
    """Waits until it is on the disk, if it is a regular file. Raises OSError."""
    if stat.S_ISREG(path.lstat().st_mode):
        with slot_file(path) as file:
            os.fsync(file.fileno())


def slot_file(slot: Path) -> BinaryIO:
    """A file of a side for reading, whatever its mode."""
    folder = os.open(slot.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        return open_file(folder, slot.name)
    finally:
        os.close(folder)


def _set_folder(path: Path, like: Path | None, state: State) -> None:
    if like:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                copy_attributes(like, descriptor)
            finally:
                os.close(descriptor)
    if stat.S_IMODE(path.stat().st_mode) != state.mode:
        path.chmod(state.mode)


def changed_since(workspace: Path, puts: list[Put], *, forward: bool) -> set[str]:
    """The paths of which the workspace has neither the one side nor the other. ``puts`` in the order of their steps."""
    changed: set[str] = set()
    states: dict[str, State | None] = {}
    live = View([workspace])
    for put in puts:
        have, want = (put.before, put.after) if forward else (put.after, put.before)
        if put.parent:
            continue
        if put.path in states:
            known = states[put.path]
            same = content_of(known) == content_of(have)
            same = same and not (put.is_mode and known and have and (known.mode ^ have.mode) & 0o777)
        else:
            with _parent(live, put.names) as (folder, name):
                same = put.is_at(folder, name, have) or put.is_at(folder, name, want)
        if not same:
            changed.add(put.path)
        states[put.path] = want
    return changed
