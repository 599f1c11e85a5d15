"""Layers over a workspace: what a program changes lies in a folder of its own, and the owner's folder stays as it is.

The form on disk is overlayfs' own (kernel: filesystems/overlayfs.rst, mounted with userxattr), so that bubblewrap can
mount it, and what it left can be read without a mount: a changed or new file is a file, a removed one a character
device 0:0 (a whiteout), and a folder that replaces another one is opaque. Every path is opened one name at a time and
never through a symbolic link: what a program leaves can lead nowhere else. Blocking; run it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE_BYTES = 1 << 30
OPAQUE = "user.overlay.opaque"
MAX_DEPTH = 128
"""What lies in folders nested deeper than this is neither shown nor taken."""
Names = tuple[str, ...]
"""A path in the workspace, name by name; empty for the workspace itself."""


@dataclass(frozen=True, slots=True)
class LayerItem:
    """What has a name in a merged folder."""

    name: str
    status: os.stat_result
    folder: int
    """Descriptor of the folder of the layer, or of the workspace, in which it lies. Valid while its folder is open."""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_ordinary(self) -> bool:
        """Whether it is a file, a folder or a link: nothing else is ever copied."""
        return self.is_folder or self.is_file or self.is_link

    @property
    def hides(self) -> bool:
        """Whether it hides all that lies below its name in the layers under it."""
        return not self.is_folder or is_opaque(f"/proc/self/fd/{self.folder}/{self.name}")

    def link_target(self) -> str:
        """Where the link leads. Raises OSError if it is none."""
        return os.readlink(self.name, dir_fd=self.folder)


@dataclass(slots=True)
class Folder:
    """One open folder of a View: the same folder in each layer that has it, the top first."""

    descriptors: list[int]

    def find(self, name: str) -> LayerItem | None:
        """The item that a program would see; ``None``: there is none. Raises OSError other than "no such file"."""
        for descriptor in self.descriptors:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                return None if is_whiteout(status) else LayerItem(name, status, descriptor)
        return None

    def items(self, *, whiteouts: bool = False) -> Iterator[LayerItem]:
        """Every item, in no order. Those that vanish meanwhile are left out."""
        seen: set[str] = set()
        for descriptor in self.descriptors:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.name in seen:
                        continue
                    seen.add(entry.name)
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if whiteouts or not is_whiteout(status):
                            yield LayerItem(entry.name, status, descriptor)

    def open_folder(self, name: str) -> Folder:
        """The folder ``name`` of this one; close it. Raises OSError if it is none, ELOOP or ENOTDIR for a link."""
        opened: list[int] = []
        try:
            for descriptor in self.descriptors:
                try:
                    inner = os.open(name, OPEN_FOLDER, dir_fd=descriptor)
                except FileNotFoundError:
                    continue
                except OSError:
                    if not opened:
                        if is_whiteout(os.stat(name, dir_fd=descriptor, follow_symlinks=False)):
                            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
                        raise
                    break  # a file or a whiteout lies below a new folder
                opened.append(inner)
                if descriptor != self.descriptors[-1] and is_opaque(inner):
                    break
            if not opened:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        except BaseException:
            Folder(opened).close()
            raise
        return Folder(opened)

    def close(self) -> None:
        """Closes its descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class View:
    """The workspace as its programs see it: in each name the topmost layer wins. It may be read while they run."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """``folders``: the top layer first, the workspace last."""
        self.folders = tuple(folders)

    @contextlib.contextmanager
    def folder(self, names: Names = ()) -> Iterator[Folder]:
        """The open folder ``names``. Raises OSError: ENOENT, ENOTDIR, or ELOOP where a name is a link."""
        folder = Folder([])
        try:
            for path in self.folders:
                folder.descriptors.append(os.open(path, OPEN_FOLDER))
            for name in names:
                inner = folder.open_folder(name)
                folder.close()
                folder = inner
            yield folder
        finally:
            folder.close()

    def status(self, names: Names) -> os.stat_result | None:
        """The state of the item ``names``; ``None``: there is none. Raises OSError for another reason."""
        try:
            with self.folder(names[:-1]) as folder:
                item = folder.find(names[-1]) if names else None
                return item.status if item else None if names else os.fstat(folder.descriptors[0])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def walk(self, names: Names = (), *, whiteouts: bool = False) -> Iterator[tuple[Names, LayerItem]]:
        """Everything below the folder ``names`` down to MAX_DEPTH, a folder before what is in it.

        Holds one folder open. What is in a folder that cannot be read is left out. ``whiteouts``, too: for a layer
        alone, whose closed folders are opened to its owner.
        """
        pending = [names]
        while pending:
            names = pending.pop()
            with contextlib.suppress(OSError), self.folder(names) as folder:
                for item in folder.items(whiteouts=whiteouts):
                    mode = stat.S_IMODE(item.status.st_mode)
                    if whiteouts and item.is_folder and mode & 0o500 != 0o500:  # else all in it looks removed
                        os.chmod(item.name, mode | 0o500, dir_fd=item.folder)
                    if item.is_folder and len(names) < MAX_DEPTH:
                        pending.append((*names, item.name))
                    yield (*names, item.name), item


class TopLayer:
    """Writes the top layer of a View as a program would, without a mount. Never while a program runs in it."""

    def __init__(self, view: View, owner: int | None = None) -> None:
        """``owner``: the user of root's programs, who gets what is made; ``None``: gpubox's own."""
        self.view, self.path, self._owner = view, view.folders[0], owner

    def write(self, names: Names, data: bytes, mode: int | None = None) -> None:
        """Makes or replaces the file ``names``, completely or not at all; missing folders are made.

        ``mode``: its permissions; ``None``: those of the file that it replaces, else by the umask. Raises OSError.
        """
        old = self.view.status(names)
        if old and not stat.S_ISREG(old.st_mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EEXIST, "is not a regular file")
        mode = mode if mode is not None else stat.S_IMODE(old.st_mode) if old else new_mode(0o666)
        with (
            self._folder(names[:-1]) as folder,
            _replacement(folder, names[-1]) as temporary,
            _make_file(folder, temporary) as file,
        ):
            file.write(data)
            os.fchmod(file.fileno(), mode)
            _give(file.fileno(), self._owner)

    def put(self, names: Names, item: LayerItem) -> None:
        """Makes ``names`` what ``item`` is, its mode and its time included. Raises OSError.

        A folder stays what it was, but for its mode. In the place of something of another kind: ``remove`` that first.
        """
        if item.is_folder:
            with self._folder(names) as folder:
                os.fchmod(folder, stat.S_IMODE(item.status.st_mode) | 0o700)
        else:
            with self._folder(names[:-1]) as folder:
                copy_into(folder, names[-1], item, self._owner)

    def link(self, names: Names, item: LayerItem) -> None:
        """As ``put``, but a file gets another name where it can: ``item`` is of a layer that nothing writes again."""
        if item.is_file:
            with contextlib.suppress(OSError), self._folder(names[:-1]) as folder:
                os.link(item.name, names[-1], src_dir_fd=item.folder, dst_dir_fd=folder, follow_symlinks=False)
                return
        self.put(names, item)

    def remove(self, names: Names) -> None:
        """Removes what has the name, a folder with all in it. Raises OSError; FileNotFoundError if there is nothing."""
        if self.view.status(names) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/".join(names))
        with self._folder(names[:-1]) as folder:
            with contextlib.suppress(FileNotFoundError):
                remove_at(folder, names[-1])
            if self.view.status(names) is not None:
                os.mknod(names[-1], stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)

    @contextlib.contextmanager
    def _folder(self, names: Names) -> Iterator[int]:
        """The folder ``names`` of the top layer; it is made as overlayfs would copy it up."""
        descriptor = os.open(self.path, OPEN_FOLDER)
        try:
            for depth, name in enumerate(names, 1):
                try:
                    inner = os.open(name, OPEN_FOLDER, dir_fd=descriptor)
                except FileNotFoundError:
                    inner = self._make_folder(descriptor, names[:depth], hidden=False)
                except NotADirectoryError:
                    if not is_whiteout(os.stat(name, dir_fd=descriptor, follow_symlinks=False)):
                        raise
                    inner = self._make_folder(descriptor, names[:depth], hidden=True)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_folder(self, parent: int, names: Names, *, hidden: bool) -> int:
        """``hidden``: a whiteout has its name, so that the folder must stay without what lies below."""
        below = self.view.status(names)
        if below and not stat.S_ISDIR(below.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), "/".join(names))
        if hidden:
            os.unlink(names[-1], dir_fd=parent)
        os.mkdir(names[-1], 0o700, dir_fd=parent)
        folder = os.open(names[-1], OPEN_FOLDER, dir_fd=parent)
        if hidden:
            os.setxattr(folder, OPAQUE, b"y")
        os.fchmod(folder, stat.S_IMODE(below.st_mode) if below else new_mode(0o777))
        _give(folder, self._owner)
        if below:
            os.utime(folder, ns=(below.st_atime_ns, below.st_mtime_ns))
        return folder


def new_mode(mode: int) -> int:
    """``mode`` less what the owner's umask takes from new files: proc(5), /proc/PID/status."""
    status = Path("/proc/self/status").read_text()
    return mode & ~int(status.partition("\nUmask:")[2].split(None, 1)[0], 8)


