"""What a path of a workspace is, so that it is known again; and what a layer holds. Everything by descriptor."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from gpubox.sandbox.layers import MAX_DEPTH, OPEN_FILE, LayerItem, Names, View
from gpubox.sandbox.runs_by_itself import is_cache

_MAX_DIGEST_BYTES = 256 << 20
"""Read after a run to know later whether the owner's files are what they were; of others the stamp must be the same."""


class State(msgspec.Struct, frozen=True):
    """What a path was: enough to know it again, byte for byte."""

    kind: Literal["file", "link", "folder", "other", "late"]
    """``other``: a pipe, socket or device. ``late``: the owner changed it while the program ran that changed it."""
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    stamp: tuple[int, int, int] = (0, 0, 0)
    """Device, inode, ctime (ns): with the same one it was not touched."""
    digest: str = ""
    """Of a file's content; empty: it was not read."""
    target: str = ""
    """Of a link."""


Bases = dict[str, State | None]
"""What the workspace had under each name of a layer; ``None``: nothing."""


def names_of(path: str) -> Names:
    """The names of a path; empty for the workspace itself."""
    return tuple(path.split("/")) if path else ()


def state_of(folder: int, name: str, *, digest: bool = True) -> State | None:
    """The state of ``name`` in an open folder; ``None``: there is nothing. Raises OSError."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    state = State(
        kind_of(status),
        stat.S_IMODE(status.st_mode),
        status.st_size,
        status.st_mtime_ns,
        (status.st_dev, status.st_ino, status.st_ctime_ns),
    )
    if state.kind == "link":
        return msgspec.structs.replace(state, target=os.readlink(name, dir_fd=folder))
    if state.kind != "file" or not digest:
        return state
    with open_file(folder, name) as file:
        return msgspec.structs.replace(state, digest=hashlib.file_digest(file, "blake2b").hexdigest()[:40])


def is_still(folder: int, name: str, known: State | None, *, folder_modes: bool = False) -> bool:
    """Whether ``name`` is what it was: the same file, or one with the same content and mode. Raises OSError."""
    now = state_of(folder, name, digest=False)
    if now is None or known is None or now.kind != known.kind:
        return now is known
    if now.kind == "folder":
        return not folder_modes or now.mode & 0o777 == known.mode & 0o777
    if now.kind == "link":
        return now.target == known.target
    if (now.mode, now.size) != (known.mode, known.size) or now.kind != "file":
        return False
    if (now.stamp, now.mtime_ns) == (known.stamp, known.mtime_ns):
        return True
    now = state_of(folder, name) if known.digest else None
    return now is not None and now.digest == known.digest


def kind_of(status: os.stat_result) -> Literal["file", "link", "folder", "other"]:
    """The kind of a State."""
    kinds = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
    return kinds.get(stat.S_IFMT(status.st_mode), "other")  # type: ignore[return-value]


def open_file(folder: int, name: str) -> io.BufferedReader:
    """A file of a layer for reading, whatever mode a program gave it. Raises OSError."""
    try:
        return os.fdopen(os.open(name, OPEN_FILE, dir_fd=folder), "rb")
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            path, status = Path(f"/proc/self/fd/{handle}"), os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise
            path.chmod(0o600)
            try:
                return path.open("rb")
            finally:
                path.chmod(stat.S_IMODE(status.st_mode))
        finally:
            os.close(handle)


def same_content(one: LayerItem, other: LayerItem) -> bool:
    """Whether two files have the same content. Raises OSError."""
    with open_file(one.folder, one.name) as first, open_file(other.folder, other.name) as second:
        while block := first.read(1 << 20):
            if block != second.read(len(block)):
                return False
        return not second.read(1)


def taken_mode(status: os.stat_result) -> int:
    """The permissions that a take gives: without setuid and setgid, and never so that undo would be kept out."""
    return status.st_mode & 0o1777 | 0o700 if stat.S_ISDIR(status.st_mode) else status.st_mode & 0o777 | 0o400


def item_status(view: View, names: Names) -> os.stat_result | None:
    """The status of a file, link or folder of the view; ``None``: there is none that could be taken."""
    try:
        status = view.status(names)
    except OSError:
        return None
    return status if status and kind_of(status) != "other" else None


@contextlib.contextmanager
def open_item(view: View, names: Names) -> Iterator[io.BufferedReader]:
    """A file of the view, for reading. Raises OSError."""
    with view.folder(names[:-1]) as folder:
        item = folder.find(names[-1])
        if item is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with open_file(item.folder, item.name) as file:
            yield file


class Caches:
    """Which folders of a view hold only what tools make again: that is no change, and is never taken.

    By their name, or by the tag that tools put there (bford.info/cachedir): cargo's target, for one.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[Names, bool] = {(): False}

    def has(self, folder: Names) -> bool:
        """Whether this folder is one, or lies in one."""
        if folder not in self._known:
            self._known[folder] = self.has(folder[:-1]) or is_cache(folder[-1]) or self._is_tagged(folder)
        return self._known[folder]

    def _is_tagged(self, folder: Names) -> bool:
        with contextlib.suppress(OSError), self._view.folder(folder) as opened:
            tag = opened.find("CACHEDIR.TAG")
            if tag and tag.is_file:
                with os.fdopen(os.open(tag.name, OPEN_FILE, dir_fd=tag.folder), "rb") as file:
                    return b"tag created by" in file.read(512)  # who tags a folder of his own says no program
        return False


