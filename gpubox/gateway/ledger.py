"""The ledger of the gateway: a file of lines for each day, one line for each finished request, and its sums.

The lines are the truth: sums are read from them, and later only from the lines that are new. A line counts when its
line end is on disk, so a line that a full disk or a power cut tore never counts and never runs into the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict
from datetime import date, datetime, timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gpubox.gateway.gateway_status import ClientSums, FinishedRequest
from gpubox.storage import decode_lines, json_line, open_private, open_regular, private_folder

KEPT_DAYS = 90
MAX_CLIENTS = 256
"""Clients without a key choose their own names: those after so many a day are counted as OTHERS."""
OTHERS = "(others)"
_MAX_UNWRITTEN = 10_000
"""Requests that a full disk did not take are kept in memory, at most so many, and written when it takes them."""
_AT_ONCE = 200
"""Lines written in one call: the gateway's loop waits for it."""
_MAX_REFUSED_BYTES = 64 * 1024 * 1024
"""Whoever sends nonsense all day must not fill the disk: above this size a day's file takes no refused requests."""
_PART_BYTES = 1024 * 1024
_MAX_DAMAGED = 10_000
"""A file with so many lines that cannot be read is none of gpubox's: the rest is not read."""
_TORN = b" torn\n"
"""Ends a line that has no end, and makes sure that it never counts."""
_NAME = re.compile(r"\d{4}-\d\d-\d\d")
_SUMMED = tuple(name for name in FinishedRequest.__dataclass_fields__ if name in ClientSums.__dataclass_fields__)
"""Tokens, and the parts of the time."""
_REQUESTS = msgspec.json.Decoder(FinishedRequest)


class _Tally:
    """The running sums of one client."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = asdict(ClientSums())
        self._ttft: Counter[float] = Counter()
        self._tg: Counter[float] = Counter()

    def add(self, line: FinishedRequest) -> None:
        sums = self._sums
        sums["requests"] += 1
        sums["errors"] += line.outcome in ("failed", "refused")
        sums["left"] += line.outcome == "left"
        for name in _SUMMED:
            sums[name] += getattr(line, name) or 0
        sums["wait_seconds_max"] = max(sums["wait_seconds_max"], line.queue_seconds + line.swap_seconds)
        sums["last_at"] = max(sums["last_at"], line.at)
        for counter, value in ((self._ttft, line.ttft_seconds), (self._tg, line.tg_tokens_per_second)):
            if value is not None:
                counter[float(f"{value:.3g}")] += 1  # so it is small, however many requests a day has

    @property
    def sums(self) -> ClientSums:
        sums = self._sums | {name: round(self._sums[name], 3) for name in _SUMMED}
        medians = {"ttft_seconds_median": _median(self._ttft), "tg_tokens_per_second_median": _median(self._tg)}
        return ClientSums(**sums | medians)


class _Tallies(dict[str, _Tally]):
    """The running sums of all clients."""

    def add(self, line: FinishedRequest) -> None:
        name = line.client if line.client in self or len(self) < MAX_CLIENTS else OTHERS
        if name not in self:
            self[name] = _Tally()
        self[name].add(line)


def _median(counts: Counter[float]) -> float | None:
    """To three digits."""
    values, size = sorted(counts), counts.total()
    ends = list(accumulate(counts[value] for value in values))
    middle = [values[bisect_right(ends, at)] for at in ((size - 1) // 2, size // 2) if values]
    return sum(middle) / 2 if middle else None


class _DayFile:
    """One day's file, read as far as its last whole line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = self._offset = 0
        self.tallies = _Tallies()

    def read_new(self) -> None:
        """Adds the lines that are new. A file that cannot be read counts as empty."""
        with contextlib.suppress(OSError), open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:  # another file, or cut
                self._inode, self._offset, self.tallies = status.st_ino, 0, _Tallies()
            file.seek(self._offset)
            for request in _requests(file):
                self.tallies.add(request)
            self._offset = file.tell()
            return
        if not self.path.exists():
            self._inode, self.tallies = 0, _Tallies()


