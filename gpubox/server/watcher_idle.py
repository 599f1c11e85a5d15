"""The watcher of one server while nothing happens: a program of its own that imports nothing of gpubox.

``python -I -S rest.py LOCK LOG LIMIT PID TICKS -- COMMAND ...`` sleeps until the process ends or the log is longer than
LIMIT bytes, then becomes ``COMMAND ... fd:N died|long``. LOCK is the path of the file whose lock it holds as long as it
watches, or ``fd:N`` where it holds it already; where another watcher holds it, it ends.
"""

import fcntl
import os
import select
import sys
import time

LOOK_SECONDS = 15.0
"""Between two looks at the log; the end of the process wakes it at once."""
LOCK_PAUSES = (0.02, 0.05, 0.1)
"""Between the tries for a lock that another gpubox may hold for a moment, to see whether there is a watcher."""


def _start_ticks(pid: int) -> int | None:
    """As ``hardware.process.identity_of``: a pid alone names no process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double what it weighs
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _locked(place: str) -> int | None:
    """The descriptor of the lock; ``None`` where somebody else holds it."""
    if place.startswith("fd:"):
        return int(place[3:])
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for pause in (*LOCK_PAUSES, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if pause is None:
                break
            time.sleep(pause)
    return None


def _wait(pid: int, ticks: int, log: str, limit: int) -> str:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return "died"
    if _start_ticks(pid) != ticks:
        return "died"
    ended = select.poll()
    ended.register(process, select.POLLIN)
    while not ended.poll(LOOK_SECONDS * 1000):
        try:
            if os.stat(log).st_size > limit:  # noqa: PTH116
                return "long"
        except OSError:
            continue
    return "died"


def main() -> None:
    place, log, limit, pid, ticks, _, *command = sys.argv[1:]
    try:
        lock = _locked(place)
    except OSError:
        return
    if lock is None:
        return
    what = _wait(int(pid), int(ticks), log, int(limit))
    os.set_inheritable(lock, True)
    os.execv(command[0], [*command, f"fd:{lock}", what])


if __name__ == "__main__":
    main()
