"""A change of one file: planned, shown as a diff, and made at once or not at all. Blocking; run in a thread."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import secrets
import stat
import threading
from dataclasses import dataclass

from gpubox.agent.workspace import FILE_BYTES, Workspace, printable_path, read_at
from gpubox.errors import GpuboxError
from gpubox.sandbox.auto_run_files import REPOSITORY, auto_run_kinds, is_bare_repository

DIFF_LINES = 400
"""A longer diff is shown by its head and its tail."""
DIFF_CHARACTERS = 40_000
_DIFF_LINE_CHARACTERS = 2000
_COMPARED_LINES = 2000
"""Beyond so many changed lines the old and the new ones are shown whole: to match them up takes seconds."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file's content before and after. ``before`` is ``None`` for a file that is not there."""

    names: tuple[str, ...]
    before: bytes | None
    after: bytes
    diff: str
    """What the owner approves; empty: nothing would change."""

    @property
    def path(self) -> str:
        return "/".join(self.names)


def plan_write(workspace: Workspace, path: str, content: str) -> FileChange:
    """The whole file replaced, or made. Raises GpuboxError."""
    names = _writable(workspace, path)
    before = _content(workspace, names)
    return _change(names, before, _encoded(content))


def plan_edit(workspace: Workspace, path: str, old: str, new: str) -> FileChange:
    """``old``, which must stand in the file exactly once, replaced by ``new``. Raises GpuboxError."""
    names = _writable(workspace, path)
    before = workspace.read(names)
    try:
        text = before.decode("utf-8")
    except UnicodeDecodeError:
        raise GpuboxError(f"{printable_path(path)} is not UTF-8 text: an edit would damage it.") from None
    if not old:
        raise GpuboxError("The old text is empty.", "write_file replaces a whole file.")
    if "\r\n" in text and "\r\n" not in old + new:  # models write \n whatever the file does
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = text.count(old)
    if count != 1:
        why = "is not in the file" if count == 0 else f"stands in the file {count} times"
        raise GpuboxError(
            f"The old text {why}: {printable_path(path)} was not changed.", "Read the file and give more of it."
        )
    return _change(names, before, _encoded(text.replace(old, new)))


def apply_change(workspace: Workspace, change: FileChange, stop: threading.Event) -> None:
    """Writes the file in one step, if it is still what the diff was made of. Nothing is left behind where it fails.

    Raises GpuboxError.
    """
    name = change.names[-1]
    with workspace.folder(change.names[:-1], make=True) as folder:
        mode = _checked(folder, change)
        temporary = f".gpubox-{secrets.token_hex(8)}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.write(change.after)
                file.flush()
                os.fsync(file.fileno())
            _checked(folder, change)
            if stop.is_set():
                raise GpuboxError(f"{printable_path(change.path)} was not written: stopped.")
            if change.before is None:
                _place_new(folder, temporary, name)
            else:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise GpuboxError(f"{printable_path(change.path)} was not written: {error.strerror}.") from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)


