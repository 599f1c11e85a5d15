"""Changes of one file: planned, shown as a diff, and applied completely or not at all. Blocking; run in a thread."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpubox.agent.workspace import MAX_FILE_BYTES, Workspace, is_binary, printable_path, read_at
from gpubox.errors import GpuboxError
from gpubox.sandbox.auto_run_files import REPOSITORY, auto_run_kinds, is_bare_repository
from gpubox.sequences import shared_length
from gpubox.storage import copy_attributes

MAX_DIFF_LINES = 400
"""Of a longer diff only head and tail are shown."""
MAX_DIFF_CHARACTERS = 40_000
_MAX_DIFF_LINE_CHARACTERS = 2000
_MAX_COMPARED_LINES = 2000
"""If more lines differ, all old and new ones are shown: difflib would take seconds to match them."""
_CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True)
class FileChange:
    """The content of one file before and after. ``before`` is ``None`` for a new file."""

    names: tuple[str, ...]
    before: bytes | None
    after: bytes
    diff: str
    """What the owner approves; empty: nothing would change."""

    @property
    def path(self) -> str:
        """Relative to the workspace."""
        return "/".join(self.names)


def plan_write(workspace: Workspace, path: str, content: str) -> FileChange:
    """Replaces or creates the whole file. Raises GpuboxError."""
    names = _writable_names(workspace, path)
    return _file_change(names, _read_if_exists(workspace, names), _encode(content))


def plan_edit(workspace: Workspace, path: str, old: str, new: str) -> FileChange:
    """Replaces ``old``, which must occur exactly once, by ``new``. Raises GpuboxError."""
    names = _writable_names(workspace, path)
    before = workspace.read(names)
    try:
        text = before.decode("utf-8")
    except UnicodeDecodeError:
        raise GpuboxError(f"{printable_path(path)} is not UTF-8 text: an edit would damage it.") from None
    if not old:
        raise GpuboxError("The old text is empty.", "write_file replaces a whole file.")
    if "\r\n" in text and "\r\n" not in old + new:  # models write \n whatever the file has
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = text.count(old)
    if count != 1:
        problem = "is not in the file" if count == 0 else f"is in the file {count} times"
        raise GpuboxError(
            f"The old text {problem}: {printable_path(path)} was not changed.",
            "Read the file, and copy the old text with more of the lines around it.",
        )
    return _file_change(names, before, _encode(text.replace(old, new)))


def apply_change(workspace: Workspace, change: FileChange, stop: threading.Event) -> None:
    """Replaces the file atomically, if it still is what the diff was made of. Raises GpuboxError."""
    path, name = printable_path(change.path), change.names[-1]
    with workspace.folder(change.names[:-1], create=True) as folder:
        mode = _require_unchanged(folder, change)
        temporary = f".gpubox-{secrets.token_hex(8)}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
                file.write(change.after)
                file.flush()
                if mode is not None:
                    copy_attributes(Path(f"/proc/self/fd/{folder}/{name}"), file.fileno())
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            _require_unchanged(folder, change)
            if stop.is_set():
                raise GpuboxError(f"{path} was not written: the call was stopped.")
            if change.before is None:
                _link_new(folder, temporary, name)
            else:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise GpuboxError(f"{path} was not written: {error.strerror}.") from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)


def shorten_diff(diff: str) -> str:
    """The diff, or its head and tail with a line between them that says how much is not shown."""
    lines = [_shorten_line(line) for line in diff.splitlines()]
    if len(lines) <= MAX_DIFF_LINES and sum(len(line) + 1 for line in lines) <= MAX_DIFF_CHARACTERS:
        return "\n".join(lines)
    head = _first_that_fit(lines)
    tail = _first_that_fit(reversed(lines[len(head) :]))[::-1]
    hidden = len(lines) - len(head) - len(tail)
    return "\n".join([*head, f"@@ {hidden} of {len(lines)} lines of this diff are NOT SHOWN @@", *tail])


def _first_that_fit(lines: Iterable[str]) -> list[str]:
    """The first lines, up to half of what may be shown."""
    fitting: list[str] = []
    remaining = MAX_DIFF_CHARACTERS // 2
    for line in lines:
        remaining -= len(line) + 1
        if remaining < 0 or len(fitting) == MAX_DIFF_LINES // 2:
            break
        fitting.append(line)
    return fitting


def _shorten_line(line: str) -> str:
    hidden = len(line) - _MAX_DIFF_LINE_CHARACTERS
    return line if hidden <= 0 else f"{line[:_MAX_DIFF_LINE_CHARACTERS]} @@ {hidden} characters NOT SHOWN @@"


def _require_unchanged(folder: int, change: FileChange) -> int | None:
    """The file's permissions; ``None`` if there is none. Raises GpuboxError if the file is not ``change.before``."""
    path = printable_path(change.path)
    try:
        os.stat(change.names[-1], dir_fd=folder, follow_symlinks=False)
    except OSError:
        if change.before is None:
            return None
        raise GpuboxError(f"{path} no longer exists: it was not written.") from None
    if change.before is not None:
        data, state = read_at(folder, change.names)
        if not state.st_mode & stat.S_IWUSR:
            raise GpuboxError(f"{path} is read-only.")
        if data == change.before:
            return stat.S_IMODE(state.st_mode) & 0o777
    raise GpuboxError(f"{path} has changed since the diff was shown: it was not written.", "Read it again.")


