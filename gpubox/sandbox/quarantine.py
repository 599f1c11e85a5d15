"""Keeps a workspace free of files that the owner's tools run by themselves, during a run and after it.

Known is what has the same inode and the same auto-run name as before the run; everything else of such a name is moved
out. A marker file records each run in progress. If its gpubox is killed, the next run of any gpubox finishes the
quarantine. Blocking: call it in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.sandbox.auto_run_files import HIDDEN, PACKAGES, AutoRunFile, Entry, import_kind, move_out, walk
from gpubox.sandbox.workspace_scan import MAX_ENTRIES, WorkspaceScan, changed_files, facts_of, scan
from gpubox.storage import make_folder, read_json, try_lock

MAX_PROTECTED = 256
"""How many files and folders are made read-only: each is a mount."""
MAX_SPECIAL_FILES = 100
_GIT_DATA = frozenset({"objects", "refs", "logs", "index", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "packed-refs", "lfs"})
"""Parts of a .git folder that git itself changes and that run nothing."""
_WHY_READ_ONLY = "files that have other names (hard links), that hidden links lead to, or too many that your tools run"
_PAUSE_FACTOR, _MIN_PAUSE_SECONDS = 5.0, 0.1


def default_quarantine_folder() -> Path:
    """The folder for everything that is moved out of workspaces."""
    return Paths.default().state / "quarantine"


@dataclass(eq=False)
class Quarantine:
    """The quarantine of one run: ``begin`` before it, ``sweep`` during it, ``finish`` once its processes are dead."""

    workspace: Path
    folder: Path
    """Where files are moved to."""
    before: WorkspaceScan
    can_protect: bool = False
    """Whether the isolation makes ``protected`` read-only."""
    protected: tuple[AutoRunFile, ...] = ()
    """The owner's auto-run files, and the folders of files with names outside, which the program gets read-only."""
    changed: tuple[str, ...] = ()
    """What the run created, changed or removed."""
    moved: list[AutoRunFile] = field(default_factory=list)
    """Files that the program created and that were moved to ``folder``."""
    left: list[AutoRunFile] = field(default_factory=list)
    """Files that the program created or changed and that are still there."""
    unchecked: tuple[str, ...] = ()
    """What could not be read or moved, each a few words."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the owner and the model about what is read-only or not looked at."""
    _target: Path | None = None
    _marker: Path | None = None
    _marker_fd: int = -1
    _next_sweep: float = 0.0

    @classmethod
    def begin(
        cls, workspace: Path, *, can_protect: bool, can_write: bool = True, folder: Path | None = None
    ) -> Quarantine:
        """Lists what is in ``workspace``. ``can_protect``: the isolation makes files of it read-only. ``can_write``: a
        program may write there; otherwise ``finish`` need not be called.

        Raises GpuboxError if it cannot be read, or holds more than can be protected.
        """
        folder = folder or default_quarantine_folder()
        problems = recover_interrupted(folder)
        try:
            before = scan(workspace, inside=not can_protect)
        except OSError as error:
            raise GpuboxError(
                f"The workspace {workspace} cannot be read: {error.strerror}.", "Choose another folder, or its mode."
            ) from None
        if len(before.special_files) > MAX_SPECIAL_FILES:
            raise GpuboxError(
                f"The workspace {workspace} holds {len(before.special_files)} sockets, FIFOs or devices.",
                f"gpubox blocks each of them, and at most {MAX_SPECIAL_FILES}: choose another folder.",
            )
        quarantine = cls(workspace, folder, before, can_protect, notes=problems)
        if not can_write:
            return quarantine
        if can_protect:
            quarantine._protect()
        with contextlib.suppress(OSError, GpuboxError):
            quarantine._write_marker()
        return quarantine

    def _protect(self) -> None:
        before = self.before
        own = {_whole(file.path) for file in before.auto_run}
        folders = {path.rpartition("/")[0] or path for path in before.linked}
        real = (os.path.relpath(os.path.realpath(self.workspace / path), self.workspace) for path in own)
        few = _few({*own, *folders, *(path for path in real if path in before.files)}, MAX_PROTECTED)
        if len(few) > MAX_PROTECTED:
            raise GpuboxError(
                f"The workspace {self.workspace} holds {len(few)} files that your tools run by themselves.",
                f"gpubox protects at most {MAX_PROTECTED} at the top of a folder: choose another one.",
            )
        exact = {file.path: file for file in before.auto_run}
        for path in sorted(few):
            _, _, _, inode, _, device = before.files.get(path, (0, 0, 0, 0, 0, 0))
            self.protected += (exact.get(path) or AutoRunFile(path, "", (device, inode)),)
        if shared := sorted(few - own):
            names = ", ".join(shared[:5]) + (f" and {len(shared) - 5} more" if len(shared) > 5 else "")
            self.notes.append(f"{names}: read-only for the program, because of {_WHY_READ_ONLY}.")

    def sweep(self) -> None:
        """Moves new auto-run files out; does nothing if it did so a moment ago."""
        began = time.monotonic()
        if began < self._next_sweep:
            return
        with contextlib.suppress(OSError):  # `finish` says what it cannot read
            self._move_new([], later=("", HIDDEN, PACKAGES))  # a program that makes those may go on with them
        took = time.monotonic() - began
        self._next_sweep = began + took + max(_MIN_PAUSE_SECONDS, _PAUSE_FACTOR * took)

    def finish(self) -> None:
        """Puts back the modes of folders, moves out what the run left, and lists what it changed."""
        self.left = []
        try:
            after = scan(self.workspace, inside=not self.can_protect, modes=self.before.modes(), moves=self._moves)
        except OSError as error:
            self.unchecked = (f"the workspace cannot be read: {error.strerror}",)
        else:
            self.changed = changed_files(self.before, after, {file.path for file in self.moved})
            cannot = [f"{path} cannot be read" for path in after.unreadable if path not in self.before.unreadable]
            self.unchecked = (*cannot, *(f"{file} cannot be moved out" for file in self.left))
            self._note_changed_auto_run_files(after)
            if not (self.before.complete and after.complete):
                self.notes.append(
                    f"Only the first {MAX_ENTRIES:,} files of the workspace are compared: others may change unreported."
                )
        if self._marker:
            with contextlib.suppress(OSError):
                self._marker.unlink()
            os.close(self._marker_fd)
            self._marker = None

    def report(self) -> dict[str, Any]:
        """The fields of ``Outcome`` that say what became of the workspace."""
        return {
            "files_changed": self.changed,
            "quarantined": tuple(map(str, self.moved)),
            "not_quarantined": tuple(map(str, self.left)),
            "quarantine": str(self.folder) if self.moved else "",
            "unchecked": self.unchecked,
            "notes": tuple(self.notes),
        }

    def _move_new(self, unreadable: list[str], later: tuple[str, ...] = ()) -> None:
        for entry in walk(self.workspace, unreadable, modes={}):
            if entry.kind not in later:
                with contextlib.suppress(FileNotFoundError):
                    self._moves(entry)

    def _moves(self, entry: Entry) -> bool:
        """Moves ``entry`` out if it is new and would be run. Raises FileNotFoundError if it is gone."""
        kind = entry.kind
        if kind and entry.token() in self.before.known:
            return False
        if kind and entry.is_part:
            entry.kind = ""  # if the owner's, it is an ordinary file once the new parts are moved out
            if entry.token() in self.before.known:
                return False
        if not kind and not entry.within and (kind := import_kind(entry.path, self.before.files)):
            old = self.before.files.get(entry.path)
            older = entry.status.st_ctime_ns < self.before.began_ns
            if old == facts_of(entry.status) or (old is None and older and not self.before.complete):
                return False
        if not kind:
            return False
        file = entry.auto_run_file(kind)
        if not self._target:
            self._target = self.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        done = move_out(entry, kind, self._target, len(self.moved) + 1, self.workspace)
        (self.moved if done else self.left).append(file)
        return done

    def _note_changed_auto_run_files(self, after: WorkspaceScan) -> None:
        """Adds those of the owner's that could not be protected, and that the program changed, to ``left``."""
        own = {file.path: file for file in self.before.auto_run if file not in self.protected}
        for path in self.before.files.keys() | after.files.keys():
            if self.before.files.get(path) == after.files.get(path):
                continue
            parts = path.split("/")
            for length in range(1, len(parts) + 1):
                file = own.get("/".join(parts[:length]))
                if file and parts[length : length + 1] not in ([name] for name in _GIT_DATA):
                    self.left.append(own.pop(file.path))

    def _write_marker(self) -> None:
        markers = self.folder / "running"
        make_folder(markers)
        path = markers / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._marker_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._marker = path
        try_lock(self._marker_fd)
        before = self.before
        values = {"folder": str(self.workspace), "known": sorted(before.known), "began_ns": before.began_ns}
        os.write(self._marker_fd, json.dumps(values).encode())

    def recover(self) -> list[str]:
        """As ``finish``, for a run whose gpubox was killed. Returns sentences about what could not be checked."""
        cannot: list[str] = []
        try:
            self._move_new(cannot)
        except FileNotFoundError:
            return []
        except OSError as error:
            cannot.append(error.strerror or "")
        cannot += map(str, self.left)
        return [f"A killed run in {self.workspace} could not be cleaned up: {', '.join(cannot)}."] if cannot else []


