"""What the open layers change in a workspace: files, hunks, modes, links and folders, and which the owner may take.

Only read here; steps.py writes. Blocking; run it in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import msgspec

from gpubox import units
from gpubox.line_diff import is_binary, line_diff
from gpubox.sandbox.layers import OPEN_FILE, Folder, Item, Names, View
from gpubox.sandbox.runs_by_itself import REPOSITORY, is_bare_repository, is_cache, is_repository_part, why_it_runs

MAX_DEPTH = 128
"""What lies in folders nested deeper than this is neither shown nor taken."""
_MAX_FILE_BYTES, _MAX_DIFF_BYTES = 4 << 20, 64 << 20
"""Of the contents of one file before and after, and of all: beyond it only sizes are shown."""

ChangeKind = Literal["new", "changed", "removed", "mode", "link", "folder"]
"""``mode``: nothing but the permissions, of a file or folder. ``link``: a symbolic link, new or changed. ``folder``: a
new empty one, one in place of a file, or one that is taken whole because the owner's tools run what is in it."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines of one place in a file that are taken or left together."""

    index: int
    """From 0, in the order of the file."""
    header: str
    """``@@ -3,7 +3,8 @@``"""
    lines: tuple[str, ...]
    """With their `` ``, ``+`` or ``-``, to be shown: what is not UTF-8 is replaced, a carriage return visible."""


@dataclass(frozen=True, slots=True)
class Change:
    """What the open layers make of one path."""

    path: str
    """Relative to the workspace, with slashes; bytes that are not UTF-8 are surrogates (os.fsdecode)."""
    kind: ChangeKind
    old_mode: int | None
    """Permissions; ``None``: there was nothing. New ones are without setuid and setgid, which are never taken."""
    new_mode: int | None
    old_bytes: int | None
    """Sizes of files; ``None``: no file."""
    new_bytes: int | None
    hunks: tuple[Hunk, ...] = ()
    """Empty for binary and very large files, modes, links and folders."""
    added: int = 0
    """Lines."""
    removed: int = 0
    runs_by_itself: str = ""
    """Why the owner's tools would run it (``a git hook``): it needs a yes of its own. Empty: nothing runs it."""
    conflict: str = ""
    """Why it cannot be taken, a sentence: the owner changed it meanwhile. Empty: it can."""
    old_target: str | None = None
    """Where a symbolic link leads; ``None``: no link."""
    new_target: str | None = None


Choice = Mapping[str, frozenset[int] | None]
"""Path -> numbers of its hunks; ``None``: the whole file."""


def unified(change: Change) -> str:
    """The diff of one file as text, with a line break at its end; of what has no lines a sentence."""
    path, about = printable(change.path), describe(change)
    if not change.hunks:
        return f"{path}: {about}\n"
    old, new = (path if known is not None else "/dev/null" for known in (change.old_bytes, change.new_bytes))
    modes = f"{path}: {_mode_words(change)}\n" if change.old_mode and _mode_words(change) else ""
    lines = [line for hunk in change.hunks for line in (hunk.header, *hunk.lines)]
    return "\n".join([f"{modes}--- {old}", f"+++ {new}", *lines, ""])


def describe(change: Change) -> str:
    """What happens to the path, in a few words."""
    what = {"new": "new file", "removed": "removed", "folder": "new folder", "mode": _mode_words(change)}
    text = what.get(change.kind, change.kind)
    if change.kind == "link":
        text = f"{'link' if change.old_target is not None else 'new link'} to {printable(change.new_target or '')}"
    sizes = [units.file_size(size) for size in (change.old_bytes, change.new_bytes) if size is not None]
    counted = change.added or change.removed
    size = f"+{change.added} -{change.removed}" if counted else " -> ".join(sizes) if change.kind != "mode" else ""
    extra = _mode_words(change) if change.kind == "changed" else ""
    return ", ".join(part for part in (text, size, extra) if part)


def printable(path: str) -> str:
    """The path for people: what is not printable or no UTF-8 is replaced."""
    return "".join(char if char.isprintable() else "\ufffd" for char in path)


def is_replacement(change: Change) -> bool:
    """Whether a folder takes the place of something else, or something else that of a folder."""
    was_folder = change.old_mode is not None and change.old_bytes is None and change.old_target is None
    return change.kind == "folder" and change.old_mode is not None or change.kind in ("changed", "link") and was_folder


def _mode_words(change: Change) -> str:
    if change.old_mode is None or change.new_mode is None or change.old_mode == change.new_mode:
        return ""
    return f"mode {change.old_mode:o} -> {change.new_mode:o}"


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
    with os.fdopen(os.open(name, OPEN_FILE, dir_fd=folder), "rb") as file:
        return msgspec.structs.replace(state, digest=digest_of(file))


def is_still(folder: int, name: str, known: State | None) -> bool:
    """Whether ``name`` is what it was: the same file, or one with the same content and mode. Raises OSError."""
    now = state_of(folder, name, digest=False)
    if now is None or known is None or now.kind != known.kind:
        return now is known
    if now.kind == "folder":
        return True
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


