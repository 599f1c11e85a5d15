"""The processes under one process: what they use together, and their end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

from gpubox.units import KIB


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, parents first. Inside a pid namespace nobody can leave this tree."""
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def children(pid: int) -> list[int]:
    """The children of all threads of ``pid``."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - ten times a second
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def kill_group(pid: int) -> None:
    """SIGKILL for the process group that ``pid`` leads; to be called before ``pid`` is waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def wait_group_dead(pid: int, seconds: float) -> None:
    """Returns when the group that ``pid`` led has no process left, or after ``seconds``."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(pid, signal.SIGKILL)
            time.sleep(0.002)


def kill_tree(pid: int) -> list[int]:
    """SIGKILL for ``pid`` and its children, ``pid`` stopped first, so that it makes no new child meanwhile.

    Returns pidfds of the children: one that can be read is dead, and with it the namespace it was the first process of.
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
    """Returns when all these processes are dead, or after ``seconds``; closes the pidfds."""
    end = time.monotonic() + seconds
    for fd in fds:
        select.select([fd], [], [], max(0.0, end - time.monotonic()))
        os.close(fd)


def memory_bytes(pids: list[int], more_than: int) -> int:
    """Memory the processes hold together, swapped out or not; shared pages count once, but only once the quick sum
    is ``more_than``."""
    quick = sum(_field_sum(pid, "status", ("RssAnon:", "RssShmem:", "VmSwap:")) for pid in pids)
    return quick if quick <= more_than else sum(_field_sum(pid, "smaps_rollup", ("Pss:", "SwapPss:")) for pid in pids)


def _field_sum(pid: int, name: str, fields: tuple[str, ...]) -> int:
    try:
        text = Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(fields)) * KIB
