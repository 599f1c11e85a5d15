"""What the open layers change in a workspace: files, hunks, modes, links and folders, and which the owner may take.

Only read here; steps.py writes. Blocking; run it in a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from gpubox import units
from gpubox.errors import UsageError
from gpubox.line_diff import LineDiff, is_binary, line_diff
from gpubox.sandbox.layers import MAX_DEPTH, OPEN_FILE, Folder, LayerItem, Names, View
from gpubox.sandbox.runs_by_itself import REPOSITORY, is_bare_repository, is_cache, is_repository_part, why_it_runs
from gpubox.sandbox.states import Bases, Caches, is_still, kind_of, names_of, open_file, same_content, taken_mode
from gpubox.sanitize import show_name

_MAX_LISTED = 64
"""A new folder of which tools run what is in it is listed file by file, if it has no more items."""
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
"""Path -> numbers of its hunks; ``None``: the whole file, or all in the folder."""


def unified(change: Change) -> str:
    """The diff of one file as text, with a line break at its end; of what has no lines a sentence."""
    path, about = show_name(change.path), describe(change)
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
        text = f"{'link' if change.old_target is not None else 'new link'} to {show_name(change.new_target or '')}"
    sizes = [units.small_size(size) for size in (change.old_bytes, change.new_bytes) if size is not None]
    counted = change.added or change.removed
    size = f"+{change.added} -{change.removed}" if counted else " -> ".join(sizes) if change.kind != "mode" else ""
    extra = _mode_words(change) if change.kind == "changed" else ""
    return ", ".join(part for part in (text, size, extra) if part)


def is_replacement(change: Change) -> bool:
    """Whether a folder takes the place of something else, or something else that of a folder."""
    was_folder = change.old_mode is not None and change.old_bytes is None and change.old_target is None
    return (change.kind == "folder" and change.old_mode is not None) or (
        change.kind in ("changed", "link") and was_folder
    )


def _mode_words(change: Change) -> str:
    if change.old_mode is None or change.new_mode is None or change.old_mode == change.new_mode:
        return ""
    return f"mode {change.old_mode:o} -> {change.new_mode:o}"


def chosen_paths(changes: Mapping[str, Change], choice: Choice | None) -> dict[str, frozenset[int] | None]:
    """Each path with its hunks (``None``: all of it), those that belong together completed. Raises UsageError."""
    chosen: dict[str, frozenset[int] | None] = {}
    for path, hunks in (dict.fromkeys(changes) if choice is None else choice).items():
        change = changes.get(path)
        below = [each for each in changes if each.startswith(f"{path}/")] if change is None else []
        if change is None and below and hunks is None:
            chosen |= chosen_paths(changes, dict.fromkeys(below))
            continue
        if change is None:
            raise UsageError(f"{show_name(path)} has no change that waits.", "Look at the changes again.")
        if hunks is not None and not hunks <= set(range(len(change.hunks))):
            raise UsageError(f"{show_name(path)} has {len(change.hunks)} hunks, counted from 0.")
        if hunks is None or len(hunks) == len(change.hunks):
            chosen |= dict.fromkeys(unit_of(changes, path))
        elif hunks:
            chosen.setdefault(path, hunks)
    return chosen


def unit_of(changes: Mapping[str, Change], path: str) -> set[str]:
    """The changes that only make sense together: all in a folder that takes another thing's place, or gives it up."""
    parts = path.split("/")
    above = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    top = next((each for each in above if each in changes and is_replacement(changes[each])), None)
    return {path} if top is None else {each for each in changes if each == top or each.startswith(f"{top}/")}