def shorten_diff(diff: str) -> str:
    """The diff, or its head and tail with a line between them that says what is not shown."""
    lines = [_narrowed(line) for line in diff.splitlines()]
    if len(lines) <= DIFF_LINES and sum(len(line) + 1 for line in lines) <= DIFF_CHARACTERS:
        return "\n".join(lines)
    head = _fitting(lines[: DIFF_LINES // 2])
    tail = _fitting(lines[len(head) :][::-1][: DIFF_LINES // 2])[::-1]
    hidden = len(lines) - len(head) - len(tail)
    return "\n".join([*head, f"@@ {hidden} of {len(lines)} lines of this diff are NOT SHOWN @@", *tail])


def _fitting(lines: list[str]) -> list[str]:
    taken: list[str] = []
    room = DIFF_CHARACTERS // 2
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        taken.append(line)
    return taken


def _narrowed(line: str) -> str:
    hidden = len(line) - _DIFF_LINE_CHARACTERS
    return line if hidden <= 0 else f"{line[:_DIFF_LINE_CHARACTERS]} @@ {hidden} characters NOT SHOWN @@"


def _checked(folder: int, change: FileChange) -> int | None:
    """The permissions of the file as it is now; ``None`` where there is none. Raises GpuboxError if it changed."""
    name = change.names[-1]
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        if change.before is None:
            return None
        raise GpuboxError(f"{printable_path(change.path)} is gone: it was not written.") from None
    if change.before is not None:
        data, state = read_at(folder, change.names)
        if not state.st_mode & stat.S_IWUSR:
            raise GpuboxError(f"{printable_path(change.path)} is read-only.")
        if data == change.before:
            return stat.S_IMODE(state.st_mode) & 0o777
    raise GpuboxError(f"{printable_path(change.path)} has changed since: it was not written.", "Read it again.")


def _place_new(folder: int, temporary: str, name: str) -> None:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)  # never over another
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)  # a disk without hard links


def _writable(workspace: Workspace, path: str) -> tuple[str, ...]:
    names = workspace.parts(path)
    if not names or path.endswith("/"):
        raise GpuboxError(f"{printable_path(path) or '.'} is a folder: name a file.")
    if REPOSITORY in auto_run_kinds(path) or _completes_repository(workspace, names):
        raise GpuboxError(f"{printable_path(path)} is a repository's own: what stands there may be run later.")
    return names


def _completes_repository(workspace: Workspace, names: tuple[str, ...]) -> bool:
    """Whether a folder would be what git takes for a repository, or is one, whatever it is called."""
    for depth in range(1, len(names) + 1):
        with contextlib.suppress(GpuboxError), workspace.folder(names[: depth - 1]) as folder:
            if is_bare_repository([*os.listdir(folder), names[depth - 1]]):  # noqa: PTH208 - by descriptor
                return True
    return False


def _content(workspace: Workspace, names: tuple[str, ...]) -> bytes | None:
    try:
        with workspace.folder(names[:-1]) as folder:
            os.stat(names[-1], dir_fd=folder, follow_symlinks=False)
            return read_at(folder, names)[0]
    except FileNotFoundError:
        return None
    except GpuboxError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None  # its folder is still to be made
        raise


def _encoded(text: str) -> bytes:
    data = text.encode("utf-8", errors="replace")
    if len(data) > FILE_BYTES:
        raise GpuboxError(f"The file would be larger than {FILE_BYTES // 2**20} MiB.")
    return data


def _change(names: tuple[str, ...], before: bytes | None, after: bytes) -> FileChange:
    if before == after:
        return FileChange(names, before, after, "")
    path = printable_path("/".join(names))
    if before is not None and b"\0" in before[:8192]:
        diff = f"--- {path}\n+++ {path}\n@@ the old content, {len(before)} bytes, is no text @@\n"
        return FileChange(names, before, after, diff + _marked("+", _lines(after)))
    old, new = _lines(before or b""), _lines(after)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    front = f"--- {'(new file)' if before is None else path}\n+++ {path}\n"
    changed = max(len(old), len(new)) - head - tail
    if changed > _COMPARED_LINES or before is None:
        removed, added = old[head : len(old) - tail], new[head : len(new) - tail]
        place = f"@@ -{head + 1},{len(removed)} +{head + 1},{len(added)} @@\n"
        return FileChange(names, before, after, front + place + _marked("-", removed) + _marked("+", added))
    # Only what differs, and three lines around it: the rest would only be matched with itself.
    start, end = max(0, head - 3), max(0, tail - 3)
    pieces = difflib.unified_diff(old[start : len(old) - end], new[start : len(new) - end], lineterm="", n=3)
    body = [_moved(line, start) if line.startswith("@@") else line for line in list(pieces)[2:]]
    return FileChange(names, before, after, front + "\n".join(body) + "\n")


def _lines(data: bytes) -> list[str]:
    """Lines as a diff shows them: an ending that is unusual is seen, and so is a last line without one."""
    text = data.decode("utf-8", errors="replace")
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
    else:
        lines.pop()
    return [line.replace("\r", "\u240d") for line in lines]


def _marked(mark: str, lines: list[str]) -> str:
    return "".join(f"{mark}{line}\n" for line in lines)


def _moved(hunk: str, by: int) -> str:
    """A hunk's ``@@ -1,3 +1,4 @@`` with the lines counted from the whole file's first."""
    words = hunk.split(" ")
    for index in (1, 2):
        start, comma, count = words[index][1:].partition(",")
        words[index] = f"{words[index][0]}{int(start) + by}{comma}{count}"
    return " ".join(words)
