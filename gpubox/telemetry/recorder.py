"""Recordings: Snapshots as JSON lines, written as they come and read back as the same values.

The same lines serve bug reports, tests, pictures and the viewers of another machine. The home folder is written as
``~``. To keep them small, a line has only the requests that are new since the line before, and says how many of that
line's stay (``requests_kept``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from gpubox import units
from gpubox.errors import GpuboxError, UsageError
from gpubox.sanitize import sanitize_line
from gpubox.storage import DECODE_ERRORS, json_line, open_regular
from gpubox.telemetry.requests import MAX_REQUESTS
from gpubox.telemetry.snapshot import Request, Snapshot

HEADER = "gpubox-recording"
VERSION = 1
LINE_BYTES = 4 * units.MIB
_HUGE_NUMBER = re.compile(rb'":-?\d{19}')


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int
    gpubox: str


class _RequestsKept(msgspec.Struct, frozen=True):
    requests_kept: int = 0


def header_line(version: str) -> bytes:
    """The first line of a recording of this gpubox, whose version it is."""
    return msgspec.json.encode(_Header(HEADER, VERSION, version)) + b"\n"


def snapshot_line(snapshot: Snapshot, before: tuple[Request, ...]) -> bytes:
    """One Snapshot as a line, for a reader that has the requests ``before``."""
    kept = _requests_kept(before, snapshot.requests)
    data = json_line(replace(snapshot, requests=snapshot.requests[: len(snapshot.requests) - kept]))
    return without_home(data[:-1] + f',"requests_kept":{kept}}}\n'.encode())


def without_home(data: bytes) -> bytes:
    """The home folder as ``~``."""
    home = re.escape(str(Path.home()).rstrip("/").encode(errors="replace"))
    return re.sub(home + rb"(?![\w.-])", b"~", data) if home else data


class Recorder:
    """Appends Snapshots to one file, unbuffered, a whole line each.

    A full disk does not end the recording: lines that do not fit are dropped until there is space again.
    """

    def __init__(self, path: Path, version: str) -> None:
        """Raises GpuboxError if the file cannot be made."""
        self.path = path
        self.problem = ""
        """Why nothing can be written now; empty if all is well."""
        self.last_problem = ""
        self.count = 0
        self.lost = 0
        """Snapshots that could not be written."""
        self._size = 0
        self._requests: tuple[Request, ...] = ()
        """Of the last line that is in the file."""
        self._pending = header_line(version)
        """Text that must precede the next line."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
        except FileExistsError as error:
            if not path.parent.is_dir():
                raise GpuboxError(f"{path} cannot be written: {path.parent} is not a folder.") from error
            raise UsageError(f"{path} exists already.", "Name another file.") from None
        except OSError as error:
            raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None
        self._append(b"")

    def write(self, snapshot: Snapshot) -> None:
        """Adds one Snapshot. Never raises; see ``problem``."""
        self._append(snapshot_line(snapshot, self._requests))
        if not self.problem:
            self._requests = snapshot.requests
        self.count += not self.problem
        self.lost += bool(self.problem)

    def close(self) -> None:
        """Ends the recording."""
        try:
            self._file.close()
        except OSError as error:
            self.problem = self.problem or f"{self.path}: {error.strerror}"

    def _append(self, data: bytes) -> None:
        data = self._pending + data
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]  # a disk that is nearly full takes only a part
        except OSError as error:
            self.problem = self.last_problem = f"{self.path}: {error.strerror}"
            with contextlib.suppress(OSError):  # remove the incomplete line
                self._file.truncate(self._size)
                self._file.seek(self._size)
            return
        self._size += len(data)
        self._pending, self.problem = b"", ""


def _requests_kept(before: tuple[Request, ...], now: tuple[Request, ...]) -> int:
    """How many of the newest of ``before`` are the oldest of ``now``."""
    index = now.index(before[0]) if before and before[0] in now else len(now)
    count = len(now) - index
    return count if now[index:] == before[:count] else 0


def read_recording(path: Path) -> Iterator[Snapshot]:
    """Every Snapshot of a recording, in order, as they are read. A last line that a crash cut off is left out.

    Raises UsageError if the file is no recording, has another version, or, once it comes there, if a line is damaged.
    """
    try:
        with open_regular(path) as file:
            yield from _snapshots(path, iter(partial(file.readline, LINE_BYTES), b""))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def _snapshots(path: Path, lines: Iterator[bytes]) -> Iterator[Snapshot]:
    try:
        reader = SnapshotReader(next(lines, b""))
    except DECODE_ERRORS:
        raise UsageError(f"{path} is not a gpubox recording.", "`gpubox status --record FILE` makes one.") from None
    if reader.other_version:
        raise UsageError(f"{path} was recorded by another version of gpubox ({reader.other_version}).")
    for number, line in enumerate(lines, start=2):
        try:
            snapshot = reader.read(line)
        except (OverflowError, *DECODE_ERRORS) as error:
            if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                return
            raise UsageError(f"{path}, line {number} is damaged: {error}.") from None
        yield snapshot


class SnapshotReader:
    """Lines of a recording -> Snapshots, each with all its requests."""

    def __init__(self, header: bytes) -> None:
        """Raises one of DECODE_ERRORS for what is no header."""
        head = msgspec.json.decode(header, type=_Header)
        is_known = head.format == HEADER and head.version == VERSION
        self.other_version = "" if is_known else sanitize_line(head.gpubox)[:40]
        """The version of gpubox that wrote it, if this one cannot read it."""
        self._decode = msgspec.json.Decoder(Snapshot).decode
        self._decode_kept = msgspec.json.Decoder(_RequestsKept).decode
        self._requests: tuple[Request, ...] = ()

    def read(self, line: bytes) -> Snapshot:
        """Raises OverflowError or one of DECODE_ERRORS."""
        if _HUGE_NUMBER.search(line):
            raise ValueError("a number is too large")
        snapshot = self._decode(line)
        datetime.fromisoformat(snapshot.time).astimezone()
        kept = self._requests[: self._decode_kept(line).requests_kept]
        self._requests = (*snapshot.requests, *kept)[:MAX_REQUESTS]
        return replace(snapshot, requests=self._requests)
