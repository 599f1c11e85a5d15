"""The processes below one process: how much memory they use, and how to end them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

from gpubox.hardware.process import children
from gpubox.units import KIB


def kill_group(pid: int) -> None:
    """Kills the process group that ``pid`` leads. Call it before waiting for ``pid``."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def wait_group_dead(pid: int, seconds: float) -> None:
    """Returns when the group that ``pid`` led is empty, or after ``seconds``."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(pid, signal.SIGKILL)
            time.sleep(0.002)


def kill_tree(pid: int) -> list[int]:
    """Kills ``pid`` and its children. ``pid`` is stopped first, so that it cannot make another child.

    Returns pidfds of the children. One becomes readable when its process is dead, and with it the pid namespace whose
    first process it was.
    """
    fds: list[int] = []
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        for child in children(pid):
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(child))
                os.kill(child, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
    return fds


def wait_dead(fds: list[int], seconds: float) -> None:
    """Returns when all processes of these pidfds are dead, or after ``seconds``. Closes the pidfds."""
    end = time.monotonic() + seconds
    for fd in fds:
        select.select([fd], [], [], max(0.0, end - time.monotonic()))
        os.close(fd)


def memory_bytes(pids: list[int], threshold: int) -> int:
    """Memory of the processes together, swap included.

    A first sum counts shared pages once for each process. Only if it exceeds ``threshold`` are they counted exactly.
    """
    quick = sum(_field_sum(pid, "status", ("RssAnon:", "RssShmem:", "VmSwap:")) for pid in pids)
    return quick if quick <= threshold else sum(_field_sum(pid, "smaps_rollup", ("Pss:", "SwapPss:")) for pid in pids)


def _field_sum(pid: int, name: str, fields: tuple[str, ...]) -> int:
    try:
        text = Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(fields)) * KIB
