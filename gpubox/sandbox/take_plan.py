"""What a take puts into the workspace, made ready before the first file changes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpubox.line_diff import line_diff
from gpubox.sandbox.changes import Change, is_replacement
from gpubox.sandbox.layers import Names, TopLayer, View
from gpubox.sandbox.states import (
    Bases,
    State,
    emptied_folders,
    item_status,
    names_of,
    open_item,
    state_of,
    taken_mode,
)
from gpubox.sandbox.taking import Put, make_link, sync_file, together, write_file
from gpubox.sanitize import show_name
from gpubox.storage import sync_folder


class TakePlan:
    """What a take puts into the workspace."""

    def __init__(self, view: View, side: Path, bases: Bases) -> None:
        """``side``: the folder of what is put."""
        self.view, self.live = view, View(view.folders[-1:])
        self.states: Bases = {}
        """What is put, by path."""
        self.notes: list[str] = []
        self.size = 0
        self._side, self._bases = side, bases
        self._puts: dict[str, Put] = {}
        self._contents: dict[str, bytes] = {}

    def add(self, change: Change, hunks: frozenset[int] | None) -> None:
        """Plans one change, or some hunks of it. Raises OSError."""
        names = names_of(change.path)
        if hunks is not None:
            self._contents[change.path] = composed(self.view, names, hunks)
        self._add(names, item_status(self.view, names))
        if change.kind == "folder" and change.runs_by_itself:
            for inner, item in self.view.walk(names):
                if item.is_ordinary:
                    self._add(inner, item.status)

    def _add(self, names: Names, status: os.stat_result | None) -> None:
        path, before = "/".join(names), self._bases.get("/".join(names))
        if before and before.kind == "folder":
            before = self._state(names)
        after = None
        if status is not None:
            mode = self._folder_mode(names, status) if stat.S_ISDIR(status.st_mode) else taken_mode(status)
            if status.st_mode & 0o6000 and not stat.S_ISDIR(status.st_mode):
                self.notes.append(f"{show_name(path)}: its setuid or setgid bit is not taken.")
            if path in self._contents and before:
                mode = before.mode
            with self.view.folder(names[:-1]) as folder:
                item = folder.find(names[-1])
                after = state_of(item.folder, item.name, digest=False) if item else None
            if after is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            after = msgspec.structs.replace(after, mode=mode, mtime_ns=0 if after.kind == "folder" else after.mtime_ns)
            self.size += after.size + (before.size if before else 0)
        self._puts[path] = Put(path, before, after)

    def _state(self, names: Names) -> State | None:
        if not names:
            with self.live.folder() as folder:
                return state_of(folder.descriptors[0], ".", digest=False)
        with contextlib.suppress(OSError), self.live.folder(names[:-1]) as folder:
            return state_of(folder.descriptors[0], names[-1], digest=False)
        return None

    def _folder_mode(self, names: Names, status: os.stat_result) -> int:
        """With the setgid bit of the folder that is there, or of the one above it, which hands down its group."""
        above = next(state for depth in range(len(names), -1, -1) if (state := self._state(names[:depth])))
        own = self._state(names)
        return taken_mode(status) | (own.mode & 0o6000 if own and own.kind == "folder" else above.mode & 0o2000)

    def add_folders(self) -> None:
        """Plans the folders that come and go with what is in them, and the times of those that stay. Raises OSError."""
        for put in list(self._puts.values()):
            for depth in range(1, len(put.names)) if put.after else ():
                names = put.names[:depth]
                if "/".join(names) not in self._puts and self._state(names) is None:
                    self._add(names, item_status(self.view, names))
        removed = {put.names for put in self._puts.values() if put.after is None}
        for names in emptied_folders(removed, self.view, self.live):
            self._puts["/".join(names)] = Put("/".join(names), self._state(names), None)
        for put in list(self._puts.values()):
            path, state = "/".join(put.names[:-1]), self._state(put.names[:-1])
            if path not in self._puts and state and state.kind == "folder":
                after = msgspec.structs.replace(state, mtime_ns=0)
                self._puts[path] = Put(path, state, after, parent=True)

    def stage(self) -> list[Put]:
        """Makes what is put, complete and on the disk. Raises OSError."""
        puts = list(self._puts.values())
        for number, put in enumerate(puts):
            put.slot, slot = number, self._side / str(number)
            if put.after and put.after.kind == "link":
                make_link(slot, put.after)
            elif put.after and put.after.kind == "file":
                put.after = self._stage_file(put, put.after, slot)
                self.states[put.path] = put.after
            if put.after and put.after.kind != "folder" and (put.before is None or put.before.kind != "file"):
                self._own(put, slot)
        together(sync_file, self._side.iterdir())
        sync_folder(self._side)
        return puts

    def _stage_file(self, put: Put, after: State, slot: Path) -> State:
        mtime_ns = None if put.path in self._contents else after.mtime_ns
        with contextlib.ExitStack() as stack:
            like = None
            if put.before and put.before.kind == "file":
                live = stack.enter_context(self.live.folder(put.names[:-1])).descriptors[0]
                like = Path(f"/proc/self/fd/{live}/{put.names[-1]}")
            content = self._contents.get(put.path)
            file: BinaryIO
            file = stack.enter_context(open_item(self.view, put.names)) if content is None else io.BytesIO(content)
            return write_file(slot, file, like, after.mode, mtime_ns)

    def _own(self, put: Put, slot: Path) -> None:
        """What is new belongs to whom its folder belongs, and to a group that the folder hands down."""
        above = (item_status(self.live, put.names[:depth]) for depth in range(len(put.names) - 1, -1, -1))
        folder = next(status for status in above if status)
        if os.geteuid() == 0 or folder.st_mode & stat.S_ISGID:
            os.chown(slot, folder.st_uid if os.geteuid() == 0 else -1, folder.st_gid, follow_symlinks=False)


def composed(view: View, names: Names, hunks: Collection[int]) -> bytes:
    """The workspace's content of a file with these hunks made. Raises OSError."""
    with open_item(View(view.folders[-1:]), names) as before, open_item(view, names) as after:
        return line_diff(before.read(), after.read()).compose(hunks)


