"""Keeps what tools of the owner would run out of a workspace while a program may write there, and afterwards.

A mark on the disk says that a run is going on; one whose gpubox was killed is settled by the next run of any gpubox.
Blocking; run in a thread.
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
from gpubox.storage import try_lock

_MOST_SEEN = 5_000
"""Entries of what cannot be protected that are looked at for changes."""
_OF_GIT = frozenset({"objects", "refs", "logs", "index", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "packed-refs", "lfs"})
"""What changes with each git command of the owner's, and starts nothing."""
_PAUSE_FACTOR, _LEAST_PAUSE = 5.0, 0.1


def default_quarantine_folder() -> Path:
    """The folder in which everything that was moved out of a workspace lies."""
    return Paths.default().state / "quarantine"


@dataclass(eq=False)
class Quarantine:
    """Of one run: ``opened`` before it, ``sweep`` while it goes on, ``finish`` once its last process is dead."""

    folder: Path
    place: Path
    protected: tuple[AutoRunFile, ...] = ()
    """The owner's own, to be handed to the program read-only."""
    moved: list[AutoRunFile] = field(default_factory=list)
    """What the program made: it was moved to ``place``."""
    left: list[AutoRunFile] = field(default_factory=list)
    """What it made or changed and what is there still."""
    _known: set[tuple[int, int]] = field(default_factory=set)
    _unguarded: dict[AutoRunFile, int] = field(default_factory=dict)
    _mark: Path | None = None
    _mark_fd: int = -1
    _next_sweep: float = 0.0

    @classmethod
    def opened(cls, folder: Path, *, guards: bool, place: Path | None = None) -> Quarantine:
        """Looks at what the owner has in ``folder``; ``guards``: whether the confinement can make it read-only."""
        place = place or default_quarantine_folder()
        recover_interrupted(place)
        here = cls(folder, place)
        with contextlib.suppress(OSError):
            there = find_auto_run_files(folder)
            here._known = {one.identity for one in there}
            own = [one for one in there if one.kind]
            here.protected = tuple(own[:MAX_PROTECTED]) if guards else ()
            here._unguarded = {one: _fingerprint(folder / one.path) for one in own[len(here.protected) :]}
        with contextlib.suppress(OSError, GpuboxError):
            here._put_mark()
        return here

    def unguarded(self, one: AutoRunFile) -> None:
        """To be called for what could not be handed over read-only after all."""
        self._unguarded[one] = _fingerprint(self.folder / one.path)

    def sweep(self) -> None:
        """Moves out what is there now; does nothing where it was done a moment ago."""
        began = time.monotonic()
        if began < self._next_sweep:
            return
        self._sweep()
        took = time.monotonic() - began
        self._next_sweep = began + took + max(_LEAST_PAUSE, _PAUSE_FACTOR * took)

    def finish(self) -> None:
        """Everything that the run left, moved out; and what it changed is noted."""
        self._sweep()
        for one, before in self._unguarded.items():
            if _fingerprint(self.folder / one.path) != before:
                self.left.append(one)
        if self._mark:
            with contextlib.suppress(OSError):
                self._mark.unlink()
            os.close(self._mark_fd)
            self._mark = None

    def _sweep(self) -> None:
        found = move_out(self.folder, self._known, self.place)
        self.moved += found.what
        self.left = [*found.left]

    def _put_mark(self) -> None:
        marks = self.place / "running"
        marks.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = marks / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._mark_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._mark = path
        try_lock(self._mark_fd)
        os.write(self._mark_fd, json.dumps({"folder": str(self.folder), "known": sorted(self._known)}).encode())


def recover_interrupted(place: Path) -> None:
    """Moves out what programs planted whose gpubox was killed; ``from.txt`` beside it says where it was."""
    for mark in (place / "running").glob("*.json"):
        with contextlib.suppress(OSError, GpuboxError, ValueError, KeyError, TypeError), mark.open("rb") as file:
            if not try_lock(file.fileno()):  # its gpubox lives
                continue
            text = file.read()
            values = json.loads(text)  # one that is being written just now is no JSON yet
            move_out(Path(values["folder"]), {(device, inode) for device, inode in values["known"]}, place)
            mark.unlink()


def _fingerprint(path: Path) -> int:
    """Something else when a file in it was made, changed or replaced; of a repository, what starts programs."""
    seen: list[tuple[str, int, int, int]] = []
    waiting = [(path, 0)]
    while waiting and len(seen) < _MOST_SEEN:
        here, depth = waiting.pop()
        with contextlib.suppress(OSError):
            facts = here.lstat()
            if stat.S_ISDIR(facts.st_mode):
                names = os.listdir(here)  # noqa: PTH208
                waiting += [(here / name, depth + 1) for name in names if depth or name not in _OF_GIT]
            else:
                seen.append((str(here), facts.st_ino, facts.st_ctime_ns, facts.st_size))
    return hash(tuple(sorted(seen)))
