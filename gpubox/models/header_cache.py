"""Headers of GGUF files that were read before, from a cache on disk: a vocabulary takes 30-100 ms to walk, this 3."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from gpubox.models.gguf import GgufFile, check_gguf, shard_names
from gpubox.models.gguf_header import GgufTensor, MetadataValue
from gpubox.paths import Paths
from gpubox.storage import read_bytes, read_json, write_atomically

_SCHEMA = 1
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
        stored = {
            "schema": _SCHEMA, "key": key, "size": model.size, "architecture": model.architecture, "name": model.name,
            "metadata": dict(model.metadata), "tensors": model.tensors,
        }  # fmt: skip
        with contextlib.suppress(OSError, ValueError):  # without the cache it is read again
            write_atomically(cache, json.dumps(stored).encode())
    return model


def _key(path: Path) -> list[list[int]]:
    """What changes when the file or one of its shards does; empty if one is missing."""
    try:
        states = [path.with_name(name).stat() for name in shard_names(path.name)]
    except (OSError, ValueError):
        return []
    return [[state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns] for state in states]


def _read(cache: Path, key: list[list[int]], path: Path) -> GgufFile | None:
    try:
        stored: Any = read_json(read_bytes(cache, _CACHE_BYTES), own=True)
        if stored["schema"] != _SCHEMA or stored["key"] != key:
            return None
        return GgufFile(
            path=path,
            size=int(stored["size"]),
            shards=tuple(path.with_name(name) for name in shard_names(path.name)),
            architecture=str(stored["architecture"]),
            name=str(stored["name"]),
            metadata={name: _value(value) for name, value in stored["metadata"].items()},
            tensors=tuple(GgufTensor(name, kind, tuple(shape), size) for name, kind, shape, size in stored["tensors"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _value(value: Any) -> MetadataValue:
    return tuple(value) if isinstance(value, list) else value