def is_whiteout(status: os.stat_result) -> bool:
    """Whether it stands for a file that a layer removed."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(folder: int | str) -> bool:
    """Whether the folder of a layer, open or by its path, hides the folders of its name below."""
    try:
        return os.getxattr(folder, OPAQUE, follow_symlinks=isinstance(folder, int)) == b"y"
    except OSError:
        return False


def make_layer(folder: Path, owner: int | None) -> None:
    """Makes an empty layer. ``owner`` as for TopLayer. Raises OSError."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    if owner is not None:
        os.chown(folder, owner, owner)


def copy_into(folder: int, name: str, item: LayerItem, owner: int | None) -> None:
    """Makes ``name`` in the open ``folder`` what ``item`` is, with its mode and, but for folders, its time.

    A file or link is replaced in one step. ``owner`` as for TopLayer. Raises OSError.
    """
    status, mode = item.status, stat.S_IMODE(item.status.st_mode)
    if item.is_folder:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        made = os.open(name, OPEN_FOLDER, dir_fd=folder)
        try:
            _give(made, owner)
            os.fchmod(made, mode | 0o700)
        finally:
            os.close(made)
        return
    with _replacement(folder, name) as temporary:
        if item.is_link:
            os.symlink(item.link_target(), temporary, dir_fd=folder)
            if owner is not None:
                os.chown(temporary, owner, owner, dir_fd=folder, follow_symlinks=False)
        else:
            with _make_file(folder, temporary) as file:
                _copy_content(item, file.fileno())
                _give(file.fileno(), owner)
                os.fchmod(file.fileno(), mode)
        os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=folder, follow_symlinks=False)


