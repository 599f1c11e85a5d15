"""Changes of one file: planned, shown as a diff, and applied completely or not at all. Blocking; run in a thread."""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import json
import os
import re
import secrets
import stat
import threading
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox.agent.edit_match import place_edit
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


def plan_edit(workspace: Workspace, path: str, replacements: Sequence[tuple[str, str]]) -> FileChange:
    """Makes each replacement (old text, new text) at its only place, one after the other. Raises GpuboxError."""
    names = _writable_names(workspace, path)
    before = workspace.read(names)
    try:
        text = before.decode("utf-8")
    except UnicodeDecodeError:
        raise GpuboxError(f"{printable_path(path)} is not UTF-8 text: an edit would damage it.") from None
    for number, (old, new) in enumerate(replacements, 1):
        try:
            place = place_edit(text, old, new)
        except GpuboxError as error:
            which = f"Edit {number} of {len(replacements)}: " if len(replacements) > 1 else ""
            raise GpuboxError(f"{which}{error.message} {printable_path(path)} was not changed.", error.hint) from None
        text = text[: place.begin] + place.new + text[place.end :]
    return _file_change(names, before, _encode(text))


def parse_problem(change: FileChange) -> str:
    """Why the file could not be read by its language any more, in a sentence; empty if it can, or could not before."""
    parse = _PARSERS.get(change.names[-1].rpartition(".")[2])
    if parse is None or (change.before is not None and _failure(parse, change.before)):
        return ""
    return _failure(parse, change.after)


def _parse_python(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its strings' escapes: they are the program's business
        ast.parse(data)


_PARSERS: Mapping[str, Callable[[bytes], object]] = {
    "py": _parse_python,
    "json": json.loads,
    "toml": lambda data: tomllib.loads(data.decode("utf-8")),
}
"""By the end of a file's name."""


def _failure(parse: Callable[[bytes], object], data: bytes) -> str:
    try:
        parse(data)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # JSON's and TOML's are ValueErrors
        where = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{getattr(error, 'msg', '') or error}{where}"
    return ""


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
