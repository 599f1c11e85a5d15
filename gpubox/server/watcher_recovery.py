"""The acting part of the watcher (see ``watcher.py``): after a crash it writes the post-mortem and may restart.
After a kill of gpubox it ends what that had begun: a trial is reverted, a half-done operation brought to its end.

It decides under the instance's lock, from the state file. A server that gpubox stopped is not recorded as running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback

from gpubox.config import Config, load_config
from gpubox.errors import GpuboxError
from gpubox.hardware.nvml import read_driver
from gpubox.hardware.process import is_alive
from gpubox.paths import Paths
from gpubox.server.crash_recovery import restart_refusal, write_post_mortem
from gpubox.server.held_instance import InstanceBusy
from gpubox.server.instance import InstanceView, observe
from gpubox.server.log_truncation import truncate_log
from gpubox.server.server_process import remember_exit_code
from gpubox.server.state import load_state, pending_trial
from gpubox.server.supervisor import Supervisor
from gpubox.server.trial import recover_trial
from gpubox.server.watcher import idle_command
from gpubox.storage import is_locked, write_atomically

BUSY_SECONDS = 0.5


async def handle_deaths(paths: Paths, instance: str) -> InstanceView | None:
    """Waits until no other gpubox works on ``instance``, then ends what a killed one has left half done; while its
    server is dead, writes the post-mortem and may restart it.

    Returns the view from which it is watched. Its server was alive when it was last looked at, and may have died since:
    to look again here would lose that death. ``None``: nothing can be done.
    """
    while True:
        _reap_children(paths, instance)  # a server that was restarted here may be dead already
        while (view := observe(paths, instance)).operation is not None:
            await asyncio.sleep(BUSY_SECONDS)
        supervisor = Supervisor(paths, _config(paths), instance, gives_way=True)
        trial = pending_trial(paths)
        reverts = trial is not None and trial.instance == instance and not is_alive(trial.owner)
        if reverts or view.interrupted:
            try:
                await (recover_trial(paths, supervisor.config) if reverts else supervisor.recover())
            except InstanceBusy:
                await asyncio.sleep(BUSY_SECONDS)
                continue
            except (GpuboxError, OSError):
                pass  # the record says why, unless nothing can be recorded
            unchanged = (pending_trial(paths), observe(paths, instance).interrupted) == (trial, view.interrupted)
            if unchanged and not (reverts and is_locked(paths.trial_lock)):
                return None  # it can be neither ended nor forgotten: to go on would be for ever
            continue
        dead = view.state.running
        if not view.crashed or dead is None:
            return view
        driver = await asyncio.to_thread(read_driver)
        write_post_mortem(paths, view, driver)
        if restart_refusal(paths, view, driver) is not None:
            view = observe(paths, instance)
            return view if view.running else None  # the record stays that of a crash, with its cause
        try:
            await supervisor.restart_crashed(dead.launch_id)
            continue
        except GpuboxError:
            after = observe(paths, instance)
            if after.operation is None and after.state.running != dead:
                return after  # the restart failed, and the record says why
            if after.operation is None and not os.access(paths.instance_state(instance).parent, os.W_OK):
                return None
        await asyncio.sleep(BUSY_SECONDS)


def _config(paths: Paths) -> Config:
    """A mistake in config.toml keeps no server down."""
    try:
        return load_config(paths)
    except GpuboxError:
        return Config()


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
    if event == "long":
        truncate_log(paths.instance_log(instance))
    view: InstanceView | None
    try:
        view = asyncio.run(handle_deaths(paths, instance))
    except Exception:  # nobody sees the output of the watcher
        with contextlib.suppress(OSError):
            write_atomically(paths.logs / "watcher-error.log", traceback.format_exc().encode(errors="replace"))
        view = observe(paths, instance)
        view = view if is_alive(view.watched) and not pending_trial(paths) else None  # else it would fail for ever
    if view and (command := idle_command(paths, instance, view.watched, lock)):
        os.set_inheritable(int(lock.removeprefix("fd:")), True)
        os.execv(command[0], command)
