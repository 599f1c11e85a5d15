"""Bytes of a streamed completion -> Chunks: the wire format of OpenAI-compatible servers. Pure: no sockets, no clock.

Recorded from llama-server b11434: ``data: {...}`` lines, a blank line after each, ``data: [DONE]``, comments as pings.
What is no such line is counted, not raised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from gpubox.server.chunks import Chunk, chunk_of

LINE_BYTES = 8 * 1024 * 1024
"""The longest line that is taken: one delta may carry a whole file, but not the machine's memory."""


class LineTooLong(ValueError):
    """A line of the stream is longer than LINE_BYTES."""


class SseDecoder:
    """Takes the bytes as they come and gives the Chunks they complete."""

    def __init__(self, line_bytes: int = LINE_BYTES) -> None:
        self._limit = line_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self.garbage = 0
        """Lines that are no part of such a stream."""
        self.sample = ""
        """The first of them, shortened."""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The Chunks that end in ``data``. Raises Oversized."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join((*self._parts, line)) if self._parts else line
            self._parts, self._held = [], 0
            if chunk := self._line(whole):
                yield chunk
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
        if self._held > self._limit:
            raise LineTooLong

    def _line(self, line: bytes) -> Chunk | None:
        line = line.rstrip(b"\r")
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return None
        if len(line) > self._limit:
            raise LineTooLong
        name, colon, payload = line.partition(b":")
        payload = payload.strip()
        if colon and name == b"data" and payload == b"[DONE]":
            return Chunk(done=True)
        if colon and name in (b"data", b"error"):
            values = _decoded(payload)
            if values is not None:
                return chunk_of(values if name == b"data" else {"error": values})
        self.garbage += 1
        self.sample = self.sample or line[:60].decode(errors="replace")
        return None


def _decoded(payload: bytes) -> dict[str, Any] | None:
    try:
        values = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        try:  # a lone surrogate (half an emoji), which json takes and msgspec refuses
            values = json.loads(payload.decode(errors="replace"))
        except (ValueError, RecursionError):
            return None
    return values if isinstance(values, dict) else None
