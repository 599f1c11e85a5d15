"""The waiting part of the watcher (see ``watcher.py``): a program of its own that imports nothing of gpubox.

``python -I -S watcher_idle.py LOCK LOG LIMIT PID:TICKS ... -- COMMAND ...`` sleeps until one of the processes ends or
the log is longer than LIMIT bytes, and then execs ``COMMAND ... fd:N EVENT``: long, died, or died:PID:TICKS:CODE if the
kernel tells how. It holds the lock of the file LOCK meanwhile (``fd:N``: it already holds the lock). If another watcher
holds the lock, it exits.
"""

import fcntl
import os
import select
import sys
import time

LOG_CHECK_SECONDS = 15.0
"""Between two checks of the log's size. The end of the process is noticed at once."""
PIDFD_GET_INFO, PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3
"""include/uapi/linux/pidfd.h: from Linux 6.15 on whoever holds a pidfd learns how a process ended that is no child."""
REAP_PAUSES = (0.0, 0.001, 0.01, 0.1, 0.5)
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


def _exit_code(process: int, pid: int) -> int | None:
    """How a process ended (negative: the signal). Before its parent reaps it /proc has that, and the pidfd later."""
    for pause in REAP_PAUSES:
        time.sleep(pause)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                return os.waitstatus_to_exitcode(int(fields[49]))
        except (OSError, ValueError, IndexError):
            pass
        info = bytearray(PIDFD_INFO_EXIT.to_bytes(8, sys.byteorder) + bytes(56))
        try:
            fcntl.ioctl(process, PIDFD_GET_INFO, info)
        except OSError:
            continue
        if int.from_bytes(info[:8], sys.byteorder) & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(int.from_bytes(info[60:64], sys.byteorder))
    return None


def _wait(watched: list[str], log: str, limit: int) -> str:
    ended, processes = select.poll(), {}
    for pid, ticks in (map(int, each.split(":")) for each in watched):
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return "died"
        if _start_ticks(pid) != ticks:
            return "died"
        ended.register(process, select.POLLIN)
        processes[process] = pid, ticks
    while not (ready := ended.poll(LOG_CHECK_SECONDS * 1000)):
        try:
            if os.stat(log).st_size > limit:  # noqa: PTH116
                return "long"
        except OSError:
            continue
    process = ready[0][0]
    pid, ticks = processes[process]
    code = _exit_code(process, pid)
    return "died" if code is None else f"died:{pid}:{ticks}:{code}"


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