def lay_rest(
    layer: TopLayer, view: View, rest: Mapping[str, Change], contents: Mapping[str, bytes], taken: Collection[str]
) -> None:
    """Gives an empty layer what is still open of ``view``. ``contents``: of files of which hunks were dropped.

    ``taken``: what the workspace is about to get. Raises OSError.
    """
    gone = {names for path in (*rest, *taken) if item_status(view, names := names_of(path)) is None}
    hidden = gone | emptied_folders(gone, view, View(layer.view.folders[1:]))
    for path in sorted(rest):
        names = names_of(path)
        if names in gone:
            top = next(names[:depth] for depth in range(1, len(names) + 1) if names[:depth] in hidden)
            over = (item_status(view, top[:depth]) for depth in range(1, len(top)))
            if all(status is None or stat.S_ISDIR(status.st_mode) for status in over):
                with contextlib.suppress(FileNotFoundError):
                    layer.remove(top)
            continue
        if is_replacement(rest[path]) and layer.view.status(names):
            layer.remove(names)
        _lay(layer, view, names, contents.get(path))
        if rest[path].kind == "folder" and rest[path].runs_by_itself:
            for inner, item in view.walk(names):
                if item.is_ordinary:
                    _lay(layer, view, inner, None)
    for names in map(names_of, taken):
        made = item_status(View([layer.path]), names)
        if made and stat.S_ISDIR(made.st_mode):
            _lay(layer, view, names, None)  # the workspace is about to get its mode


def _lay(layer: TopLayer, view: View, names: Names, content: bytes | None) -> None:
    """Gives a layer what the view has at ``names``, or a file with another content. Raises OSError."""
    for depth in range(1, len(names) + 1):
        above = names[:depth]
        with view.folder(above[:-1]) as folder:
            item = folder.find(above[-1])
            if item is None:
                return
            if depth < len(names):
                below = layer.view.status(above)
                if below and not stat.S_ISDIR(below.st_mode):
                    layer.remove(above)
                if below is None or not stat.S_ISDIR(below.st_mode):
                    layer.put(above, item)
            elif content is not None:
                layer.write(names, content, stat.S_IMODE(item.status.st_mode))
            else:
                layer.link(names, item)
