"""Starts the gateway apart from this terminal."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from gpubox.children import own_program
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, load_gateway
from gpubox.storage import open_private, private_folder

START_SECONDS = 20.0
_LOG_BYTES = 4 * 1024 * 1024
_POLL_SECONDS = 0.05
_ERROR = "gpubox: "


def start_detached(paths: Paths, host: str, port: int, *, allow_exposed: bool = False) -> GatewayRecord:
    """The record of the gateway that runs, or was started now. Blocks until it listens.

    Raises GpuboxError with its own last sentence if it does not come up.
    """
    if record := load_gateway(paths):
        return record
    words = ["serve", "--quiet", "--host", host, "--port", str(port), *(["--yes"] if allow_exposed else [])]
    log = paths.gateway_log
    try:
        private_folder(log.parent)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        with os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
            begin = output.tell()
            child = subprocess.Popen(
                own_program("gpubox.cli.entry", *paths.options, *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
    except OSError as error:
        raise GpuboxError(f"The gateway cannot be started: {error.strerror}.") from None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        record = load_gateway(paths)
        if record and record.process.pid == child.pid:
            return record
        if child.poll() is not None:
            message, hint = _last_error(log, begin)
            raise GpuboxError(message or "The gateway ended at once.", f"{hint} See {log}.".strip())
        time.sleep(_POLL_SECONDS)
    raise GpuboxError(f"The gateway has not begun to listen within {START_SECONDS:.0f} s.", f"See {log}.")


def _last_error(log: Path, begin: int) -> tuple[str, str]:
    """The sentence with which the gateway ended, and its hint: verbs print the hint below the sentence."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read(_LOG_BYTES).decode(errors="replace").strip().splitlines()
    at = next((at for at in reversed(range(len(lines))) if lines[at].startswith(_ERROR)), len(lines) - 1)
    return (lines[at].removeprefix(_ERROR), " ".join(map(str.strip, lines[at + 1 :]))) if lines else ("", "")
