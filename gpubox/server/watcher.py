"""The watcher beside a server: what sees to its death when no screen is open. Who starts it, finds it and ends it.

It is one process for each slot, in a session of its own, known by the lock that it holds. At rest it is ``rest.py``;
for a death it becomes ``revive.py``, and goes back to rest beside what that started. Killing it costs nothing but
itself: the next gpubox that looks at the server starts another. ``GPUBOX_WATCHER=0`` in the environment: there is none.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server import watcher_idle
from gpubox.server.log_truncation import MAX_LOG_BYTES
from gpubox.storage import is_locked, lock_holder

_children: list["subprocess.Popen[bytes]"] = []  # noqa: UP037
GONE_SECONDS = 2.0


def watched(slot: str) -> bool:
    """Whether the servers of ``slot`` are to have a watcher: those of one run alone end with it."""
    return not slot.startswith("~") and os.environ.get("GPUBOX_WATCHER") != "0"


def is_watched(paths: Paths, slot: str) -> bool:
    """Whether a watcher is there.

    Tries the lock for a moment, because reading /proc/locks takes 12 ms. A watcher that starts in that moment tries
    again (``watcher_idle.py``).
    """
    return is_locked(paths.slot_watch(slot))


def ensure_watcher(paths: Paths, slot: str, process: ProcessIdentity | None) -> bool:
    """Starts the watcher of ``process`` where there is none. Returns whether it did. Never raises.

    Of a process that is dead already it sees to the death.
    """
    _children[:] = [child for child in _children if child.poll() is None]
    if process is None or not watched(slot) or is_watched(paths, slot):
        return False
    place = paths.slot_watch(slot)
    if not os.access(place.parent, os.W_OK):
        return False
    try:
        child = subprocess.Popen(
            resting(paths, slot, process, str(place)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return False
    _children.append(child)
    return True


def resting(paths: Paths, slot: str, process: ProcessIdentity, place: str) -> list[str]:
    """The command line of the watcher at rest; ``place`` is its lock: a path, or ``fd:N``."""
    root = str(Path(__file__).parent.parent.parent)
    begin = f"import sys; sys.path.append({root!r}); from gpubox.server.watcher_recovery import main; main()"
    folders = [str(folder) for folder in (paths.config, paths.state, paths.cache, paths.config_override or "")]
    numbers = [str(MAX_LOG_BYTES), str(process.pid), str(process.start_ticks)]
    python = [sys.executable, "-I", "-S", str(Path(watcher_idle.__file__))]
    log = str(paths.instance_log(slot))
    return [*python, place, log, *numbers, "--", sys.executable, "-c", begin, slot, *folders]


def end(paths: Paths, slot: str) -> None:
    """Ends the watcher: what is done to the server from here on is meant. Never raises."""
    pid = lock_holder(paths.slot_watch(slot))
    if not pid or pid == os.getpid():
        return
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if lock_holder(paths.slot_watch(slot)) != pid:  # else the pid was another's when it was opened
                return
            signal.pidfd_send_signal(process, signal.SIGKILL)
            gone = select.poll()
            gone.register(process, select.POLLIN)
            gone.poll(GONE_SECONDS * 1000)
        finally:
            os.close(process)
