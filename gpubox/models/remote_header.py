"""Reads the header of a model on Hugging Face without downloading it: a few parts of each file, 16 MB at most."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpubox import units
from gpubox.errors import GpuboxError
from gpubox.models.gguf import GgufFile
from gpubox.models.gguf_header import MAGIC, GgufHeader, MalformedError, NeedMoreError, parse_header
from gpubox.models.hub_client import HubClient
from gpubox.models.hub_search import HubFile, HubQuant, HubRepository, agreed_size

MAX_HEADER_BYTES = 16_000_000
"""Of all shards of one model together. The largest header known (a vocabulary of 262k) takes 11 MB."""
_FIRST_WINDOWS = (512_000, 3_000_000, 6_000_000, 9_000_000, 12_000_000, MAX_HEADER_BYTES)
"""Of the first file, which holds the vocabulary."""
_SHARD_WINDOWS = (32_000, 256_000, 1_000_000, 4_000_000)
"""Of the others, which hold only their part of the tensor table."""


def read_remote_model(client: HubClient, repository: HubRepository, quant: HubQuant) -> GgufFile:
    """The header of a model on the hub, as ``check_gguf`` returns it for one on disk; ``path`` is its name on the hub.

    Raises GpuboxError if the hub does not serve it, or if it is no GGUF, damaged, or contradicts its name or size.
    """
    budget = MAX_HEADER_BYTES
    headers: list[GgufHeader] = []
    for number, file in enumerate(quant.files):
        rest = _SHARD_WINDOWS[0] * (len(quant.files) - number - 1)  # kept for the other shards
        windows = _FIRST_WINDOWS if number == 0 else _SHARD_WINDOWS
        header, fetched = _read_header(client, repository, file, windows, budget - rest)
        headers.append(header)
        budget -= fetched
    _check_shards(repository, quant, headers)
    metadata = headers[0].metadata
    name = quant.files[0].name
    return GgufFile(
        path=Path(name),
        size=sum(file.size_bytes or 0 for file in quant.files),
        shards=tuple(Path(file.name) for file in quant.files),
        architecture=str(metadata.get("general.architecture", "")),
        name=str(metadata.get("general.name", "")) or Path(name).stem,
        metadata=metadata,
        tensors=tuple(tensor for header in headers for tensor in header.tensors),
    )


def content_key(quant: HubQuant) -> str:
    """What changes when the content of a quant does; empty if the hub states no checksums."""
    hashes = [file.sha256 for file in quant.files]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest() if all(hashes) else ""


def _read_header(
    client: HubClient, repository: HubRepository, file: HubFile, windows: Sequence[int], budget: int
) -> tuple[GgufHeader, int]:
    """The header of one file, and how many bytes were fetched for it."""
    subject = f"{repository.name}/{file.name}"
    size, data = file.size_bytes, bytearray()
    if size == 0:
        raise GpuboxError(f"{subject} is empty.")
    for window in (*windows, budget):
        end = min(window, budget, budget if size is None else size)
        if end <= len(data):
            continue
        start = len(data)
        with client.file_part(repository.name, repository.revision, file.name, start, end) as (chunks, length):
            size = agreed_size(subject, size, length)
            for chunk in chunks:
                data += chunk
        if len(data) < min(end, size):
            raise GpuboxError(f"Hugging Face stops in the middle of {subject}.", "Try again.")
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
        return header, len(data)
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
                f"calls itself {_plus_one(place)} of {count}."
            )
    names = Counter(tensor.name for header in headers for tensor in header.tensors)
    if doubles := [name for name, times in names.items() if times > 1]:
        raise GpuboxError(f"The shards of {subject} repeat each other: {doubles[0][:60]!r} is in two of them.")


def _plus_one(place: object) -> object:
    return place + 1 if isinstance(place, int) else place
