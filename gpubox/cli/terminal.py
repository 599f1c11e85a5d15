"""Sanitized stdout and stderr: a text from a model, a file or a server cannot control the terminal."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from enum import Enum
from typing import TextIO

from gpubox.sanitize import StreamSanitizer

MAX_LINE_CHARS = 20_000
"""A longer line is cut on a terminal; a file or a pipe gets all of it."""


class TerminalControl(Enum):
    """The only escape sequences that reach the terminal."""

    CLEAR_LINE = "\r\x1b[2K"
    """Clears the line and puts the cursor at its start."""


class SanitizedStream(io.TextIOBase):
    """Sanitizes what is written to ``out``, also an escape sequence in several pieces.

    It has no ``buffer`` attribute, so that nobody can write past it.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._sanitizer = StreamSanitizer(MAX_LINE_CHARS if out.isatty() else None)

    def write(self, text: str) -> int:
        self._put(self._sanitizer.feed(text))
        return len(text)

    def write_untruncated(self, text: str) -> None:
        """Writes a complete text, such as JSON, without cutting its lines."""
        sanitizer = StreamSanitizer()
        self._put(self._sanitizer.end() + sanitizer.feed(text) + sanitizer.end())

    def write_verbatim(self, text: str) -> None:
        """Writes unchanged into a file or a pipe; on a terminal the text is sanitized."""
        if self.isatty():
            self.write(text)
        else:
            self._put(self._sanitizer.end() + text)

    def control(self, code: TerminalControl) -> None:
        """Writes an escape sequence of gpubox's own."""
        self._put(self._sanitizer.end() + code.value)

    def finish(self) -> None:
        """Writes what was held back as the possible start of an escape sequence."""
        if rest := self._sanitizer.end():
            self._put(rest)

    def _put(self, text: str) -> None:
        try:
            self._out.write(text)
        except UnicodeEncodeError:  # the terminal lacks a character, or a file name is not UTF-8
            encoding = self._out.encoding or "ascii"
            self._out.write(text.encode(encoding, "replace").decode(encoding))

    def close(self) -> None:
        """Does nothing: ``out`` belongs to the caller."""

    def flush(self) -> None:
        self._out.flush()

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._out.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._out.errors


def sanitized_stdout() -> SanitizedStream:
    """The current stdout, sanitized."""
    return _sanitized(sys.stdout)


def sanitized_stderr() -> SanitizedStream:
    """The current stderr, sanitized."""
    return _sanitized(sys.stderr)


@contextlib.contextmanager
def sanitized_streams() -> Iterator[None]:
    """Inside the block, stdout and stderr are sanitized for everybody, for example for click."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams = sanitized_stdout(), sanitized_stderr()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):  # the reader is gone
                stream.finish()


def _sanitized(stream: TextIO) -> SanitizedStream:
    return stream if isinstance(stream, SanitizedStream) else SanitizedStream(stream)
