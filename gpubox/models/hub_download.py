"""Downloads files of a repository into the Hugging Face cache: resumable, hash checked, one program at a time.

The layout is huggingface_hub's (and llama.cpp's): ``blobs/SHA256``, and a link to it in ``snapshots/REVISION/``. A part
is called ``blobs/SHA256.incomplete``, under the lock that huggingface_hub uses for the same file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.models import DownloadProgress
from gpubox.models.find import hub_cache
from gpubox.models.gguf import not_gguf
from gpubox.models.gguf_header import MAGIC
from gpubox.models.hub_client import HubBrokenConnection, HubClient, HubOfflineError, HubPartError
from gpubox.models.hub_search import HubFile, HubRepository, agreed_size, total_size
from gpubox.storage import free_bytes, held_lock, write_atomically

RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""The pauses after a connection broke or the hub was busy; any new byte starts them again."""
MAX_WAIT_SECONDS = 120.0
"""If the hub asks for a longer pause, the download ends and says so."""
_RATE_SECONDS = 8.0
_CHUNK = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class HubProgress:
    """How far a download is."""

    phase: Literal["check", "download"]
    """check: reads again what an interrupted download left."""
    done_bytes: int
    total_bytes: int | None
    """Of all files; None: the hub does not say."""
    bytes_per_second: float | None
    """Over the last seconds; None: not known yet."""
    waiting: str = ""
    """Why no byte comes now, and when the hub is asked again; empty: nothing has failed."""

    @property
    def seconds_left(self) -> float | None:
        """An estimate; None if there is none."""
        if not self.bytes_per_second or self.total_bytes is None:
            return None
        return max(0.0, (self.total_bytes - self.done_bytes) / self.bytes_per_second)


ProgressCallback = Callable[[HubProgress], None]
"""It may raise to cancel; what was downloaded stays and is resumed."""


T = TypeVar("T")


