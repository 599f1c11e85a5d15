"""The one way to the terminal: every stream of a verb is a CleanStream, whoever writes to it."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from enum import Enum
from typing import TextIO

from gpubox.sanitize import StreamSanitizer

LINE_CHARS = 20_000
"""What a terminal is shown of one line; a file or a pipe gets all of it."""


class TerminalControl(Enum):
    """gpubox's own codes. Nothing else makes a terminal act: codes in a text are never trusted."""

    CLEAR_LINE = "\r\x1b[2K"
    """Back to the start of the line, which is cleared."""


class SanitizedStream(io.TextIOBase):
    """Writes to ``out`` what ``gpubox.sanitize`` leaves of a text, also where an escape sequence comes in pieces.

    It has no ``buffer``: there is no way around it.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._cleaner = StreamSanitizer(LINE_CHARS if out.isatty() else None)

    def write(self, text: str) -> int:
        self._put(self._cleaner.feed(text))
        return len(text)

    def write_untruncated(self, text: str) -> None:
        """A text of its own, whose lines are not cut: JSON."""
        cleaner = StreamSanitizer()
        self._put(self._cleaner.end() + cleaner.feed(text) + cleaner.end())

    def write_verbatim(self, text: str) -> None:
        """What goes into a file or a pipe as it stands; on a terminal it is cleaned as everything is."""
        if self.isatty():
            self.write(text)
        else:
            self._put(self._cleaner.end() + text)

    def control(self, code: TerminalControl) -> None:
        """Has the terminal act."""
        self._put(self._cleaner.end() + code.value)

    def finish(self) -> None:
        """Writes what was held back as the possible beginning of something."""
        if rest := self._cleaner.end():
            self._put(rest)

    def _put(self, text: str) -> None:
        try:
            self._out.write(text)
        except UnicodeEncodeError:  # a terminal of another alphabet, a file name that is no text
            encoding = self._out.encoding or "ascii"
            self._out.write(text.encode(encoding, "replace").decode(encoding))

    def close(self) -> None:
        """Does nothing: ``out`` is somebody else's."""

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
    """stdout as it is now."""
    return _cleaned(sys.stdout)


def sanitized_stderr() -> SanitizedStream:
    """stderr as it is now."""
    return _cleaned(sys.stderr)


@contextlib.contextmanager
def sanitized_streams() -> Iterator[None]:
    """Inside the block nothing reaches stdout and stderr uncleaned: not from click, nor from a stray print."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams = sanitized_stdout(), sanitized_stderr()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                stream.finish()


def _cleaned(stream: TextIO) -> SanitizedStream:
    return stream if isinstance(stream, SanitizedStream) else SanitizedStream(stream)
