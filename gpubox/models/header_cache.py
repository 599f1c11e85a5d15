"""Headers of GGUF files that were read before, from a cache on disk: a vocabulary takes 30-100 ms to walk, this 3."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from gpubox.models.gguf import GgufFile, check_gguf, shard_names
from gpubox.models.gguf_header import GgufTensor, MetadataValue
from gpubox.paths import Paths
from gpubox.storage import read_cache, write_cache

_CACHE_BYTES = 64 * 1024 * 1024


def read_model(path: Path, paths: Paths) -> GgufFile:
    """As ``check_gguf``, but from the cache while no shard has changed (inode, size, time of change).

    Raises GpuboxError as ``check_gguf`` does.
    """
    cache = paths.headers / f"{hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:24]}.json"
    key = _key(path)
    if key and (cached := _read(cache, key, path)):
        return cached
    model = check_gguf(path)
    if key and key == _key(path):  # it did not change meanwhile
        facts = (model.size, model.architecture, model.name, dict(model.metadata), model.tensors)
        write_cache(cache, key, facts)
    return model


def _key(path: Path) -> list[list[int]]:
    """What changes when the file or one of its shards does; empty if one is missing."""
    try:
        states = [path.with_name(name).stat() for name in shard_names(path.name)]
    except (OSError, ValueError):
        return []
    return [[state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns] for state in states]


def _read(cache: Path, key: list[list[int]], path: Path) -> GgufFile | None:
    kept = read_cache(cache, key, _CACHE_BYTES)
    try:
        size, architecture, name, metadata, tensors = kept
        return GgufFile(
            path=path,
            size=int(size),
            shards=tuple(path.with_name(name) for name in shard_names(path.name)),
            architecture=str(architecture),
            name=str(name),
            metadata={key: _value(value) for key, value in metadata.items()},
            tensors=tuple(GgufTensor(name, kind, tuple(shape), size) for name, kind, shape, size in tensors),
        )
    except (ValueError, TypeError, AttributeError):
        return None


def _value(value: Any) -> MetadataValue:
    return tuple(value) if isinstance(value, list) else value