def recover_interrupted(folder: Path) -> list[str]:
    """Quarantines the files of runs whose gpubox was killed; ``from.txt`` beside a file says where it was.

    Returns sentences for the owner about what could not be read or moved.
    """
    problems: list[str] = []
    for marker in (folder / "running").glob("*.json"):
        with contextlib.suppress(OSError, GpuboxError, ValueError, KeyError, TypeError), marker.open("rb") as file:
            if not try_lock(file.fileno()):  # its gpubox lives
                continue
            values = read_json(file.read(), own=True)  # invalid while it is being written
            known = {tuple(token) for token in values["known"]}
            before = WorkspaceScan(known=known, complete=False, began_ns=values["began_ns"])
            problems += Quarantine(Path(values["folder"]), folder, before).recover()
            marker.unlink()
    return problems


def _whole(path: str) -> str:
    """The environment that a file marks, else ``path``."""
    folder, _, name = path.rpartition("/")
    return folder if folder and name in ("pyvenv.cfg", "conda-meta") else path


def _few(paths: set[str], most: int) -> set[str]:
    """At most ``most`` files and folders that hold all of ``paths``, or those at the top, if there are more."""
    while True:
        paths = {path for path in paths if not any(path[:at] in paths for at, c in enumerate(path) if c == "/")}
        depth = max((path.count("/") for path in paths), default=0)
        if len(paths) <= most or not depth:
            return paths
        paths = {path.rpartition("/")[0] if path.count("/") == depth else path for path in paths}