class BaseRecorder:
    """Records what the workspace has under each name that a layer hides."""

    def __init__(self, live: View, known: Bases, new: Bases, began_ns: int) -> None:
        self._live, self._known, self._new, self._began_ns = live, known, new, began_ns
        self._bytes = _MAX_DIGEST_BYTES
        self._missing: set[Names] = set()
        """Folders that the workspace lacks: nothing in them needs a look."""

    def record(self, names: Names, *, hides: bool) -> None:
        """``hides``: the layer also hides what is in the workspace's folder of this name. Raises OSError."""
        pending = [names]
        while pending:
            names = pending.pop()
            path = "/".join(names)
            if path not in self._known and path not in self._new:
                self._new[path] = self._state(names)
            state = self._new.get(path, self._known.get(path))
            if not hides or not state or state.kind != "folder" or len(names) > MAX_DEPTH:
                continue
            with contextlib.suppress(OSError), self._live.folder(names) as folder:
                pending += [(*names, name) for name in os.listdir(folder.descriptors[0])]  # noqa: PTH208

    def _state(self, names: Names) -> State | None:
        if names[:-1] in self._missing:
            self._missing.add(names)
            return None
        state = None
        with contextlib.suppress(OSError), self._live.folder(names[:-1]) as folder:
            here = folder.descriptors[0]
            state = state_of(here, names[-1], digest=False)
            readable = os.access(names[-1], os.R_OK, dir_fd=here, effective_ids=True, follow_symlinks=False)
            if state and state.kind == "file" and state.size <= self._bytes and readable:
                self._bytes -= state.size
                state = state_of(here, names[-1])
        if state is None:
            self._missing.add(names)
        elif state.kind != "folder" and state.stamp[2] > self._began_ns:
            return State("late")
        return state


def emptied_folders(removed: Collection[Names], view: View, live: View) -> set[Names]:
    """The folders of the workspace that are gone in the view, and hold nothing but what is ``removed``."""
    gone = set(removed)
    above = {names[:depth] for names in removed for depth in range(1, len(names))}
    for names in sorted(above, key=len, reverse=True):
        if item_status(view, names) is None:
            with contextlib.suppress(OSError), live.folder(names) as folder:
                if all((*names, name) in gone for name in os.listdir(folder.descriptors[0])):  # noqa: PTH208
                    gone.add(names)
    return gone - set(removed)


def content_of(state: State | None) -> tuple[object, ...]:
    """What must be equal for two states to be the same."""
    if state is None or state.kind == "folder":
        return (state and state.kind,)
    return (state.kind, state.target) if state.kind == "link" else (state.kind, state.mode, state.digest)
