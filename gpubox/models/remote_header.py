"""Reads the header of a model on Hugging Face without downloading it: a few parts of each file, 16 MB at most."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.models.gguf_header import MAGIC, GgufHeader, MalformedError, NeedMoreError, parse_header
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_search import HubFile, HubQuant, HubRepository, agreed_size
from gpubox.paths import Paths
from gpubox.storage import make_folder

MAX_HEADER_BYTES = 16_000_000
"""Of all shards of one model together. The largest header known (a vocabulary of 262k) takes 11 MB."""
_FIRST_WINDOWS = (512_000, 3_000_000, 6_000_000, 9_000_000, 12_000_000, MAX_HEADER_BYTES)
"""Of the first file, which holds the vocabulary."""
_SHARD_WINDOWS = (32_000, 256_000, 1_000_000, 4_000_000)
"""Of the others, which hold only their part of the tensor table."""
_FIRST_PART = 64_000
"""Holds what is in front of the vocabulary."""
_SAMPLE, _SLACK, _PADDING = 256, 16_000, 4096
_CACHE_BYTES = 400_000_000
_PROBE_BYTES = 1 << 20
_SECONDS = 60.0
"""For one part of a header."""


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The first bytes of a model with its header, whose vocabulary other quants of the model share."""

    data: bytes
    header: GgufHeader


def fetch_header_file(
    client: HubClient, repository: HubRepository, quant: HubQuant, paths: Paths, sibling: Path | None = None
) -> Path:
    """A stand-in for a model on the hub, with all its shards: its real header, and a hole as long as the rest.

    Everything that needs only the header can use it: ``check_gguf``, the planner, and an engine's dry run. It takes the
    few megabytes of the header on the disk, is kept in gpubox's cache, and is no folder that models are searched in.
    ``sibling``: the stand-in of another quant of the model. Its vocabulary, most of a header, is not fetched again.
    Raises GpuboxError if the hub does not serve the header, or if it is no GGUF, damaged, or contradicts its name or
    size.
    """
    folder = paths.headers / "hub" / _content_key(repository, quant)
    first = folder / Path(quant.files[0].name).name
    if _is_whole(folder, quant):
        with contextlib.suppress(OSError):
            os.utime(folder)  # the oldest are removed first
        return first
    heads = read_heads(client, repository, quant, _known_head(sibling) if sibling else None)
    try:
        make_folder(folder.parent)
        _prune(folder.parent)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="new-", ignore_cleanup_errors=True) as name:
            made = Path(name) / "files"
            made.mkdir()
            for file, (head, size) in zip(quant.files, heads, strict=True):
                _write_sparse(made / Path(file.name).name, head, size)
            shutil.rmtree(folder, ignore_errors=True)  # what a killed gpubox left of it
            try:
                made.rename(folder)
            except OSError:
                if not _is_whole(folder, quant):  # another gpubox was not faster
                    raise
    except OSError as error:
        raise GpuboxError(f"A header cannot be stored in {folder.parent}: {error.strerror or error}.") from None
    return first


def read_heads(
    client: HubClient, repository: HubRepository, quant: HubQuant, known: KnownHead | None = None
) -> list[tuple[bytes, int]]:
    """The first bytes of each shard, with its whole header, and its length. Raises GpuboxError."""
    budget = MAX_HEADER_BYTES
    headers: list[GgufHeader] = []
    heads = []
    for number, file in enumerate(quant.files):
        rest = _SHARD_WINDOWS[0] * (len(quant.files) - number - 1)  # kept for the other shards
        windows = _FIRST_WINDOWS if number == 0 else _SHARD_WINDOWS
        spliced = _splice(client, repository, file, known) if known and number == 0 else None
        header, data, size = spliced or _read_header(client, repository, file, windows, budget - rest)
        headers.append(header)
        heads.append((data[: header.end], size))
        budget -= len(data)
    _check_shards(repository, quant, headers)
    return heads


