"""Keeps a workspace free of files that the owner's tools run by themselves, during a run and after it.

A marker file records each run in progress. If its gpubox is killed, the next run of any gpubox finishes the quarantine.
Blocking: call it in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.sandbox.auto_run_files import MAX_PROTECTED, AutoRunFile, find_auto_run_files, move_out
from gpubox.storage import read_json, try_lock

_MAX_FINGERPRINTED = 5_000
"""Files below an unprotected auto-run file that are checked for changes."""
_GIT_DATA = frozenset({"objects", "refs", "logs", "index", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "packed-refs", "lfs"})
"""Parts of a .git folder that git itself changes and that run nothing."""
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
    protected: tuple[AutoRunFile, ...] = ()
    """The owner's own auto-run files, which the program gets read-only."""
    moved: list[AutoRunFile] = field(default_factory=list)
    """Files that the program created and that were moved to ``folder``."""
    left: list[AutoRunFile] = field(default_factory=list)
    """Files that the program created or changed and that are still there."""
    _known: set[tuple[int, int]] = field(default_factory=set)
    _fingerprints: dict[AutoRunFile, int] = field(default_factory=dict)
    """Of the owner's files that are not protected, before the run."""
    _marker: Path | None = None
    _marker_fd: int = -1
    _next_sweep: float = 0.0

    @classmethod
    def begin(cls, workspace: Path, *, can_protect: bool, folder: Path | None = None) -> Quarantine:
        """Lists the owner's auto-run files. ``can_protect``: the isolation can make them read-only."""
        folder = folder or default_quarantine_folder()
        recover_interrupted(folder)
        quarantine = cls(workspace, folder)
        with contextlib.suppress(OSError):
            existing = find_auto_run_files(workspace)
            quarantine._known = {file.identity for file in existing}
            own = [file for file in existing if file.kind]
            quarantine.protected = tuple(own[:MAX_PROTECTED]) if can_protect else ()
            for file in own[len(quarantine.protected) :]:
                quarantine.add_unprotected(file)
        with contextlib.suppress(OSError, GpuboxError):
            quarantine._write_marker()
        return quarantine

    def add_unprotected(self, file: AutoRunFile) -> None:
        """Watches a file of the owner's that could not be made read-only."""
        self._fingerprints[file] = _fingerprint(self.workspace / file.path)

    def sweep(self) -> None:
        """Moves new auto-run files out; does nothing if it did so a moment ago."""
        began = time.monotonic()
        if began < self._next_sweep:
            return
        self._move_out()
        took = time.monotonic() - began
        self._next_sweep = began + took + max(_MIN_PAUSE_SECONDS, _PAUSE_FACTOR * took)

    def finish(self) -> None:
        """Moves out what the run left, and notes which unprotected files it changed."""
        self._move_out()
        for file, before in self._fingerprints.items():
            if _fingerprint(self.workspace / file.path) != before:
                self.left.append(file)
        if self._marker:
            with contextlib.suppress(OSError):
                self._marker.unlink()
            os.close(self._marker_fd)
            self._marker = None

    def _move_out(self) -> None:
        moved, self.left = move_out(self.workspace, self._known, self.folder)
        self.moved += moved

    def _write_marker(self) -> None:
        markers = self.folder / "running"
        markers.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = markers / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._marker_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._marker = path
        try_lock(self._marker_fd)
        os.write(self._marker_fd, json.dumps({"folder": str(self.workspace), "known": sorted(self._known)}).encode())


def recover_interrupted(folder: Path) -> None:
    """Quarantines the files of runs whose gpubox was killed; ``from.txt`` beside a file says where it was."""
    for marker in (folder / "running").glob("*.json"):
        with (
            contextlib.suppress(OSError, GpuboxError, ValueError, KeyError, TypeError),
            marker.open("rb") as file,
        ):
            if not try_lock(file.fileno()):  # its gpubox lives
                continue
            values = read_json(file.read(), own=True)  # invalid while it is being written
            move_out(Path(values["folder"]), {(device, inode) for device, inode in values["known"]}, folder)
            marker.unlink()


def _fingerprint(path: Path) -> int:
    """A value that differs once a file in ``path`` was created, changed or replaced; without the data of git."""
    files: list[tuple[str, int, int, int]] = []
    pending = [(path, 0)]
    while pending and len(files) < _MAX_FINGERPRINTED:
        current, depth = pending.pop()
        with contextlib.suppress(OSError):
            status = current.lstat()
            if stat.S_ISDIR(status.st_mode):
                names = os.listdir(current)  # noqa: PTH208
                pending += [(current / name, depth + 1) for name in names if depth or name not in _GIT_DATA]
            else:
                files.append((str(current), status.st_ino, status.st_ctime_ns, status.st_size))
    return hash(tuple(sorted(files)))