class Retries:
    """Asks the hub again what it did not answer: a bounded number of times without a new byte."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """``tell`` gets the sentence to show while it waits; it may raise to cancel."""
        self._tell = tell
        self._failures = 0

    def run(self, ask: Callable[[], T]) -> T:
        """What ``ask`` returns at last."""
        while True:
            try:
                return ask()
            except HubBrokenConnection as error:
                self.wait(error)

    def wait(self, error: HubBrokenConnection | HubOfflineError, *, progress: bool = False) -> None:
        """Waits before the next try. Raises ``error`` if it was the last one."""
        self._failures = 0 if progress else self._failures + 1
        asked = getattr(error, "wait_seconds", None) or 0.0
        if self._failures > len(RETRY_SECONDS) or asked > MAX_WAIT_SECONDS:
            raise error
        end = time.monotonic() + max(asked, RETRY_SECONDS[max(0, self._failures - 1)])
        while (left := end - time.monotonic()) > 0:
            self._tell(f"{error.message} gpubox asks again in {math.ceil(left)} s.")
            time.sleep(min(0.1, left))


class HubDownload:
    """The download of some files of one repository."""

    def __init__(self, repository: HubRepository, files: Sequence[HubFile]) -> None:
        self.repository, self.files = repository, tuple(files)
        self.cache = hub_cache()
        self.folder = self.cache / f"models--{repository.name.replace('/', '--')}"

    @property
    def total_bytes(self) -> int | None:
        """Of all files; None: unknown."""
        return total_size(self.files)

    @property
    def present_bytes(self) -> int:
        """What is on the disk already."""
        return sum(self._present(file) for file in self.files)

    @property
    def missing_bytes(self) -> int | None:
        """What is still to be downloaded."""
        return None if self.total_bytes is None else max(0, self.total_bytes - self.present_bytes)

    @property
    def free_bytes(self) -> int | None:
        """On the disk of the cache."""
        return free_bytes(self.cache)

    @property
    def fits(self) -> bool:
        """Whether the disk has space for what is missing, as far as is known."""
        missing, free = self.missing_bytes, self.free_bytes
        return missing is None or free is None or missing <= free

    @property
    def first_path(self) -> Path:
        """Where the first file is, once it is complete."""
        return self._pointer(self.files[0])

    @property
    def is_complete(self) -> bool:
        """Whether the content of all files is on the disk, perhaps from another revision."""
        blobs = self.folder / "blobs"
        return all(
            self._pointer(file).exists() or (file.sha256 and (blobs / file.sha256).exists()) for file in self.files
        )

    def check_space(self) -> None:
        """Raises GpuboxError if the cache cannot be written, or has too little space for what is missing."""
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GpuboxError(f"The Hugging Face cache {self.cache} cannot be written: {error.strerror}.") from None
        if not self.fits:
            needs, free = units.file_size(self.missing_bytes), units.file_size(self.free_bytes)
            raise GpuboxError(
                f"{self.repository.name} needs {needs}, and {free} are free in {self.cache}.",
                "Free some space, or set HF_HOME to a folder on a larger disk.",
            )

    def run(self, client: HubClient, on_progress: ProgressCallback) -> Path:
        """Downloads what is missing. Returns the first file. Raises GpuboxError, and what ``on_progress`` raises."""
        meter = _Meter(self.total_bytes, on_progress)
        if all(self._pointer(file).exists() for file in self.files):  # also in a cache that cannot be written
            meter.add_present(self.present_bytes)
            return self.first_path
        self.check_space()
        try:
            for file in self.files:
                self._fetch(client, file, meter)
            if self.repository.revision != "main":
                (self.folder / "refs").mkdir(exist_ok=True)
                write_atomically(self.folder / "refs" / "main", self.repository.revision.encode())
        except OSError as error:
            raise _disk_error(self.cache, error) from None
        return self.first_path

    def _fetch(self, client: HubClient, file: HubFile, meter: _Meter) -> None:
        if self._pointer(file).exists():
            meter.add_present(self._present(file))
            return
        locks = self.cache / ".locks" / self.folder.name
        locks.mkdir(parents=True, exist_ok=True)  # other programs share the cache
        lock, busy = locks / f"{self._key(file)}.lock", f"Another program is downloading {file.name} now."
        with held_lock(lock, busy, "Wait until it has finished.", attempts=1):
            blob = self.folder / "blobs" / file.sha256
            if file.sha256 and blob.exists():
                meter.add_present(self._present(file))
            else:
                blob = self._fetch_blob(client, file, meter)
            _link(blob, self._pointer(file))

    def _fetch_blob(self, client: HubClient, file: HubFile, meter: _Meter) -> Path:
        """Downloads the content of a file, checks it, and gives it its final name."""
        size = _length(client, self.repository, file) if file.size_bytes is None else file.size_bytes
        part = self.folder / "blobs" / f"{self._key(file)}.incomplete"
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab+") as out:
            if out.tell() > size:
                out.truncate(0)
            digest = hashlib.sha256()
            out.seek(0)
            for chunk in iter(lambda: out.read(_CHUNK), b""):
                digest.update(chunk)
                meter.add("check", len(chunk))
            retries = Retries(meter.wait)
            known = bool(file.sha256) and out.tell() >= len(MAGIC)  # the checksum will tell
            while (before := out.seek(0, os.SEEK_END)) < size:
                try:
                    with client.file_part(self.repository.name, self.repository.revision, file.name, before, size) as (
                        chunks,
                        length,
                    ):
                        agreed_size(file.name, size, length)
                        for chunk in chunks:
                            out.write(chunk)
                            digest.update(chunk)
                            meter.add("download", len(chunk))
                            if not known and out.tell() >= len(MAGIC):
                                known = _check_magic(file, out)
                    if out.tell() < size:
                        raise HubBrokenConnection(
                            f"Hugging Face stopped sending {file.name} before its end.", "Try again."
                        )
                except HubPartError as error:
                    if error.length != size or not before:  # not this file: a login page of the network answers
                        raise
                    meter.add("download", -before)  # it sends only whole files
                    out.truncate(0)
                    digest = hashlib.sha256()
                except (HubBrokenConnection, HubOfflineError) as error:
                    retries.wait(error, progress=out.tell() > before)
            out.flush()
            os.fsync(out.fileno())
        if file.sha256 and digest.hexdigest() != file.sha256:
            part.unlink()
            raise GpuboxError(
                f"{file.name} is damaged: its checksum is not the one that Hugging Face states.",
                "What was downloaded of it is deleted. Try again.",
            )
        return part.replace(part.with_name(digest.hexdigest()))

    def _present(self, file: HubFile) -> int:
        """What is on the disk of a file, complete or not."""
        blobs = self.folder / "blobs"
        for path in (self._pointer(file), blobs / (file.sha256 or "none"), blobs / f"{self._key(file)}.incomplete"):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def _pointer(self, file: HubFile) -> Path:
        return self.folder / "snapshots" / self.repository.revision / file.name

    def _key(self, file: HubFile) -> str:
        """Names the part and the lock: the checksum, or a name of its own if the hub states none."""
        return file.sha256 or hashlib.sha256(f"{self.repository.revision}/{file.name}".encode()).hexdigest()


def download_file(repo: str, name: str, on_progress: DownloadProgress, *, revision: str, folder: Path) -> Path:
    """Downloads one file of a repository into ``folder``. Raises GpuboxError, and OSError if it cannot be stored."""
    path = folder / Path(name).name

    def fetch() -> None:
        with path.open("ab") as file, client.file_part(repo, revision, name, file.tell()) as (chunks, length):
            for chunk in chunks:
                file.write(chunk)
                on_progress(file.tell(), length, "")

    with HubClient() as client:
        Retries(partial(on_progress, 0, None)).run(fetch)
    return path


class _Meter:
    """Adds up the bytes of a download, and reports them with their rate."""

    def __init__(self, total: int | None, report: ProgressCallback) -> None:
        self._total, self._report = total, report
        self._done = 0
        self._samples: deque[tuple[float, int]] = deque()
        """Time and bytes downloaded by then."""
        self._downloaded = 0

    def add_present(self, size: int) -> None:
        self._done += size
        self._emit("download")

    def add(self, phase: Literal["check", "download"], size: int) -> None:
        self._done += size
        if phase == "download":
            self._downloaded += size
            now = time.monotonic()
            self._samples.append((now, self._downloaded))
            while len(self._samples) > 2 and self._samples[0][0] < now - _RATE_SECONDS:
                self._samples.popleft()
        self._emit(phase)

    def wait(self, sentence: str) -> None:
        """Reports that no byte comes."""
        self._samples.clear()
        self._emit("download", sentence)

    def _emit(self, phase: Literal["check", "download"], waiting: str = "") -> None:
        rate = None
        if len(self._samples) > 1:
            (begin, first), (end, last) = self._samples[0], self._samples[-1]
            rate = (last - first) / (end - begin) if end > begin else None
        self._report(HubProgress(phase, self._done, self._total, rate, waiting))


def _length(client: HubClient, repository: HubRepository, file: HubFile) -> int:
    """The length of a file for which the list of files states none."""
    with client.file_part(repository.name, repository.revision, file.name, 0, 1) as (_, length):
        return agreed_size(file.name, None, length)


def _check_magic(file: HubFile, part: BinaryIO) -> bool:
    """Raises GpuboxError, and empties the part, if it does not begin as a GGUF."""
    part.flush()
    if not (start := os.pread(part.fileno(), 64, 0)).startswith(MAGIC):
        part.truncate(0)
        raise not_gguf(Path(file.name), start)
    return True


def _link(blob: Path, pointer: Path) -> None:
    """Makes the link that huggingface_hub makes; on a disk without links the file itself moves there."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    temporary = pointer.with_name(f"{pointer.name}.{os.urandom(4).hex()}.tmp")
    try:
        temporary.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        blob.replace(pointer)
        return
    temporary.replace(pointer)


def _disk_error(cache: Path, error: OSError) -> GpuboxError:
    if error.errno in _FULL:
        return GpuboxError(f"The disk of {cache} is full.", "Free some space; the download resumes.")
    return GpuboxError(f"The download cannot be stored in {cache}: {error.strerror or error}.")
