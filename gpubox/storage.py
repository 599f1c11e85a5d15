"""Reading a file that somebody else put there: a FIFO, a device or a file without end never holds gpubox up."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotRegularFile(OSError):
    """The path names something else than a file, or a file that is too large. ``strerror`` says which."""


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """The file opened for reading; ``path`` may lead over links.

    Raises NotRegular for a FIFO, socket, device or folder, and for a file over ``limit`` bytes; else OSError.
    """
    _refuse_other(path, path.stat().st_mode)  # before it is opened: that alone starts a watchdog, rewinds a tape
    # A FIFO without a writer would wait for one; O_NONBLOCK changes nothing for a file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        _refuse_other(path, found.st_mode)
        if limit is not None and found.st_size > limit:
            raise NotRegularFile(
                errno.EFBIG, f"it is {found.st_size / 1e6:.1f} MB, more than {limit / 1e6:.1f} MB", str(path)
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int) -> bytes:
    """The whole file. Raises NotRegular for no file or one over ``limit`` bytes, else OSError."""
    with open_regular(path, limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:  # it grows, or its size is not told (/proc)
        raise NotRegularFile(errno.EFBIG, f"it is more than {limit / 1e6:.1f} MB", str(path))
    return data


def read_text(path: Path, limit: int, encoding: str = "utf-8") -> str:
    """As ``read_bytes``, as text with line ends as they are. Raises UnicodeDecodeError too."""
    return read_bytes(path, limit).decode(encoding)


def _refuse_other(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "something else")
    raise NotRegularFile(errno.EINVAL, f"it is {kind}, not a file", str(path))
