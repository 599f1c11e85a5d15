"""gpubox as a process of its own, for tests that kill it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

GPUBOX = [sys.executable, "-m", "gpubox"]


def gpubox(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs one verb to its end."""
    return subprocess.run([*GPUBOX, *words], capture_output=True, text=True, timeout=180, check=False)


def until(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Returns when ``what`` is so, while ``process`` works."""
    deadline = time.monotonic() + 60
    while not what():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)