def _link_new(folder: int, temporary: str, name: str) -> None:
    """Gives a new file its name without replacing another file that has just taken it."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)  # a file system without hard links


def _writable_names(workspace: Workspace, path: str) -> tuple[str, ...]:
    names = workspace.parts(path)
    if not names or path.endswith("/"):
        raise GpuboxError(f"{printable_path(path) or '.'} is a folder: name a file.")
    if REPOSITORY in auto_run_kinds(path) or _completes_repository(workspace, names):
        raise GpuboxError(
            f"{printable_path(path)} cannot be written: it would be part of a Git repository, and git could run it."
        )
    return names


def _completes_repository(workspace: Workspace, names: tuple[str, ...]) -> bool:
    """Whether git takes one of the folders for a repository, now or with the new entry in it."""
    for depth in range(1, len(names) + 1):
        with contextlib.suppress(GpuboxError), workspace.folder(names[: depth - 1]) as folder:
            if is_bare_repository([*os.listdir(folder), names[depth - 1]]):  # noqa: PTH208 - by descriptor
                return True
    return False


def _read_if_exists(workspace: Workspace, names: tuple[str, ...]) -> bytes | None:
    try:
        return workspace.read(names)
    except GpuboxError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None  # the file or its folder is still to be created
        raise


def _encode(text: str) -> bytes:
    data = text.encode("utf-8", errors="replace")
    if len(data) > MAX_FILE_BYTES:
        raise GpuboxError(f"The file would be larger than {MAX_FILE_BYTES // 2**20} MiB.")
    return data


def _file_change(names: tuple[str, ...], before: bytes | None, after: bytes) -> FileChange:
    return FileChange(names, before, after, "" if before == after else _diff("/".join(names), before, after))


def _diff(path: str, before: bytes | None, after: bytes) -> str:
    """A unified diff. Only the lines between the equal start and end of the file are compared."""
    path = printable_path(path)
    old, new = _lines(before or b""), _lines(after)
    if before is not None and is_binary(before):
        header = f"--- {path}\n+++ {path}\n@@ the old content, {len(before)} bytes, is binary @@\n"
        return header + _prefixed("+", new)
    head = shared_length(old, new)
    tail = shared_length(old[head:][::-1], new[head:][::-1])
    header = f"--- {'(new file)' if before is None else path}\n+++ {path}\n"
    if before is None or max(len(old), len(new)) - head - tail > _MAX_COMPARED_LINES:
        removed, added = old[head : len(old) - tail], new[head : len(new) - tail]
        hunk = f"@@ -{head + 1},{len(removed)} +{head + 1},{len(added)} @@\n"
        return header + hunk + _prefixed("-", removed) + _prefixed("+", added)
    start, end = max(0, head - _CONTEXT_LINES), max(0, tail - _CONTEXT_LINES)
    diff = difflib.unified_diff(old[start : len(old) - end], new[start : len(new) - end], lineterm="", n=_CONTEXT_LINES)
    lines = [_shift_hunk(line, start) if line.startswith("@@") else line for line in list(diff)[2:]]
    return header + "\n".join(lines) + "\n"


def _lines(data: bytes) -> list[str]:
    """Lines as a diff shows them: carriage returns and a missing line break at the end are visible."""
    lines = data.decode("utf-8", errors="replace").split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
    else:
        lines.pop()
    return [line.replace("\r", "\u240d") for line in lines]


def _prefixed(sign: str, lines: list[str]) -> str:
    return "".join(f"{sign}{line}\n" for line in lines)


def _shift_hunk(header: str, offset: int) -> str:
    """``@@ -1,3 +1,4 @@`` with ``offset`` added to both line numbers."""
    return re.sub(r"(?<=[-+])\d+", lambda number: str(int(number[0]) + offset), header)