@contextlib.contextmanager
def _replacement(folder: int, name: str) -> Iterator[str]:
    """The name under which something is made that then takes the place of ``name``, in one step."""
    temporary = f".gpubox-{secrets.token_hex(8)}.tmp"
    try:
        yield temporary
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _make_file(folder: int, name: str) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb")


def _give(descriptor: int, owner: int | None) -> None:
    if owner is not None:
        os.fchown(descriptor, owner, owner)


def _copy_content(item: LayerItem, target: int) -> None:
    """The file system shares the blocks where it can."""
    source = os.open(item.name, OPEN_FILE, dir_fd=item.folder)
    try:
        with contextlib.suppress(OSError):  # another file system, or one that cannot
            while os.copy_file_range(source, target, _PIECE_BYTES):
                pass
        while os.sendfile(target, source, None, _PIECE_BYTES):
            pass
    finally:
        os.close(source)


def remove_at(folder: int, name: str) -> None:
    """Removes what ``name`` of the open ``folder`` stands for, with everything in it. Raises OSError."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        os.chmod(name, 0o700, dir_fd=folder)
        remove_tree(Path(f"/proc/self/fd/{folder}/{name}"))


def remove_tree(folder: Path) -> None:
    """Removes ``folder`` with everything a program left in it, however deep.

    Moves the contents of each subfolder up before removing it, so that no path gets long. What cannot be removed stays.
    """
    moved, stuck = 0, set[str]()
    with contextlib.suppress(OSError):
        while names := [name for name in os.listdir(folder) if name not in stuck]:  # noqa: PTH208
            for name in names:
                path = folder / name
                try:
                    if path.is_symlink() or not path.is_dir():
                        path.unlink()
                        continue
                    path.chmod(0o700)
                    for inner in os.listdir(path):  # noqa: PTH208
                        moved += 1
                        if not (path / inner).is_symlink() and (path / inner).is_dir():
                            (path / inner).chmod(0o700)  # a folder must be writable for its ".." to change
                        (path / inner).rename(folder / f".{moved}-{secrets.token_hex(4)}")
                    path.rmdir()
                except OSError:
                    stuck.add(name)
        folder.rmdir()
