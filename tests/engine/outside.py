"""gpubox as a separate process, for tests that kill it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

GPUBOX = [sys.executable, "-m", "gpubox"]
SLOWLY = ("nice", "-n", "19", *GPUBOX)
"""For a gpubox that is killed half way: on a busy machine it must not be done before its killer has a turn."""


def gpubox(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    return subprocess.run([*GPUBOX, *words], capture_output=True, text=True, timeout=180, check=False)


def until(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Waits until ``what`` is true, while ``process`` runs."""
    deadline = time.monotonic() + 60
    while not what():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)