def digest_of(file: BinaryIO) -> str:
    """Of what is left to read."""
    return hashlib.file_digest(file, "blake2b").hexdigest()[:40]


def open_file(folder: int, name: str) -> BinaryIO:
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


def taken_mode(status: os.stat_result) -> int:
    """The permissions that a take gives: without setuid and setgid."""
    return status.st_mode & (0o1777 if stat.S_ISDIR(status.st_mode) else 0o777)


_UNKNOWN = State("other")


class Comparison:
    """The merged View beside the workspace as it is now."""

    def __init__(self, layers: Sequence[Path], workspace: Path, bases: Mapping[str, State | None]) -> None:
        """``bases``: what the workspace had, by path, when a layer first named it."""
        self.view, self.live, self._bases = View([*layers, workspace]), View([workspace]), bases
        self._hunk_bytes = _MAX_DIFF_BYTES
        self.changes: dict[str, Change] = {}

    def run(self) -> list[Change]:
        """All changes, sorted by path. Raises OSError if the workspace cannot be read."""
        pending: list[Names] = [()]
        while pending:
            pending += self._compare_folder(pending.pop())
        self._spread_conflicts()
        return [self.changes[path] for path in sorted(self.changes)]

    def _compare_folder(self, names: Names) -> list[Names]:
        """Returns the folders in it that are still to be compared. Only what a layer names can differ."""
        inner: list[Names] = []
        with _folder(self.view, names) as merged, _folder(self.live, names) as live:
            touched: set[str] = set()
            below = merged.descriptors[-1] if merged else -1
            through = merged and live and os.path.samestat(os.fstat(below), os.fstat(live.descriptors[0]))
            for descriptor in (*(merged.descriptors if merged else ()), *(live.descriptors if live else ())):
                if not (through and (descriptor == below or (live and descriptor == live.descriptors[0]))):
                    touched.update(os.listdir(descriptor))  # noqa: PTH208 - by descriptor
            listed = False
            for name in touched:
                if merged and is_cache(name):
                    continue
                new = merged.find(name) if merged else None
                new = None if new and kind_of(new.status) == "other" else new
                old = live.find(name) if live else None
                if new is None and old is None:
                    continue
                listed = True
                if self._compare((*names, name), new, old, merged, live) and len(names) < MAX_DEPTH:
                    inner.append((*names, name))
            if not listed and names and (merged is None or live is None) and "/".join(names) not in self.changes:
                self._add_empty_folder(names)
        return inner

    def _add_empty_folder(self, names: Names) -> None:
        new, old = self.view.status(names), self.live.status(names)
        path, kind = "/".join(names), "folder" if old is None else "removed"
        if new is not None and old is not None:
            return
        conflict = self._folder_conflict(path, old)
        modes = taken_mode(old) if old else None, taken_mode(new) if new else None
        self.changes[path] = Change(
            path, cast(ChangeKind, kind), *modes, None, None, runs_by_itself=why_it_runs(path), conflict=conflict
        )

    def _compare(
        self, names: Names, new: Item | None, old: Item | None, merged: Folder | None, live: Folder | None
    ) -> bool:
        """Adds the change of one path, if there is one. Returns whether there is a folder to compare."""
        path = "/".join(names)
        new_kind, old_kind = new and kind_of(new.status), old and kind_of(old.status)
        modes = taken_mode(old.status) if old else None, taken_mode(new.status) if new else None
        targets: dict[str, Any] = {
            "old_target": old.link_target() if old and old_kind == "link" else None,
            "new_target": new.link_target() if new and new_kind == "link" else None,
        }
        why = self._why(path, names, targets["new_target"], merged, removed=new is None)
        if new_kind == "folder" or (new is None and old_kind == "folder"):
            if old_kind == new_kind and modes[0] != modes[1]:
                conflict = self._folder_conflict(path, old.status if old else None, mode=True)
                self.changes[path] = Change(path, "mode", *modes, None, None, runs_by_itself=why, conflict=conflict)
            elif new and old is None and why:  # whole: a venv has thousands of files
                count, size = self._measure(names)
                conflict = self._conflict(path, None, live)
                self.changes[path] = Change(
                    path, "folder", None, modes[1], None, size, (), count, 0, runs_by_itself=why, conflict=conflict
                )
                return False
            elif new and old and old_kind != "folder":
                size = old.status.st_size if old_kind == "file" else None
                conflict = self._conflict(path, old, live)
                self.changes[path] = Change(
                    path, "folder", *modes, size, None, runs_by_itself=why, conflict=conflict, **targets
                )
            return True
        try:
            kind, hunks, diff = self._compare_contents(new, old, modes)
            conflict = self._conflict(path, old, live) if kind else ""
            if conflict and self._is_base(path, new):
                kind = ""  # a layer names it, but has what the owner had
        except OSError as error:
            kind, hunks, diff = "changed" if new and old else "new" if new else "removed", (), (0, 0)
            conflict = f"It cannot be read: {error.strerror}."
        if kind:
            sizes = (item.status.st_size if item and item.is_file else None for item in (old, new))
            self.changes[path] = Change(
                path,
                cast(ChangeKind, kind),
                *modes,
                *sizes,
                hunks,
                *diff,
                runs_by_itself=why,
                conflict=conflict,
                **targets,
            )
        return old_kind == "folder"

    def _compare_contents(
        self, new: Item | None, old: Item | None, modes: tuple[int | None, int | None]
    ) -> tuple[str, tuple[Hunk, ...], tuple[int, int]]:
        """The kind of change (empty: equal), its hunks, and its lines added and removed."""
        kind = "removed" if new is None else "link" if new.is_link else "changed" if old else "new"
        if new and old and kind_of(new.status) == kind_of(old.status):
            if new.is_link:
                return ("link" if new.link_target() != old.link_target() else ""), (), (0, 0)
            if new.status.st_size == old.status.st_size and self._equal(new, old):
                return ("mode" if modes[0] != modes[1] else ""), (), (0, 0)
        files = [item for item in (old, new) if item and item.is_file]
        size = sum(item.status.st_size for item in files)
        if (
            not files
            or any(item.is_link for item in (old, new) if item)
            or size > min(_MAX_FILE_BYTES, self._hunk_bytes)
        ):
            return kind, (), (0, 0)
        self._hunk_bytes -= size
        before, after = (_read(item) if item and item.is_file else b"" for item in (old, new))
        if is_binary(before) or is_binary(after):
            return kind, (), (0, 0)
        diff = line_diff(before, after)
        hunks = tuple(Hunk(at, diff.header(at), tuple(diff.lines(at))) for at in range(len(diff.hunks)))
        return kind, hunks, diff.counts()

    @staticmethod
    def _equal(new: Item, old: Item) -> bool:
        with open_file(new.folder, new.name) as first, open_file(old.folder, old.name) as second:
            while block := first.read(1 << 20):
                if block != second.read(len(block)):
                    return False
            return not second.read(1)

    def _why(self, path: str, names: Names, target: str | None, merged: Folder | None, *, removed: bool) -> str:
        if removed and any(map(is_cache, names)):
            return ""
        if why := why_it_runs(path, target):
            return why
        if merged and is_repository_part(names[-1]):
            if is_bare_repository(item.name for item in merged.items()):
                return REPOSITORY
        return ""

    def _conflict(self, path: str, old: Item | None, live: Folder | None) -> str:
        """Why the owner would lose something; empty: nothing."""
        if old and kind_of(old.status) == "other":
            return "It is a pipe, a socket or a device."
        base = self._bases.get(path, _UNKNOWN)
        if old is None:
            return "You removed it meanwhile." if base and base is not _UNKNOWN else ""
        if base is None or base is _UNKNOWN:
            return "You made it meanwhile."
        assert live is not None
        return "" if is_still(live.descriptors[0], old.name, base) else "You changed it meanwhile."

    def _folder_conflict(self, path: str, old: os.stat_result | None, *, mode: bool = False) -> str:
        base = self._bases.get(path, _UNKNOWN)
        if old is None:
            return ""
        if base is None or base is _UNKNOWN:
            return "You made it meanwhile."
        changed = base.kind != kind_of(old) or (mode and base.mode != stat.S_IMODE(old.st_mode))
        return "You changed it meanwhile." if changed else ""

    def _is_base(self, path: str, new: Item | None) -> bool:
        base = self._bases.get(path, _UNKNOWN)
        if new is None or base is None:
            return new is base
        try:
            return is_still(new.folder, new.name, base)
        except OSError:
            return False

    def _measure(self, names: Names) -> tuple[int, int]:
        """Files below a folder of the view, and their bytes."""
        count, size, pending = 0, 0, [names]
        while pending:
            names = pending.pop()
            with _folder(self.view, names) as folder:
                for item in folder.items() if folder else ():
                    if item.is_folder and len(names) < MAX_DEPTH:
                        pending.append((*names, item.name))
                    elif item.is_file:
                        count, size = count + 1, size + item.status.st_size
        return count, size

    def _spread_conflicts(self) -> None:
        """A folder that takes the place of a file, or the other way round, is taken with all that is in it."""
        for path in [path for path, change in self.changes.items() if is_replacement(change)]:
            unit = [inner for inner in self.changes if inner == path or inner.startswith(f"{path}/")]
            conflict = next((self.changes[inner].conflict for inner in unit if self.changes[inner].conflict), "")
            for inner in unit if conflict else ():
                self.changes[inner] = replace(self.changes[inner], conflict=self.changes[inner].conflict or conflict)


@contextlib.contextmanager
def _folder(view: View, names: Names) -> Iterator[Folder | None]:
    """The open folder of a View; ``None``: there is none, or it cannot be read."""
    with contextlib.ExitStack() as stack:
        folder: Folder | None = None
        if names:
            with contextlib.suppress(OSError):
                folder = stack.enter_context(view.folder(names))
        else:
            folder = stack.enter_context(view.folder(names))
        yield folder


def _read(item: Item) -> bytes:
    with open_file(item.folder, item.name) as file:
        return file.read(_MAX_FILE_BYTES)
