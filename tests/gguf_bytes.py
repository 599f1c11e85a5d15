"""Writes small GGUF files for tests: valid ones, and ones that lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

STRING, ARRAY, U32, U64, F32, BOOL = 8, 9, 4, 10, 6, 7


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, value: Any) -> bytes:
    """One metadata key; a list becomes an array of texts, an int a u32."""
    head = text(key)
    if isinstance(value, bool):
        return head + struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return head + struct.pack("<II", U32, value)
    if isinstance(value, float):
        return head + struct.pack("<If", F32, value)
    if isinstance(value, str):
        return head + struct.pack("<I", STRING) + text(value)
    return head + struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(text(v) for v in value)


def tensor(name: str, dimensions: Sequence[int], kind: int, offset: int) -> bytes:
    shape = struct.pack("<I", len(dimensions)) + b"".join(struct.pack("<Q", d) for d in dimensions)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def header(pairs: Sequence[bytes], tensors: Sequence[bytes], version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)


def model(metadata: dict[str, Any] | None = None, elements: int = 64) -> bytes:
    """A whole file with one F32 tensor of ``elements`` elements."""
    values = {"general.architecture": "llama", "general.name": "Tiny", **(metadata or {})}
    head = header([pair(k, v) for k, v in values.items()], [tensor("w", [elements], 0, 0)])
    return head + bytes(-len(head) % 32) + bytes(4 * elements)
