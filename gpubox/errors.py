"""The one error that reaches the owner, and the exit codes it maps to."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a ``gpubox`` command answers to the shell."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Wrong words on the command line, or a file of the owner's that does not parse."""
    NOT_RUNNING = 3
    """No server runs, or it cannot be reached."""
    UNHEALTHY = 4
    """A server runs but does not answer as it should."""
    WOULD_NOT_FIT = 5
    """The memory asked for is not there."""
    PROGRAM_FAILED = 6
    """``sandbox run``: the confined program failed or was ended."""
    INTERRUPTED = 130


class GpuboxError(Exception):
    """Something the owner can mend: what happened, and what to do about it.

    Neither text is markup, neither holds a secret, and both are one sentence or two.
    """

    def __init__(self, message: str, hint: str = "", *, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        return f"{self.message}  {self.hint}" if self.hint else self.message


class UsageError(GpuboxError):
    """The owner's words or files are wrong; nothing was started or stopped."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, code=ExitCode.USAGE)
