"""Running an engine for one short answer (``--help``, ``--version``): bounded in time, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpubox.engines.find import Engine
from gpubox.errors import GpuboxError

TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one short run of an engine printed, and its exit code (negative: the signal that ended it)."""

    code: int
    out: str
    err: str


def run_engine(
    engine: Engine, argv: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = TIMEOUT_SECONDS
) -> EngineOutput:
    """Run ``<engine> *argv`` with ``env`` added to this process's own environment.

    Raises GpuboxError where it cannot be started, hangs or is ended by a signal.
    """
    command = [*engine.command, *argv]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # a wrapper script's children hold the pipes: they must go with it
        )
    except OSError as error:
        raise GpuboxError(
            f"The engine {engine.name!r} cannot be started: {error.strerror} ({engine.path}).",
            "Is it built for this machine?",
        ) from None
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise GpuboxError(
                f"The engine {engine.name!r} gave no answer to {argv[-1]} within {timeout:.0f} s.",
                f"Try it yourself: {engine.path} {argv[-1]}",
            ) from None
    answer = EngineOutput(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    if answer.code < 0:
        raise GpuboxError(
            f"The engine {engine.name!r} crashed on {argv[-1]} ({signal.Signals(-answer.code).name}).",
            last_line(answer.err) or f"Try it yourself: {engine.path} {argv[-1]}",
        )
    return answer


def last_line(text: str) -> str:
    """The last line that says something, or ``""``."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
