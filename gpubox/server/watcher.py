"""The watcher: a small process beside each server, which acts when the server, or a gpubox that replaces it, dies.

It waits in ``watcher_idle.py``, a program that imports nothing of gpubox and so needs little memory. When the server
dies or its log grows too long, the process replaces itself (exec) by ``watcher_recovery.py``: that writes the
post-mortem, restarts the server if its profile wants it, or cuts the log, and then execs back into the waiting program
beside the server that runs now; if none runs, it exits. While a gpubox replaces the server, the watcher waits for the
end of that gpubox instead: if it is killed, recovery brings the operation to an end. So it does with a trial. There is
one watcher for each instance, in its own session, identified by the lock that it holds. It may be killed at any time:
the next gpubox command that looks at the server starts another one. ``GPUBOX_WATCHER=0`` switches watchers off.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from gpubox.children import own_program
from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server import watcher_idle
from gpubox.server.log import MAX_LOG_BYTES
from gpubox.server.state import pending_trial
from gpubox.storage import is_locked, lock_holder

_children: dict[Path, list["subprocess.Popen[bytes]"]] = defaultdict(list)  # noqa: UP037
"""By lock, the watchers that this process started."""
KILL_SECONDS = 2.0


def wants_watcher(instance: str) -> bool:
    """Whether the server of ``instance`` gets a watcher. That of a temporary instance ends with its command."""
    return not instance.startswith("~") and os.environ.get("GPUBOX_WATCHER") != "0"


def ensure_watcher(paths: Paths, instance: str, process: ProcessIdentity | None) -> bool:
    """Starts a watcher for ``process`` (``InstanceView.watched``) if there is none; returns whether it did.

    If ``process`` is already dead, the watcher handles that at once. Never raises.
    """
    lock = paths.watcher_lock(instance)
    _children[lock] = [child for child in _children[lock] if child.poll() is None]
    command = idle_command(paths, instance, process, str(lock))
    # is_locked takes the lock for a moment (reading /proc/locks takes 12 ms); a watcher that starts just then retries
    if not command or not wants_watcher(instance) or is_locked(lock) or not os.access(lock.parent, os.W_OK):
        return False
    try:
        null = subprocess.DEVNULL
        child = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
    except OSError:
        return False
    _children[lock].append(child)
    return True


def replace_watcher(paths: Paths, instance: str, process: ProcessIdentity | None) -> None:
    """From now on the watcher waits for the end of ``process``; there is none without one. Never raises."""
    stop_watcher(paths, instance)
    ensure_watcher(paths, instance, process)


def idle_command(paths: Paths, instance: str, process: ProcessIdentity | None, lock: str) -> list[str]:
    """The command line of the waiting watcher; ``lock`` is a path, or ``fd:N`` for a lock that is held already.

    During a trial it also waits for the end of the gpubox that tries. Empty if there is nothing to wait for.
    """
    trial = pending_trial(paths)
    watched = [process, trial.owner if trial and trial.instance == instance else None]
    ends = [f"{each.pid}:{each.start_ticks}" for each in watched if each]
    if not ends:
        return []
    recovery = own_program("gpubox.server.watcher_recovery", instance, *paths.arguments)
    python = [sys.executable, "-I", "-S", str(Path(watcher_idle.__file__))]
    waiting = [*python, lock, str(paths.instance_log(instance)), str(MAX_LOG_BYTES), *ends]
    return [*waiting, "--", *recovery]


def stop_watcher(paths: Paths, instance: str) -> None:
    """Kills the watcher: gpubox itself stops the server. Never raises."""
    lock = paths.watcher_lock(instance)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        for child in _children.pop(lock, ()):
            child.kill()
            child.wait(KILL_SECONDS)
        pid = lock_holder(lock) if is_locked(lock) else None  # it takes 12 ms
        if not pid or pid == os.getpid():
            return
        process = os.pidfd_open(pid)
        try:
            if lock_holder(lock) != pid:  # the pid may have been reused before it was opened
                return
            signal.pidfd_send_signal(process, signal.SIGKILL)
            exited = select.poll()
            exited.register(process, select.POLLIN)
            exited.poll(KILL_SECONDS * 1000)
        finally:
            os.close(process)
