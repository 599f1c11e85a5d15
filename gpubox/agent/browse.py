"""Looking through a workspace: folders, lines of files, text in files. Bounded in entries, bytes and time.

These functions block; the tools run them in a thread. ``stop`` ends one early.
"""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpubox import units
from gpubox.agent.workspace import DEPTH, FolderEntry, Workspace, list_folder, printable_path, read_at
from gpubox.errors import GpuboxError

ENTRIES = 500
"""Items of one listing."""
FOLDER_ENTRIES = 5000
"""Items of one folder that are looked at."""
SEARCHED_BYTES = 64 * 1024 * 1024
SEARCH_SECONDS = 10.0
MATCHES = 100
LINES = 400
"""Lines of one read."""
READ_CHARACTERS = 24_000
_LINE_CHARACTERS = 400
_SKIPPED = {
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}


@dataclass(slots=True)
class Walk:
    """One walk and what it left out."""

    stop: threading.Event
    until: float = field(default_factory=lambda: time.monotonic() + SEARCH_SECONDS)
    skipped: list[str] = field(default_factory=list)
    cut: str = ""
    """Why it ended early; empty: it saw everything."""

    def go_on(self) -> bool:
        if not self.cut and self.stop.is_set():
            self.cut = "stopped"
        if not self.cut and time.monotonic() > self.until:
            self.cut = f"ended after {SEARCH_SECONDS:.0f} s"
        return not self.cut


def list_entries(workspace: Workspace, path: str, recursive: bool, stop: threading.Event) -> str:
    """What a folder holds, an item a line. Raises GpuboxError."""
    names = workspace.parts(path)
    walk = Walk(stop)
    lines: list[str] = []
    with workspace.folder(names) as descriptor:
        for entry, _ in _walk(workspace, descriptor, names, walk, recursive=recursive):
            if len(lines) >= ENTRIES:
                walk.cut = f"only the first {ENTRIES} are shown"
                break
            lines.append(_entry_line(entry))
    return _with_remarks(lines or ["(empty)"], walk)


def read_lines(workspace: Workspace, path: str, first: int, count: int) -> str:
    """Lines ``first`` (from 1) to ``first + count - 1`` of a text file, and how many there are. Raises GpuboxError."""
    data = workspace.read(workspace.parts(path))
    if b"\0" in data[:8192]:
        raise GpuboxError(f"{printable_path(path)} is no text: {units.file_size(len(data))} of other data.")
    lines = data.decode("utf-8", errors="replace").splitlines()
    if not lines:
        return "(empty)"
    if first > len(lines):
        raise GpuboxError(f"{printable_path(path)} has {len(lines)} lines.")
    taken: list[str] = []
    room = READ_CHARACTERS
    for line in lines[first - 1 : first - 1 + min(count, LINES)]:
        room -= len(line) + 1
        if room < 0:
            if not taken:
                taken.append(line[:READ_CHARACTERS] + f" … ({len(line)} characters in this line)")
            break
        taken.append(line)
    last = first - 1 + len(taken)
    remark = f"(lines {first} to {last} of {len(lines)})"
    return "\n".join(taken if first == 1 and last == len(lines) else [*taken, remark])


def search(workspace: Workspace, text: str, path: str, glob: str, stop: threading.Event) -> str:
    """Lines that hold ``text`` as it stands, as ``path:line: text``. Upper and lower case are the same.

    No regular expression: one that backtracks would hold up the whole program. Raises GpuboxError.
    """
    if not text or "\n" in text or len(text) > 500:
        raise GpuboxError("The text to search for must be one line of at most 500 characters.")
    names, needle = workspace.parts(path), text.casefold()
    walk, room, found = Walk(stop), SEARCHED_BYTES, []
    with workspace.folder(names) as descriptor:
        for entry, folder in _walk(workspace, descriptor, names, walk, recursive=True):
            if entry.kind != "file" or (glob and not _matches(entry.path, glob)):
                continue
            if entry.size_bytes > room:
                walk.cut = f"ended after {SEARCHED_BYTES // 2**20} MiB"
                break
            try:
                data, _ = read_at(folder, tuple(entry.path.split("/")))
            except GpuboxError:
                continue  # too large, or it went meanwhile
            room -= len(data)
            if b"\0" in data[:8192]:
                continue
            for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
                if needle in line.casefold():
                    found.append(f"{printable_path(entry.path)}:{number}: {line.strip()[:_LINE_CHARACTERS]}")
            if len(found) >= MATCHES:
                walk.cut = f"only the first {MATCHES} are shown"
                break
    return _with_remarks(found[:MATCHES] or [f"No line holds {text!r}."], walk)


def _walk(
    workspace: Workspace, descriptor: int, names: tuple[str, ...], walk: Walk, *, recursive: bool
) -> Iterator[tuple[FolderEntry, int]]:
    """Every item under a folder, each with the descriptor of the folder it lies in."""
    entries, more = list_folder(descriptor, names, FOLDER_ENTRIES, workspace.device)
    if more:
        walk.skipped.append(f"{'/'.join(names) or '.'} beyond {FOLDER_ENTRIES} items")
    for entry in entries:
        if not walk.go_on():
            return
        yield entry, descriptor
        inside = (*names, entry.path.rpartition("/")[2])
        if not recursive or entry.kind != "folder":
            continue
        if inside[-1] in _SKIPPED or not entry.same_disk or len(inside) >= DEPTH:
            walk.skipped.append(entry.path)
            continue
        try:
            inner = os.open(inside[-1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        except OSError:
            walk.skipped.append(entry.path)
            continue
        try:
            yield from _walk(workspace, inner, inside, walk, recursive=True)
        finally:
            os.close(inner)


def _entry_line(entry: FolderEntry) -> str:
    path = printable_path(entry.path)
    if entry.kind == "folder":
        return f"{path}/"
    if entry.kind == "link":
        return f"{path} -> {printable_path(entry.target)} (a link, not followed)"
    return f"{path}  {entry.size_bytes} bytes" if entry.kind == "file" else f"{path}  (no ordinary file)"


def _with_remarks(lines: list[str], walk: Walk) -> str:
    remarks = [f"({walk.cut})"] if walk.cut else []
    if walk.skipped:
        names = ", ".join(printable_path(path) for path in walk.skipped[:5])
        remarks.append(f"(not looked into: {names}{' …' if len(walk.skipped) > 5 else ''})")
    return "\n".join([*lines, *remarks])


def _matches(path: str, glob: str) -> bool:
    return fnmatch.fnmatchcase(path, glob) or fnmatch.fnmatchcase(path.rpartition("/")[2], glob)
