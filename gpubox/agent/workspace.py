"""The one folder that a chat's file tools may touch, and nothing beside it.

Every path is walked from the folder's own descriptor, a name at a time and never through a link, so that a program
of the model's that swaps folders meanwhile wins nothing. Only ordinary files are opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.sandbox.policy import WORKSPACE_MOUNT

FILE_BYTES = 8 * 1024 * 1024
"""No larger file is read or written."""
DEPTH = 32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr")
_SHARED = ("home", "media", "mnt", "opt", "root", "srv", "tmp", "var")
"""Refused themselves; a folder in them is somebody's."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One item of a folder."""

    path: str
    """From the workspace, with slashes."""
    kind: str
    """file | folder | link | other"""
    size_bytes: int = 0
    target: str = ""
    """Where a link points, as it is written."""
    same_disk: bool = True


class Workspace:
    """One folder, by its identity: one that was replaced since is not touched any more."""

    def __init__(self, folder: Path, *, anywhere: bool = False, own: tuple[Path, ...] = ()) -> None:
        """``own`` are gpubox's own folders, which hold the API key. Raises UsageError where ``folder`` cannot be one.

        ``anywhere`` is the owner's word that even a home folder, ``/`` or a system folder will do.
        """
        try:
            self.root = folder.expanduser().resolve(strict=True)
            found = self.root.stat()
        except (OSError, RuntimeError, ValueError) as error:
            why = (getattr(error, "strerror", "") or "no such folder").lower()
            raise UsageError(f"The workspace {folder} cannot be used: {why}.", "Name a folder that exists.") from None
        if not stat.S_ISDIR(found.st_mode):
            raise UsageError(f"The workspace {folder} is no folder.", "Name the folder the model may work in.")
        if not anywhere and (what := _too_wide(self.root, own)):
            raise UsageError(
                f"{self.root} is {what}: the model would have all of it as its workspace.",
                "Make a folder for it, or say --any-workdir.",
            )
        self._identity = (found.st_dev, found.st_ino)

    def parts(self, path: str) -> tuple[str, ...]:
        """The names that ``path`` is made of; empty for the workspace itself. Raises GpuboxError."""
        for front in (str(self.root), WORKSPACE_MOUNT):  # a program sees it there
            if path == front or path.startswith(front.rstrip("/") + "/"):
                path = path[len(front) :].lstrip("/")
                break
        if path.startswith(("/", "~")):
            raise GpuboxError(
                f"{printable_path(path)} is outside the workspace.", "Paths are relative to the workspace."
            )
        names = tuple(name for name in path.split("/") if name not in ("", "."))
        if ".." in names:
            raise GpuboxError(f"{printable_path(path)} is refused: a path must not hold '..'.")
        try:
            long = any(len(os.fsencode(name)) > 255 for name in names)
        except UnicodeError:
            long = True
        if long or len(names) > DEPTH or "\0" in path:
            raise GpuboxError(f"{printable_path(path)} is no usable path.")
        return names

    @contextlib.contextmanager
    def folder(self, names: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder ``names``; its missing folders are made with ``make``. Raises GpuboxError."""
        descriptor = self._open_root()
        try:
            for depth, name in enumerate(names, start=1):
                with _explained(names[:depth], descriptor):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, dir_fd=descriptor)
                    inner = os.open(name, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_root(self) -> int:
        try:
            descriptor = os.open(self.root, _FOLDER)
        except OSError as error:
            raise GpuboxError(f"The workspace is gone: {error.strerror}.") from None
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != self._identity:
            os.close(descriptor)
            raise GpuboxError("The workspace was replaced by another folder.", "Open the chat again with --workdir.")
        return descriptor

    @property
    def device(self) -> int:
        """The disk it lies on; others that are mounted in it are not looked into."""
        return self._identity[0]

    def read(self, names: tuple[str, ...]) -> bytes:
        """The bytes of an ordinary file of at most FILE_BYTES. Raises GpuboxError."""
        if not names:
            raise GpuboxError("The workspace itself is a folder, not a file.")
        with self.folder(names[:-1]) as descriptor:
            return read_at(descriptor, names)[0]


def read_at(descriptor: int, names: tuple[str, ...]) -> tuple[bytes, os.stat_result]:
    """The bytes of the file called ``names[-1]`` in the folder ``descriptor``, and its state. Raises GpuboxError."""
    file = open_file(descriptor, names)
    with os.fdopen(file, "rb") as stream:
        found = os.fstat(file)
        data = stream.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise GpuboxError(f"{printable_path('/'.join(names))} is too large: more than {FILE_BYTES // 2**20} MiB.")
    return data, found


def open_file(descriptor: int, names: tuple[str, ...]) -> int:
    """A descriptor to read an ordinary file. Nothing else is ever opened, so that no pipe or device is touched."""
    with _explained(names, descriptor):
        _ordinary(names, os.stat(names[-1], dir_fd=descriptor, follow_symlinks=False), descriptor)
        file = os.open(names[-1], _FILE, dir_fd=descriptor)
    try:
        _ordinary(names, os.fstat(file), descriptor)
    except BaseException:
        os.close(file)
        raise
    return file


def list_folder(descriptor: int, names: tuple[str, ...], limit: int, device: int) -> tuple[list[FolderEntry], bool]:
    """The items of the folder ``descriptor``; ``device`` is the disk that counts as the workspace's own."""
    found: list[FolderEntry] = []
    more = False
    with os.scandir(descriptor) as items:
        for item in items:
            if len(found) >= limit:
                more = True
                break
            with contextlib.suppress(OSError):  # it went meanwhile
                found.append(_entry(descriptor, item, names, device))
    return sorted(found, key=lambda entry: entry.path), more


def _entry(descriptor: int, item: os.DirEntry[str], names: tuple[str, ...], device: int) -> FolderEntry:
    path = "/".join((*names, item.name))
    state = item.stat(follow_symlinks=False)
    if stat.S_ISLNK(state.st_mode):
        return FolderEntry(path, "link", target=os.readlink(item.name, dir_fd=descriptor))
    kind = "folder" if stat.S_ISDIR(state.st_mode) else "file" if stat.S_ISREG(state.st_mode) else "other"
    return FolderEntry(path, kind, state.st_size if kind == "file" else 0, same_disk=state.st_dev == device)


def printable_path(path: str) -> str:
    """A path as a message may show it: one short line."""
    clean = "".join(char if char.isprintable() else "\ufffd" for char in path)
    return clean if len(clean) <= 200 else clean[:199] + "…"


def _ordinary(names: tuple[str, ...], state: os.stat_result, descriptor: int) -> None:
    path = "/".join(names)
    if stat.S_ISREG(state.st_mode):
        return
    if stat.S_ISLNK(state.st_mode):
        raise GpuboxError(_link_words(path, descriptor, names[-1]))
    what = "a folder" if stat.S_ISDIR(state.st_mode) else "a device, a pipe or a socket"
    raise GpuboxError(f"{printable_path(path)} is {what}, not a file.")


def _is_link(descriptor: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _link_words(path: str, descriptor: int, name: str) -> str:
    target = ""
    with contextlib.suppress(OSError):
        target = os.readlink(name, dir_fd=descriptor)
    return f"{printable_path(path)} is a link to {printable_path(target) or '?'}, and links are not followed: name what it points to."


@contextlib.contextmanager
def _explained(names: tuple[str, ...], descriptor: int) -> Iterator[None]:
    """Turns what the kernel refuses at ``names[-1]`` in the folder ``descriptor`` into one sentence."""
    path = "/".join(names)
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(descriptor, names[-1]):
            raise GpuboxError(_link_words(path, descriptor, names[-1])) from None
        if error.errno == errno.ENOENT:
            raise GpuboxError(f"{printable_path(path)} does not exist.") from error
        if error.errno == errno.ENOTDIR:
            raise GpuboxError(f"{printable_path(path)} is no folder.") from None
        raise GpuboxError(f"{printable_path(path)}: {error.strerror}.") from None


def _too_wide(root: Path, own: tuple[Path, ...]) -> str:
    home = Path.home().resolve()
    if root == Path("/"):
        return "the whole machine"
    if root == home:
        return "the home folder"
    if home.is_relative_to(root):
        return "a folder with homes in it"
    if any(root.is_relative_to(folder) or folder.is_relative_to(root) for folder in (p.resolve() for p in own)):
        return "a folder with gpubox's own files in it"
    if root.parts[1] in _SYSTEM or (len(root.parts) == 2 and root.parts[1] in _SHARED):
        return "a folder of the system"
    return ""
