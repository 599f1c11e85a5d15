"""The waiting process of a trial (see ``trial.py``): a program of its own that imports nothing of gpubox.

``python -I -S trial_guard.py LOCK -- COMMAND ...`` sleeps until nobody holds the lock of the file LOCK, which means
that the trial is over or its gpubox is dead, and then execs COMMAND.
"""

import fcntl
import os
import sys


def main() -> None:
    lock, _, *command = sys.argv[1:]
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    record = os.path.join(os.path.dirname(lock), "trial.json")  # noqa: PTH118, PTH120 - pathlib would double the memory
    if os.path.exists(record):  # noqa: PTH110
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
