"""The waiting part of the watcher (see ``watcher.py``): a program of its own that imports nothing of gpubox.

``python -I -S watcher_idle.py LOCK LOG LIMIT PID:TICKS ... -- COMMAND ...`` sleeps until one of the processes ends or
the log is longer than LIMIT bytes, and then execs ``COMMAND ... fd:N died|long``. It holds the lock of the file LOCK
meanwhile (``fd:N``: it already holds the lock). If another watcher holds the lock, it exits.
"""

import fcntl
import os
import select
import sys
import time

LOG_CHECK_SECONDS = 15.0
"""Between two checks of the log's size. The end of the process is noticed at once."""
LOCK_PAUSES = (0.02, 0.05, 0.1)
"""Between attempts to take the lock, which another gpubox may hold for a moment (``watcher.ensure_watcher``)."""


def _start_ticks(pid: int) -> int | None:
    """As in ``hardware.process.identity_of``: pids are reused, pid and start time together are not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the memory
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _take_lock(lock: str) -> int | None:
    """The descriptor of the lock; ``None`` if another process holds it."""
    if lock.startswith("fd:"):
        return int(lock[3:])
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for pause in (*LOCK_PAUSES, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if pause is None:
                break
            time.sleep(pause)
    return None


def _wait(watched: list[str], log: str, limit: int) -> str:
    ended = select.poll()
    for pid, ticks in (map(int, each.split(":")) for each in watched):
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return "died"
        if _start_ticks(pid) != ticks:
            return "died"
        ended.register(process, select.POLLIN)
    while not ended.poll(LOG_CHECK_SECONDS * 1000):
        try:
            if os.stat(log).st_size > limit:  # noqa: PTH116
                return "long"
        except OSError:
            continue
    return "died"


def main() -> None:
    lock, log, limit, *rest = sys.argv[1:]
    watched, command = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    try:
        descriptor = _take_lock(lock)
    except OSError:
        return
    if descriptor is None:
        return
    event = _wait(watched, log, int(limit))
    os.set_inheritable(descriptor, True)
    os.execv(command[0], [*command, f"fd:{descriptor}", event])


if __name__ == "__main__":
    main()