def _content_key(repository: HubRepository, quant: HubQuant) -> str:
    """What changes when the content of a quant does: its checksums, else its commit."""
    parts = [file.sha256 or f"{repository.name} {repository.revision} {file.name}" for file in quant.files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _is_whole(folder: Path, quant: HubQuant) -> bool:
    """Whether all shards are in the folder, as long as the hub states."""
    try:
        sizes = [(folder / Path(file.name).name).stat().st_size for file in quant.files]
    except OSError:
        return False
    return all(file.size_bytes in (None, size) for file, size in zip(quant.files, sizes, strict=True))


def _write_sparse(path: Path, head: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(_PROBE_BYTES)
        if os.fstat(file.fileno()).st_blocks * 512 >= _PROBE_BYTES:
            raise OSError(errno.EOPNOTSUPP, "the disk has no sparse files")
        file.truncate(size)
        file.write(head)
    os.utime(path, (0, 0))  # a header that is fetched again is the same file to the planner's measurements


def _prune(folder: Path) -> None:
    """Removes the headers that were not used for the longest time, until the others leave space."""
    entries = sorted((entry for entry in folder.iterdir() if entry.is_dir()), key=lambda entry: entry.stat().st_mtime)
    sizes = {entry: sum(file.stat().st_blocks * 512 for file in entry.rglob("*")) for entry in entries}
    excess = sum(sizes.values()) - _CACHE_BYTES
    for entry in entries:
        if excess <= 0:
            return
        shutil.rmtree(entry, ignore_errors=True)
        excess -= sizes[entry]


def _known_head(path: Path) -> KnownHead | None:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(min(size, MAX_HEADER_BYTES))
        header = parse_header(data, size)
    except (OSError, MalformedError, NeedMoreError):
        return None
    return KnownHead(data[: header.end], header)


def _splice(
    client: HubClient, repository: HubRepository, file: HubFile, known: KnownHead
) -> tuple[GgufHeader, bytes, int] | None:
    """The header with the vocabulary of ``known``; None if that is not certainly the same.

    It is taken only if it begins and ends with the same bytes at the expected distance, and if the tensor table behind
    it ends exactly where the file does.
    """
    begin, end = known.header.vocabulary
    size = file.size_bytes
    if size is None or end - begin < 2 * _FIRST_PART:
        return None
    first = _fetch(client, repository, file, 0, min(_FIRST_PART, size))
    place = first.find(known.data[begin : begin + _SAMPLE])
    table_at = place + (end - begin)
    if place < 0 or not first.startswith(MAGIC) or table_at >= size:
        return None
    rest = _fetch(client, repository, file, table_at - _SAMPLE, min(table_at + len(known.data) - end + _SLACK, size))
    if rest[:_SAMPLE] != known.data[end - _SAMPLE : end]:
        return None
    data = first[:place] + known.data[begin:end] + rest[_SAMPLE:]
    try:
        header = parse_header(data, size)
    except (MalformedError, NeedMoreError):
        return None
    return (header, data, size) if 0 <= size - header.required_bytes < _PADDING else None


def _fetch(client: HubClient, repository: HubRepository, file: HubFile, start: int, end: int) -> bytes:
    with client.file_part(repository.name, repository.revision, file.name, start, end, seconds=_SECONDS) as (
        chunks,
        length,
    ):
        agreed_size(f"{repository.name}/{file.name}", file.size_bytes, length)
        return b"".join(chunks)


def _read_header(
    client: HubClient, repository: HubRepository, file: HubFile, windows: Sequence[int], budget: int
) -> tuple[GgufHeader, bytes, int]:
    """The header of one file, the bytes that were fetched for it, and the length of the file."""
    subject = f"{repository.name}/{file.name}"
    size, data = file.size_bytes, bytearray()
    if size == 0:
        raise GpuboxError(f"{subject} is empty.")
    for window in (*windows, budget):
        end = min(window, budget, budget if size is None else size)
        if end <= len(data):
            continue
        start = len(data)
        with client.file_part(repository.name, repository.revision, file.name, start, end, seconds=_SECONDS) as (
            chunks,
            length,
        ):
            size = agreed_size(subject, size, length)
            for chunk in chunks:
                data += chunk
        if len(data) < min(end, size):
            raise GpuboxError(f"Hugging Face stopped sending {subject} before its end.", "Try again.")
        if not data.startswith(MAGIC):
            raise GpuboxError(f"{subject} is not a GGUF: it begins with the bytes {bytes(data[:4]).hex(' ')}.")
        try:
            header = parse_header(bytes(data), size)
        except NeedMoreError:
            continue
        except MalformedError as error:
            raise GpuboxError(f"{subject} is a damaged GGUF: {error}.") from None
        if header.required_bytes > size:
            raise GpuboxError(
                f"{subject} is incomplete on Hugging Face: it has {units.file_size(size)} of "
                f"{units.file_size(header.required_bytes)}."
            )
        return header, bytes(data), size
    if size is not None and len(data) >= size:
        raise GpuboxError(f"{subject} is a damaged GGUF: it ends inside its header.")
    raise GpuboxError(f"The header of {subject} is longer than {units.file_size(MAX_HEADER_BYTES)}.")


def _check_shards(repository: HubRepository, quant: HubQuant, headers: Sequence[GgufHeader]) -> None:
    """Raises GpuboxError if the shards do not form one model: another count, the same shard twice, a circle."""
    subject = f"{repository.name}/{quant.files[0].name}"
    for number, header in enumerate(headers):
        count, place = header.metadata.get("split.count", len(headers)), header.metadata.get("split.no", number)
        if (count or 1) != len(headers) or place != number:
            raise GpuboxError(
                f"The shards of {subject} contradict their names: shard {number + 1} of {len(headers)} "
                f"calls itself {place + 1 if isinstance(place, int) else place} of {count}."
            )
    names = Counter(tensor.name for header in headers for tensor in header.tensors)
    if doubles := [name for name, times in names.items() if times > 1]:
        raise GpuboxError(f"The shards of {subject} repeat each other: {doubles[0][:60]!r} is in two of them.")