class Comparison:
    """The merged View beside the workspace as it is now."""

    def __init__(self, layers: Sequence[Path], workspace: Path, bases: Bases) -> None:
        """``bases``: what the workspace had, by path, when a layer first named it."""
        self._view, self._live, self._bases = View([*layers, workspace]), View([workspace]), bases
        self._diff_bytes, self._caches = _MAX_DIFF_BYTES, Caches(self._view)
        self._changes: dict[str, Change] = {}
        self._running: dict[str, str] = {}
        """New folders that are listed file by file, and why each of their files runs by itself."""

    def run(self) -> list[Change]:
        """All changes, sorted by path. Raises OSError if the workspace cannot be read."""
        pending: list[Names] = [()]
        while pending:
            pending += self._compare_folder(pending.pop())
        for top in [path for path, change in self._changes.items() if is_replacement(change)]:
            unit = unit_of(self._changes, top)
            conflict = next((text for path in unit if (text := self._changes[path].conflict)), "")
            for path in unit:  # all are taken, or none
                self._changes[path] = replace(self._changes[path], conflict=self._changes[path].conflict or conflict)
        return [self._changes[path] for path in sorted(self._changes)]

    def _compare_folder(self, names: Names) -> list[Names]:
        """Returns the folders in it that are still to be compared. Only what a layer names can differ."""
        inner: list[Names] = []
        with _folder(self._view, names) as merged, _folder(self._live, names) as live:
            descriptors = [*(merged.descriptors if merged else ()), *(live.descriptors if live else ())]
            if merged and live and os.path.samestat(os.fstat(descriptors[-2]), os.fstat(descriptors[-1])):
                del descriptors[-2:]
            touched = {name for descriptor in descriptors for name in os.listdir(descriptor)}  # noqa: PTH208
            listed = False
            for name in touched:
                new, old = (folder.find(name) if folder else None for folder in (merged, live))
                new = new if new and new.is_ordinary else None
                is_folder = new is not None and new.is_folder
                if (merged and (is_cache(name) or (is_folder and self._caches.has((*names, name))))) or not (
                    new or old
                ):
                    continue
                listed = True
                if self._compare((*names, name), new, old, merged, live) and len(names) < MAX_DEPTH:
                    inner.append((*names, name))
        if not listed and names and not (merged and live):
            self._compare_empty_folder(names)
        return inner

    def _compare_empty_folder(self, names: Names) -> None:
        """Of a new or removed folder only what is in it is a change, unless there is nothing in it."""
        path = "/".join(names)
        with _folder(self._view, names[:-1]) as merged, _folder(self._live, names[:-1]) as live:
            new, old = (folder.find(names[-1]) if folder else None for folder in (merged, live))
            if path not in self._changes and (new is None or old is None):
                self._add(path, "removed" if old else "folder", new, old, self._why(names, new, merged), live)

    def _compare(
        self, names: Names, new: LayerItem | None, old: LayerItem | None, merged: Folder | None, live: Folder | None
    ) -> bool:
        """Adds the change of one path, if there is one. Returns whether there is a folder to compare."""
        path, why = "/".join(names), self._why(names, new, merged)
        if new and new.is_folder:
            if old and old.is_folder:
                if taken_mode(old.status) != taken_mode(new.status):
                    self._add(path, "mode", new, old, why, live)
            elif old:
                self._add(path, "folder", new, old, why, live)
            if old or not why:
                return True
            inner = list(itertools.islice(self._view.walk(names), _MAX_LISTED + 1))
            if len(inner) <= _MAX_LISTED:
                self._running[path] = why
                return True
            self._add(path, "folder", new, old, why, live)  # whole: a venv has thousands of files
            sizes = [item.status.st_size for _, item in self._view.walk(names) if item.is_file]
            self._changes[path] = replace(self._changes[path], added=len(sizes), new_bytes=sum(sizes))
            return False
        if new is None and old and old.is_folder:
            return True
        try:
            kind, diff = self._compare_contents(new, old)
        except OSError as error:
            self._add(path, "changed" if new and old else "new" if new else "removed", new, old, why, live)
            self._changes[path] = replace(self._changes[path], conflict=f"It cannot be read: {error.strerror}.")
            return False
        if kind:
            self._add(path, kind, new, old, why, live, diff)
        return bool(old and old.is_folder)

    def _add(
        self, path: str, kind: str, new: LayerItem | None, old: LayerItem | None, why: str, live: Folder | None,
        diff: LineDiff | None = None,
    ) -> None:  # fmt: skip
        conflict = self._conflict(path, kind, old, live)
        if conflict and self._is_base(path, new):
            return  # a layer names it, but has what the owner had
        old_mode, new_mode = (taken_mode(item.status) if item else None for item in (old, new))
        old_bytes, new_bytes = (item.status.st_size if item and item.is_file else None for item in (old, new))
        old_target, new_target = (item.link_target() if item and item.is_link else None for item in (old, new))
        numbers = range(len(diff.hunks)) if diff else ()
        hunks = tuple(Hunk(at, diff.header(at), tuple(diff.lines(at))) for at in numbers) if diff else ()
        added, removed = diff.counts() if diff else (0, 0)
        self._changes[path] = Change(
            path, cast(Any, kind), old_mode, new_mode, old_bytes, new_bytes, hunks, added, removed, why, conflict,
            old_target, new_target,
        )  # fmt: skip

    def _compare_contents(self, new: LayerItem | None, old: LayerItem | None) -> tuple[str, LineDiff | None]:
        """The kind of change (empty: equal), and its lines."""
        kind = "removed" if new is None else "link" if new.is_link else "changed" if old else "new"
        if old and old.is_file:  # one that the owner closed to himself stays closed
            os.close(os.open(old.name, OPEN_FILE, dir_fd=old.folder))
        if new and old and kind_of(new.status) == kind_of(old.status):
            if new.is_link:
                return ("link" if new.link_target() != old.link_target() else ""), None
            if new.status.st_size == old.status.st_size and same_content(new, old):
                return ("mode" if taken_mode(new.status) != taken_mode(old.status) else ""), None
        files = [item for item in (old, new) if item and item.is_file]
        size = sum(item.status.st_size for item in files)
        if len(files) != bool(old) + bool(new) or size > min(_MAX_FILE_BYTES, self._diff_bytes):
            return kind, None
        self._diff_bytes -= size
        before, after = (_read(item) if item else b"" for item in (old, new))
        return kind, None if is_binary(before) or is_binary(after) else line_diff(before, after)

    def _why(self, names: Names, new: LayerItem | None, merged: Folder | None) -> str:
        if new is None and any(map(is_cache, names)):
            return ""
        if why := self._running.get("/".join(names[:-1]), ""):
            return why
        target = new.link_target() if new and new.is_link else None
        if why := why_it_runs("/".join(names), target):
            return why
        is_part = merged and is_repository_part(names[-1])
        return REPOSITORY if is_part and merged and is_bare_repository(item.name for item in merged.items()) else ""

    def _conflict(self, path: str, kind: str, old: LayerItem | None, live: Folder | None) -> str:
        """Why the owner would lose something; empty: nothing."""
        if old and not old.is_ordinary:
            return "It is a pipe, a socket or a device."
        base = self._bases.get(path)
        if old is None or live is None:
            return "You removed it meanwhile." if base or self._has_lost_folder(path) else ""
        if base is None:
            return "You made it meanwhile."
        still = is_still(live.descriptors[0], old.name, base, folder_modes=kind == "mode")
        return "" if still else "You changed it meanwhile."

    def _has_lost_folder(self, path: str) -> bool:
        """Whether the owner put something else in the place of a folder above the path."""
        names = names_of(path)
        above = (names[:depth] for depth in range(1, len(names)) if "/".join(names[:depth]) not in self._changes)
        return any((status := self._live.status(each)) and not stat.S_ISDIR(status.st_mode) for each in above)

    def _is_base(self, path: str, new: LayerItem | None) -> bool:
        if path not in self._bases or new is None:
            return path in self._bases and self._bases[path] is None and new is None
        try:
            return is_still(new.folder, new.name, self._bases[path])
        except OSError:
            return False


@contextlib.contextmanager
def _folder(view: View, names: Names) -> Iterator[Folder | None]:
    """The open folder of a View; ``None``: there is none, or it cannot be read. Raises OSError for the workspace."""
    with contextlib.ExitStack() as stack:
        folder: Folder | None = None
        with contextlib.suppress(*([OSError] if names else [])):
            folder = stack.enter_context(view.folder(names))
        yield folder


def _read(item: LayerItem) -> bytes:
    with open_file(item.folder, item.name) as file:
        return file.read(_MAX_FILE_BYTES)
