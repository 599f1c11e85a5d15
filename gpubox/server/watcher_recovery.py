"""What the watcher does when its server died: a post-mortem, and a new start where the profile wants one.

Then it becomes the watcher at rest of whatever runs in the slot, or ends. Everything is decided under the slot's lock
by what is on record: a server that was told to stop is not on record as running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from pathlib import Path

from gpubox.config import api_key, load_config
from gpubox.errors import GpuboxError
from gpubox.hardware.nvml import read_driver
from gpubox.paths import Paths
from gpubox.server.crash_recovery import restart_refusal, write_post_mortem
from gpubox.server.failure_causes import FailureKind
from gpubox.server.instance import InstanceView, cause_of, observe
from gpubox.server.log_truncation import truncate_log
from gpubox.server.server_process import remember_exit_code
from gpubox.server.state import load_state
from gpubox.server.supervisor import Supervisor
from gpubox.server.watcher import resting

BUSY_SECONDS = 0.5


async def handle_crash(paths: Paths, slot: str) -> bool:
    """Waits until no other gpubox works on ``slot``, then sees to the death of its server, if it is dead.

    Returns whether it was started again.
    """
    while True:
        view = await _undisturbed(paths, slot)
        dead = view.state.running
        if not view.crashed or dead is None:
            return False
        driver = await asyncio.to_thread(read_driver)
        write_post_mortem(paths, view, driver)
        supervisor = Supervisor(paths, load_config(paths), slot)
        told = cause_of(paths, slot, dead.process).kind is FailureKind.STOPPED
        if restart_refusal(view, driver, has_api_key=api_key(paths) is not None, told=told) is not None:
            return False  # the record stays that of a crash: it says why
        try:
            await supervisor.revive(dead.launch_id)
            return True
        except GpuboxError:
            after = observe(paths, slot)
            if after.operation is None and after.state.running != dead:
                return False  # it was tried, and why it failed is on record
            if after.operation is None and not os.access(paths.instance_state(slot).parent, os.W_OK):
                return False
        await asyncio.sleep(BUSY_SECONDS)


async def _undisturbed(paths: Paths, slot: str) -> InstanceView:
    while (view := observe(paths, slot)).operation is not None:
        await asyncio.sleep(BUSY_SECONDS)
    return view


def _bury(paths: Paths, slot: str) -> None:
    """Takes the exit codes of the dead servers that this watcher started: they are its children still."""
    recorded = load_state(paths.instance_state(slot)).running
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if recorded and recorded.process and recorded.process.pid == ended[0]:
                remember_exit_code(recorded.process, os.waitstatus_to_exitcode(ended[1]))


def main() -> None:
    """``SLOT CONFIG STATE CACHE CONFIG_FILE LOCK died|long``, as ``watcher.resting`` and ``rest.py`` put it."""
    slot, config, state, cache, config_file, lock, what = sys.argv[1:]
    paths = Paths(Path(config), Path(state), Path(cache), Path(config_file) if config_file else None)
    os.set_inheritable(int(lock.removeprefix("fd:")), False)  # no server may inherit it
    if what == "long":
        truncate_log(paths.instance_log(slot))
    else:
        try:
            _bury(paths, slot)
            while asyncio.run(handle_crash(paths, slot)):
                _bury(paths, slot)  # it may have died again before it could be watched
        except Exception:  # nobody reads what it prints
            with contextlib.suppress(OSError):
                (paths.logs / "watcher-error.log").write_text(traceback.format_exc(), encoding="utf-8")
    process = observe(paths, slot).process
    if process:
        os.set_inheritable(int(lock.removeprefix("fd:")), True)
        command = resting(paths, slot, process, lock)
        os.execv(command[0], command)
