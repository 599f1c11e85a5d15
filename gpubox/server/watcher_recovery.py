"""The acting part of the watcher (see ``watcher.py``): after a crash it writes the post-mortem and may restart.

It decides under the instance's lock, from the state file. A server that gpubox stopped is not recorded as running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback

from gpubox.config import api_key, load_config
from gpubox.errors import GpuboxError
from gpubox.hardware.nvml import read_driver
from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server.crash_recovery import restart_refusal, write_post_mortem
from gpubox.server.failure_causes import FailureKind
from gpubox.server.instance import cause_of, observe
from gpubox.server.log_truncation import truncate_log
from gpubox.server.server_process import remember_exit_code
from gpubox.server.state import load_state
from gpubox.server.supervisor import Supervisor
from gpubox.server.watcher import idle_command
from gpubox.storage import write_atomically

BUSY_SECONDS = 0.5


async def handle_crashes(paths: Paths, instance: str) -> ProcessIdentity | None:
    """Waits until no other gpubox works on ``instance``; while its server is dead, writes the post-mortem and may
    restart it.

    Returns the server to watch. It was alive when it was last looked at, and may have died since: to look again here
    would lose that death. ``None``: none runs.
    """
    while True:
        _reap_children(paths, instance)  # a server that was restarted here may be dead already
        while (view := observe(paths, instance)).operation is not None:
            await asyncio.sleep(BUSY_SECONDS)
        dead = view.state.running
        if not view.crashed or dead is None:
            return view.process
        driver = await asyncio.to_thread(read_driver)
        write_post_mortem(paths, view, driver)
        supervisor = Supervisor(paths, load_config(paths), instance)
        terminated = cause_of(paths, instance, dead.process).kind is FailureKind.STOPPED
        has_key = api_key(paths) is not None
        if restart_refusal(view, driver, has_api_key=has_key, terminated=terminated) is not None:
            return observe(paths, instance).process  # the record stays that of a crash, with its cause
        try:
            await supervisor.restart_crashed(dead.launch_id)
            continue
        except GpuboxError:
            after = observe(paths, instance)
            if after.operation is None and after.state.running != dead:
                return after.process  # the restart failed, and the record says why
            if after.operation is None and not os.access(paths.instance_state(instance).parent, os.W_OK):
                return None
        await asyncio.sleep(BUSY_SECONDS)


def _reap_children(paths: Paths, instance: str) -> None:
    """Reads the exit codes of dead servers that this watcher started: they are still its children after exec."""
    recorded = load_state(paths.instance_state(instance)).running
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if recorded and recorded.process and recorded.process.pid == ended[0]:
                remember_exit_code(recorded.process, os.waitstatus_to_exitcode(ended[1]))


def main() -> None:
    """Arguments: ``INSTANCE CONFIG STATE CACHE CONFIG_FILE LOCK died|long``, from ``watcher.idle_command``."""
    instance, *folders, lock, event = sys.argv[1:]
    paths = Paths.from_arguments(*folders)
    os.set_inheritable(int(lock.removeprefix("fd:")), False)  # no server may inherit it
    process: ProcessIdentity | None = None
    if event == "long":
        running = load_state(paths.instance_state(instance)).running
        process = running.process if running else None  # also if it dies meanwhile: the waiting watcher sees that
        truncate_log(paths.instance_log(instance))
    else:
        try:
            process = asyncio.run(handle_crashes(paths, instance))
        except Exception:  # nobody sees the output of the watcher
            with contextlib.suppress(OSError):
                write_atomically(paths.logs / "watcher-error.log", traceback.format_exc().encode(errors="replace"))
            process = observe(paths, instance).process
    if process:
        os.set_inheritable(int(lock.removeprefix("fd:")), True)
        command = idle_command(paths, instance, process, lock)
        os.execv(command[0], command)
