"""A file of JSON lines that only grows: a line is on disk when ``append`` returns, or it is not there at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpubox.errors import GpuboxError
from gpubox.storage import open_regular

T = TypeVar("T")


class JsonLinesFile:
    """Appends to one file. A last line that a crash cut off is dropped when it is opened. Raises GpuboxError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._end = _whole(path)
            os.ftruncate(self._descriptor, self._end)
        except OSError as error:
            raise write_error(path, error) from None

    def append(self, value: Any) -> None:
        """Adds one line and waits until the disk has it. Raises GpuboxError; the file is then as it was."""
        data = msgspec.json.encode(value) + b"\n"
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self._end + done)
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise write_error(self.path, error) from None
        self._end += len(data)

    def close(self) -> None:
        """Everything is on disk already."""
        os.close(self._descriptor)


def read_json_lines(path: Path, kind: type[T]) -> list[T]:
    """Every whole line that is a ``kind``; what is damaged or cut off is left out. Raises GpuboxError."""
    try:
        with open_regular(path) as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise GpuboxError(f"{path} cannot be read: {error.strerror}.") from None
    decoder = msgspec.json.Decoder(kind)
    found = []
    for line in lines[:-1]:  # what stands after the last newline was cut off
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.append(decoder.decode(line))
    return found


def write_error(path: Path, error: OSError) -> GpuboxError:
    """The error for a disk that refuses, in the owner's words."""
    return GpuboxError(
        f"{path} cannot be written: {error.strerror}.",
        "What was measured is kept; free some disk space, then `gpubox bench resume`.",
    )


def _whole(path: Path) -> int:
    """Bytes up to the end of the last whole line."""
    with path.open("rb") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - 65536)
            file.seek(begin)
            place = file.read(end - begin).rfind(b"\n")
            if place >= 0:
                return begin + place + 1
            end = begin
        return 0 if size else size
