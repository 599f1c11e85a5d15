"""The one folder that the tools of a chat may see, with the layers over it that take what they write. Blocking.

Each path is opened from the workspace's own descriptor, one name at a time and never through a symbolic link: a
program of the model that swaps folders meanwhile gains nothing. Only regular files are opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpubox.errors import GpuboxError, UsageError
from gpubox.sandbox.layers import OPEN_FILE, Folder, LayerItem, Names, TopLayer, View, make_layer, remove_tree
from gpubox.sandbox.policy import WORKSPACE_MOUNT
from gpubox.sandbox.steps import Steps

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Larger files are neither read nor written."""
MAX_DEPTH = 32
_MAX_NAME_BYTES = 255
_SYSTEM_FOLDERS = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr")
_SHARED_FOLDERS = ("home", "media", "mnt", "opt", "root", "srv", "tmp", "var")
"""These are refused, but not the folders in them."""


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
        self._identity = (state.st_dev, state.st_ino)
        self.steps: Steps | None = None
        """The layers over it; ``None``: nothing is written."""
        self.changed: set[str] = set()
        """The paths that this turn has changed."""
        self.thrown_away: Path | None = None
        """A layer on top that the owner never sees (``throwing_away``)."""

    def layers(self) -> tuple[Path, ...]:
        """The layers that programs are given, the top one first."""
        top = (self.thrown_away / "up",) if self.thrown_away else ()
        return (*top, *(self.steps.layers() if self.steps else ()))

    def view(self) -> View:
        """The workspace as programs see it."""
        return View([*self.layers(), self.root])

    def note_changes(self, began_ns: int | None = None) -> tuple[str, ...]:
        """The paths that a run or a write changed. ``began_ns``: when it began, as for ``Steps.note_changes``."""
        if not self.steps or self.thrown_away:
            return ()
        paths = self.steps.note_changes(began_ns)
        self.changed.update(path.removesuffix(" (removed)").rstrip("/") for path in paths)
        return paths

    @contextlib.contextmanager
    def throwing_away(self) -> Iterator[None]:
        """What programs write meanwhile is gone afterwards."""
        assert self.steps is not None
        folder = self.steps.folder / "thrown-away"
        try:
            remove_tree(folder)
            make_layer(folder / "up", self.steps.owner)
            self.thrown_away = folder
            yield
        except OSError as error:
            raise GpuboxError(f"{folder} cannot be written: {error.strerror}.", "Free some disk space.") from None
        finally:
            self.thrown_away = None
            remove_tree(folder)

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
    def folder(self, names: Names = ()) -> Iterator[Folder]:
        """The open folder ``names`` as programs see it. Raises GpuboxError."""
        with contextlib.ExitStack() as opened:
            try:
                folder = opened.enter_context(self.view().folder())
            except OSError as error:
                raise GpuboxError(f"The workspace is gone: {error.strerror}.") from None
            state = os.fstat(folder.descriptors[-1])
            if (state.st_dev, state.st_ino) != self._identity:
                raise GpuboxError(
                    "The workspace was replaced by another folder.", "Open the chat again with --workdir."
                )
            for depth, name in enumerate(names, start=1):
                with _os_errors_explained(names[:depth], folder):
                    inner = folder.open_folder(name)
                opened.callback(inner.close)
                folder.close()  # at most two are open: each has a descriptor for every layer
                folder = inner
            yield folder

    def read(self, names: Names) -> bytes:
        """The bytes of a regular file of at most MAX_FILE_BYTES. Raises GpuboxError; of FileNotFoundError: no file."""
        if not names:
            raise GpuboxError("The workspace itself is a folder, not a file.")
        with self.folder(names[:-1]) as folder, _os_errors_explained(names, folder):
            item = folder.find(names[-1])
            if item is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return read_item(item, "/".join(names))

    def require_writable(self) -> Steps:
        """Raises GpuboxError in plan mode."""
        if not self.steps or self.thrown_away:
            raise GpuboxError("Plan mode: nothing is written.", "Say what you would change.")
        return self.steps

    def write(self, names: Names, data: bytes) -> None:
        """Makes or replaces a file, completely or not at all. Raises GpuboxError; the owner's folder stays as it is."""
        owner = self.require_writable().owner
        with self.folder():  # still the same workspace
            status = self.view().status(names)
        if status and not status.st_mode & stat.S_IWUSR:
            raise GpuboxError(f"{printable_path('/'.join(names))} is read-only.")
        try:
            TopLayer(self.view(), owner).write(names, data)
        except OSError as error:
            raise GpuboxError(f"{printable_path('/'.join(names))} was not written: {error.strerror}.") from None


def read_item(item: LayerItem, path: str) -> bytes:
    """The bytes of a regular file of at most MAX_FILE_BYTES. Raises GpuboxError, OSError."""
    # Checked before it is opened, because to open a pipe or a device may already have an effect.
    _require_regular(item, item.status, path)
    descriptor = os.open(item.name, OPEN_FILE, dir_fd=item.folder)
    with os.fdopen(descriptor, "rb") as file:
        _require_regular(item, os.fstat(descriptor), path)
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise GpuboxError(f"{printable_path(path)} is too large: more than {MAX_FILE_BYTES // 2**20} MiB.")
    return data


def decode_text(data: bytes) -> tuple[str, str]:
    """``(text, encoding)``, so that ``encode_text`` gives the same bytes. Bytes that are not UTF-8 are read as Latin-1.

    In a file that also has UTF-8 beyond ASCII, such bytes are lone surrogates.
    """
    text = data.decode("utf-8", errors="surrogateescape")
    strange = {character for character in text if character > "\x7f"}
    if strange and all("\udc80" <= character <= "\udcff" for character in strange):
        return data.decode("latin-1"), "latin-1"
    return text, "utf-8"


def encode_text(text: str, encoding: str, path: str) -> bytes:
    """Raises GpuboxError: the file cannot have this text."""
    try:
        data = text.encode(encoding, errors="surrogateescape")
    except UnicodeEncodeError as error:
        character = text[error.start]
        raise GpuboxError(f"{printable_path(path)} is in {encoding.title()}: it cannot have {character!a}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise GpuboxError(f"The file would be larger than {MAX_FILE_BYTES // 2**20} MiB.")
    return data


def printable_path(path: str) -> str:
    """A path for a message: one short line."""
    clean = "".join(char if char.isprintable() else "\ufffd" for char in path)
    return clean if len(clean) <= 200 else clean[:199] + "…"


def _require_regular(item: LayerItem, state: os.stat_result, path: str) -> None:
    if stat.S_ISREG(state.st_mode):
        return
    if stat.S_ISLNK(state.st_mode):
        raise _link_error(path, item)
    kind = "a folder" if stat.S_ISDIR(state.st_mode) else "a device, a pipe or a socket"
    raise GpuboxError(f"{printable_path(path)} is {kind}, not a file.")


def _link_error(path: str, item: LayerItem) -> GpuboxError:
    target = ""
    with contextlib.suppress(OSError):
        target = item.link_target()
    return GpuboxError(
        f"{printable_path(path)} is a link to {printable_path(target) or '?'}. "
        "Links are not followed: use the path that it points to."
    )


@contextlib.contextmanager
def _os_errors_explained(names: Names, folder: Folder) -> Iterator[None]:
    """Turns an OSError for ``names[-1]`` in the open folder ``folder`` into a GpuboxError."""
    try:
        yield
    except OSError as error:
        path = printable_path("/".join(names))
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            with contextlib.suppress(OSError):
                item = folder.find(names[-1])
                if item and item.is_link:
                    raise _link_error(path, item) from None
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
