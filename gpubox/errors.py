"""The errors that are shown to the owner, and their exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of a ``gpubox`` command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """A wrong command line, or a file of the owner that does not parse."""
    NOT_RUNNING = 3
    """No server runs, or it cannot be reached."""
    UNHEALTHY = 4
    """A server runs but does not answer correctly."""
    WOULD_NOT_FIT = 5
    """There is not enough memory."""
    PROGRAM_FAILED = 6
    """``sandbox run``: the confined program failed or was killed."""
    INTERRUPTED = 130


class GpuboxError(Exception):
    """A problem that the owner can fix: ``message`` says what happened, ``hint`` what to do.

    Each is one or two sentences of plain text, without markup and without secrets.
    """

    def __init__(self, message: str, hint: str = "", *, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code

    def __str__(self) -> str:
        return f"{self.message}  {self.hint}" if self.hint else self.message


class UsageError(GpuboxError):
    """The owner's command or files are wrong. Nothing was started or stopped."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, code=ExitCode.USAGE)