def _requests(file: BinaryIO) -> Iterator[FinishedRequest]:
    """From where the file stands to its last whole line, where it stands then. What cannot be read is left out."""
    return decode_lines(_whole_lines(file), _REQUESTS.decode, _MAX_DAMAGED)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Of a line that is longer than any, parts."""
    for line in iter(partial(file.readline, _PART_BYTES), b""):
        if len(line) < _PART_BYTES and not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line


class Ledger:
    """Appends finished requests, and sums them. One thread of one process appends; any other may read beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._day = _DayFile(self.path(date.today()))
        self._unwritten: list[FinishedRequest] = []
        self._file: BinaryIO | None = None
        """That of the last line; it stays open."""
        self._inode = 0
        self._pruned: date | None = None
        self.problem = ""
        """Why the last line could not be written, in one sentence; empty if it was."""

    def add(self, request: FinishedRequest) -> None:
        """Appends the request to the file of the local day on which it ended. Raises nothing: see ``problem``."""
        if len(self._unwritten) < _MAX_UNWRITTEN:
            self._unwritten.append(request)
        self._write()

    def sums(self, day: date) -> dict[str, ClientSums]:
        """The sums of each client on a local day.

        The first call reads the whole file (1.3 s for 100 MB: make it in a thread before it matters), later ones only
        what is new.
        """
        return {name: tally.sums for name, tally in self._read(day).items()}

    def spent_tokens(self, client: str) -> int:
        """What a client's requests have cost today: see ``ClientSums.spent_tokens``."""
        tally = self._read(date.today()).get(client)
        return tally.sums.spent_tokens if tally else 0

    def sums_of(self, days: list[date]) -> dict[str, ClientSums]:
        """The sums of each client over several days."""
        together = _Tallies()
        for day in days:
            for request in self.requests(day):
                together.add(request)
        return {name: tally.sums for name, tally in together.items()}

    def requests(self, day: date, last_bytes: int | None = None) -> Iterator[FinishedRequest]:
        """The requests of a local day, the oldest first. Lines that cannot be read are left out.

        ``last_bytes``: of a longer file, those in so many bytes at its end.
        """
        with contextlib.suppress(OSError), open_regular(self.path(day)) as file:
            if last_bytes is not None and os.fstat(file.fileno()).st_size > last_bytes:
                file.seek(-last_bytes, os.SEEK_END)
                file.readline()  # the rest of a line
            yield from _requests(file)

    def path(self, day: date) -> Path:
        return self._folder / f"{day.isoformat()}.jsonl"

    def _read(self, day: date) -> _Tallies:
        if self._day.path != self.path(day):
            self._day = _DayFile(self.path(day))
        self._day.read_new()
        waiting = [request for request in self._unwritten if local_day(request.at) == day]
        if not waiting:
            return self._day.tallies
        tallies = deepcopy(self._day.tallies)
        for request in waiting:
            tallies.add(request)
        return tallies

    def _write(self) -> None:
        """Writes what is unwritten, in order, as far as the disk takes it."""
        self.problem = ""
        for _ in range(min(len(self._unwritten), _AT_ONCE)):
            day = local_day(self._unwritten[0].at)
            if day != self._pruned:
                self._prune(day)
            try:
                self._append(self.path(day), self._unwritten[0])
            except OSError as error:
                self.problem = f"The ledger cannot be written: {error.strerror}."
                return
            del self._unwritten[0]

    def _append(self, path: Path, request: FinishedRequest) -> None:
        """Appends one line with one write. Raises OSError, and then the file is as it was, or has a torn last line."""
        status = None
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
        if self._file is None or status is None or status.st_ino != self._inode:  # another day, or another file
            descriptor = open_private(private_folder(path.parent) / path.name, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK)
            self._file, status = os.fdopen(descriptor, "ab", buffering=0), os.fstat(descriptor)
            self._inode = status.st_ino
        size = status.st_size
        if request.outcome == "refused" and size > _MAX_REFUSED_BYTES:
            return
        is_torn = size and os.pread(self._file.fileno(), 1, size - 1) != b"\n"
        data = (_TORN if is_torn else b"") + json_line(request) + b"\n"
        if self._file.write(data) < len(data):
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            raise OSError(28, "No space left on device")

    def _prune(self, today: date) -> None:
        """Deletes the files of more than KEPT_DAYS days ago."""
        self._pruned = today
        oldest = (today - timedelta(days=KEPT_DAYS - 1)).isoformat()
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.jsonl"):
                if _NAME.fullmatch(path.stem) and path.stem < oldest:
                    path.unlink()


def local_day(at: str) -> date:
    """The local day of a time in ISO-8601."""
    return datetime.fromisoformat(at).astimezone().date()
