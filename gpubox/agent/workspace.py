"""The one folder that the file tools of a chat may touch, and the scratch folder of a chat without one. Blocking.

Each path is opened from the workspace's own descriptor, one name at a time and never through a symbolic link: a
program of the model that swaps folders meanwhile gains nothing. Only regular files are opened.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.hardware.process import identity_of
from gpubox.paths import Paths
from gpubox.sandbox.layers import OPEN_FOLDER, remove_tree
from gpubox.sandbox.policy import WORKSPACE_MOUNT
from gpubox.storage import private_folder

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Larger files are neither read nor written."""
MAX_DEPTH = 32
_MAX_NAME_BYTES = 255
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SYSTEM_FOLDERS = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr")
_SHARED_FOLDERS = ("home", "media", "mnt", "opt", "root", "srv", "tmp", "var")
"""These are refused, but not the folders in them."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One item of a folder."""

    path: str
    """Relative to the workspace, with slashes."""
    kind: str
    """file | folder | link | other"""
    size_bytes: int = 0
    link_target: str = ""
    same_device: bool = True
    """False: another file system is mounted here."""


class Workspace:
    """One folder, known by device and inode: if another folder takes its place, that one is not touched."""

    def __init__(self, folder: Path, *, any_folder: bool = False, own_folders: tuple[Path, ...] = ()) -> None:
        """Raises UsageError if ``folder`` cannot be a workspace.

        ``any_folder``: the owner allows even a home folder, ``/`` or a system folder. ``own_folders``: gpubox's own
        folders, which hold the API key.
        """
        try:
            self.root = folder.expanduser().resolve(strict=True)
            state = self.root.stat()
        except (OSError, RuntimeError, ValueError) as error:
            why = (getattr(error, "strerror", "") or "no such folder").lower()
            raise UsageError(f"The workspace {folder} cannot be used: {why}.", "Name a folder that exists.") from None
        if not stat.S_ISDIR(state.st_mode):
            raise UsageError(f"The workspace {folder} is not a folder.", "Name the folder the model may work in.")
        if not any_folder and (kind := _too_wide(self.root, own_folders)):
            raise UsageError(
                f"{self.root} is {kind}: the model would have all of it as its workspace.",
                "Create a folder for it, or add --any-workdir.",
            )
        self.device = state.st_dev
        """File systems that are mounted in the workspace are not part of it."""
        self._inode = state.st_ino

    def parts(self, path: str) -> tuple[str, ...]:
        """The names that ``path`` consists of; empty for the workspace itself. Raises GpuboxError."""
        for root in (str(self.root), WORKSPACE_MOUNT):  # a program sees the workspace as WORKSPACE_MOUNT
            if path == root or path.startswith(root.rstrip("/") + "/"):
                path = path[len(root) :].lstrip("/")
                break
        if path.startswith(("/", "~")):
            raise GpuboxError(
                f"{printable_path(path)} is outside the workspace.", "Paths are relative to the workspace."
            )
        names = tuple(name for name in path.split("/") if name not in ("", "."))
        if ".." in names:
            raise GpuboxError(f"{printable_path(path)} is refused: a path must not contain '..'.")
        try:
            too_long = any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in names)
        except UnicodeError:
            too_long = True
        if too_long or len(names) > MAX_DEPTH or "\0" in path:
            raise GpuboxError(f"{printable_path(path)} is not a valid path.")
        return names

    @contextlib.contextmanager
    def folder(self, names: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder ``names``. ``create``: missing folders are created. Raises GpuboxError."""
        try:
            descriptor = os.open(self.root, OPEN_FOLDER)
        except OSError as error:
            raise GpuboxError(f"The workspace is gone: {error.strerror}.") from None
        try:
            state = os.fstat(descriptor)
            if (state.st_dev, state.st_ino) != (self.device, self._inode):
                raise GpuboxError(
                    "The workspace was replaced by another folder.", "Open the chat again with --workdir."
                )
            for depth, name in enumerate(names, start=1):
                with _os_errors_explained(names[:depth], descriptor):
                    if create:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, dir_fd=descriptor)
                    inner = os.open(name, OPEN_FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, names: tuple[str, ...]) -> bytes:
        """The bytes of a regular file of at most MAX_FILE_BYTES. Raises GpuboxError."""
        if not names:
            raise GpuboxError("The workspace itself is a folder, not a file.")
        with self.folder(names[:-1]) as descriptor:
            return read_at(descriptor, names)[0]


def read_at(folder: int, names: tuple[str, ...]) -> tuple[bytes, os.stat_result]:
    """The bytes and the state of the regular file ``names[-1]`` in the open folder ``folder``. Raises GpuboxError."""
    with _os_errors_explained(names, folder):
        # Checked before it is opened, because to open a pipe or a device may already have an effect.
        _require_regular(names, os.stat(names[-1], dir_fd=folder, follow_symlinks=False), folder)
        descriptor = os.open(names[-1], _OPEN_FILE, dir_fd=folder)
    try:
        state = os.fstat(descriptor)
        _require_regular(names, state, folder)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise GpuboxError(f"{printable_path('/'.join(names))} is too large: more than {MAX_FILE_BYTES // 2**20} MiB.")
    return data, state


def is_binary(data: bytes) -> bool:
    """Whether the content of a file is not text, as git judges it."""
    return b"\0" in data[:8192]


def list_folder(folder: int, names: tuple[str, ...], limit: int, device: int) -> tuple[list[FolderEntry], bool]:
    """``(entries, truncated)``: at most ``limit`` entries of the open folder, sorted. ``device``: the workspace's."""
    entries: list[FolderEntry] = []
    with os.scandir(folder) as items:
        for item in itertools.islice(items, limit):
            with contextlib.suppress(OSError):  # removed meanwhile
                entries.append(_folder_entry(folder, item, names, device))
        truncated = next(items, None) is not None
    return sorted(entries, key=lambda entry: entry.path), truncated


def _folder_entry(folder: int, item: os.DirEntry[str], names: tuple[str, ...], device: int) -> FolderEntry:
    path = "/".join((*names, item.name))
    state = item.stat(follow_symlinks=False)
    if stat.S_ISLNK(state.st_mode):
        return FolderEntry(path, "link", link_target=os.readlink(item.name, dir_fd=folder))
    kind = "folder" if stat.S_ISDIR(state.st_mode) else "file" if stat.S_ISREG(state.st_mode) else "other"
    return FolderEntry(path, kind, state.st_size if kind == "file" else 0, same_device=state.st_dev == device)


def printable_path(path: str) -> str:
    """A path for a message: one short line."""
    clean = "".join(char if char.isprintable() else "\ufffd" for char in path)
    return clean if len(clean) <= 200 else clean[:199] + "…"


def _require_regular(names: tuple[str, ...], state: os.stat_result, folder: int) -> None:
    if stat.S_ISREG(state.st_mode):
        return
    if stat.S_ISLNK(state.st_mode):
        raise _link_error(names, _link_target(folder, names[-1]))
    kind = "a folder" if stat.S_ISDIR(state.st_mode) else "a device, a pipe or a socket"
    raise GpuboxError(f"{printable_path('/'.join(names))} is {kind}, not a file.")


def _link_target(folder: int, name: str) -> str:
    """Empty: ``name`` is not a link."""
    with contextlib.suppress(OSError):
        return os.readlink(name, dir_fd=folder)
    return ""


def _link_error(names: tuple[str, ...], target: str) -> GpuboxError:
    return GpuboxError(
        f"{printable_path('/'.join(names))} is a link to {printable_path(target) or '?'}. "
        "Links are not followed: use the path that it points to."
    )


@contextlib.contextmanager
def _os_errors_explained(names: tuple[str, ...], folder: int) -> Iterator[None]:
    """Turns an OSError for ``names[-1]`` in the open folder ``folder`` into a GpuboxError."""
    try:
        yield
    except OSError as error:
        path = printable_path("/".join(names))
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and (target := _link_target(folder, names[-1])):
            raise _link_error(names, target) from None
        if error.errno == errno.ENOENT:
            raise GpuboxError(f"{path} does not exist.") from error
        if error.errno == errno.ENOTDIR:
            raise GpuboxError(f"{path} is not a folder.") from None
        raise GpuboxError(f"{path} cannot be opened: {error.strerror}.") from None


def _too_wide(root: Path, own_folders: tuple[Path, ...]) -> str:
    """What ``root`` is if it is too wide for a workspace; empty: it is not."""
    home = Path.home().resolve()
    if root == Path("/"):
        return "the whole machine"
    if root == home:
        return "the home folder"
    if home.is_relative_to(root):
        return "a folder that contains home folders"
    own = [folder.resolve() for folder in own_folders]
    if any(root.is_relative_to(folder) or folder.is_relative_to(root) for folder in own):
        return "a folder that contains gpubox's own files"
    if root.parts[1] in _SYSTEM_FOLDERS or (len(root.parts) == 2 and root.parts[1] in _SHARED_FOLDERS):
        return "a system folder"
    return ""


def create_scratch(paths: Paths) -> Path:
    """A new empty folder for the programs of a chat without a workspace. Raises GpuboxError.

    The scratch folders of processes that no longer run are removed.
    """
    try:
        private_folder(paths.scratch)
        for old in paths.scratch.iterdir():
            pid = old.name.partition("-")[0]
            if not pid.isdecimal() or identity_of(int(pid)) is None:
                remove_tree(old)
        parent = paths.scratch / f"{os.getpid()}-{secrets.token_hex(4)}"
        parent.mkdir(mode=0o700)
        folder = parent / "work"
        folder.mkdir()
        folder.chmod(0o777)  # under root the programs run as another user; the parent folder keeps others out
    except OSError as error:
        raise GpuboxError(f"{paths.scratch} cannot be written: {error.strerror}.", "Free some disk space.") from None
    return folder.resolve()  # the Sandbox accepts no path with a link in it


def remove_scratch(folder: Path) -> None:
    """Removes a folder of ``create_scratch``."""
    remove_tree(folder.parent)
