"""Recordings: Snapshots as JSON lines, written as they come and read back as the same values.

The same file serves bug reports, tests and pictures. The home folder is written as ``~``. A line holds the requests
that came since the line before and says how many of that line's stay (``requests_kept``): all of them in every line
would be gigabytes in an afternoon.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from gpubox.errors import GpuboxError, UsageError
from gpubox.telemetry.snapshot import Request, Snapshot

HEADER = "gpubox-recording"
VERSION = 1


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int
    gpubox: str


class _Kept(msgspec.Struct, frozen=True):
    requests_kept: int = 0


class Recorder:
    """Appends Snapshots to one file, a whole line each, unbuffered.

    A disk that fills up ends nothing: what does not fit is left out, and it goes on when there is space again.
    """

    def __init__(self, path: Path, version: str) -> None:
        """Raises GpuboxError when the file cannot be made."""
        self.path = path
        self.problem = ""
        """Why nothing can be written now; empty while all is well."""
        self.why_lost = ""
        """The last ``problem`` there was."""
        self.count = 0
        self.lost = 0
        """Snapshots that could not be written."""
        self._size = 0
        self._requests: tuple[Request, ...] = ()
        """Those of the last line that is in the file."""
        self._ahead = msgspec.json.encode(_Header(HEADER, VERSION, version)) + b"\n"
        """What has to come before the next line."""
        home = re.escape(str(Path.home()).rstrip("/").encode(errors="replace"))
        self._home = re.compile(home + rb"(?![\w.-])") if home else None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
        except FileExistsError as error:
            if not path.parent.is_dir():
                raise GpuboxError(f"{path} cannot be written: {path.parent} is no folder.") from error
            raise UsageError(f"{path} exists already.", "Name another file.") from None
        except OSError as error:
            raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None
        self._append(b"")

    def write(self, snapshot: Snapshot) -> None:
        """Adds one Snapshot. Never raises; see ``problem``."""
        kept = _kept(self._requests, snapshot.requests)
        line = replace(snapshot, requests=snapshot.requests[: len(snapshot.requests) - kept])
        try:
            data = msgspec.json.encode(line)
        except UnicodeEncodeError:  # a name that is no UTF-8: a path, a process
            data = json.dumps(_readable(msgspec.to_builtins(line))).encode()
        data = self._home.sub(b"~", data) if self._home else data
        self._append(data[:-1] + f',"requests_kept":{kept}}}\n'.encode())
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

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        data = self._ahead + data
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]  # on a disk that is nearly full it takes a part
        except OSError as error:
            self.problem = self.why_lost = f"{self.path}: {error.strerror}"
            with contextlib.suppress(OSError):  # half a line would be damage
                self._file.truncate(self._size)
                self._file.seek(self._size)
            return
        self._size += len(data)
        self._ahead, self.problem = b"", ""


def _kept(before: tuple[Request, ...], now: tuple[Request, ...]) -> int:
    """How many of the newest of ``before`` are the oldest of ``now``."""
    at = now.index(before[0]) if before and before[0] in now else len(now)
    count = len(now) - at
    return count if now[at:] == before[:count] else 0


def _readable(value: Any) -> Any:
    """The same with a question mark for every character that no file can hold."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list | tuple) else value


def read_recording(path: Path) -> list[Snapshot]:
    """Every Snapshot of a recording, in order. A last line that was cut off (a crash) is left out.

    Raises UsageError where the file is no recording, or one of another version.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        header = msgspec.json.decode(lines[0], type=_Header)
    except (IndexError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UsageError(f"{path} is not a gpubox recording.", "`gpubox record FILE` makes one.") from None
    if header.format != HEADER or header.version != VERSION:
        raise UsageError(f"{path} is a recording of another gpubox ({header.gpubox}).")
    decoder = msgspec.json.Decoder(Snapshot)
    kept = msgspec.json.Decoder(_Kept)
    found: list[Snapshot] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            snapshot = decoder.decode(line)
            before = found[-1].requests[: kept.decode(line).requests_kept] if found else ()
            found.append(replace(snapshot, requests=(*snapshot.requests, *before)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if number == len(lines):
                break
            raise UsageError(f"{path}, line {number} is damaged: {error}.") from None
    return found
