"""The acting part of the watcher (see ``watcher.py``): after a crash it writes the post-mortem and may restart.
After a kill of gpubox it ends what that had begun: a trial is reverted, a half-done operation brought to its end.

It decides under the instance's lock, from the state file. A server that gpubox stopped is not recorded as running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gpubox import units
from gpubox.clock import utc_now
from gpubox.config import Config, api_key, load_config
from gpubox.errors import GpuboxError
from gpubox.hardware.gpu import DriverReading
from gpubox.hardware.nvml import read_driver
from gpubox.hardware.process import is_alive, killed_for_memory
from gpubox.notify import notify
from gpubox.paths import Paths
from gpubox.profiles.argv import command_line
from gpubox.profiles.profile import is_loopback
from gpubox.server.failure_causes import FailureKind
from gpubox.server.held_instance import InstanceBusy
from gpubox.server.instance import InstanceView, cause_of, observe
from gpubox.server.log import fold_repeats, tail_text, truncate_log
from gpubox.server.server_process import remember_exit_code
from gpubox.server.state import (
    RESTART_SECONDS,
    RunningServer,
    load_state,
    pending_trial,
    read_launch_record,
    recent_restarts,
    save_launch_record,
)
from gpubox.server.supervisor import Supervisor
from gpubox.server.trial import recover_trial
from gpubox.server.watcher import idle_command
from gpubox.storage import is_locked, write_atomically

MAX_RESTARTS = 3
LAST_LINES = 60
LOG_BYTES = 4 * 1024 * 1024


def write_post_mortem(paths: Paths, view: InstanceView, driver: DriverReading, last_minute: str = "") -> Path | None:
    """Writes how the instance's server died, once for each launch. Returns the file; ``None`` if no server died.

    ``last_minute``: readings of the last minute as text. The file contains no API key, because neither command line
    nor log does. Never raises OSError.
    """
    dead = view.state.running
    if not view.crashed or dead is None:
        return None
    path = paths.crashes / f"{dead.launch.profile}-{dead.launch_id[:8]}.txt"
    if path.exists():
        return path
    try:
        write_atomically(path, _post_mortem(paths, view, dead, driver, last_minute).encode(errors="replace"))
    except OSError:
        return None
    return path


def _post_mortem(paths: Paths, view: InstanceView, dead: RunningServer, driver: DriverReading, last_minute: str) -> str:
    cause = cause_of(paths, view.instance, dead.process)
    cards = []
    for gpu in driver.gpus:
        used = f"{units.memory(gpu.vram_used_bytes)} of {units.memory(gpu.vram_total_bytes)} in use"
        cards.append(f"GPU {gpu.index} {gpu.name or ''}".rstrip() + f": {'LOST' if gpu.lost else used}")
    log = tail_text(paths.instance_log(view.instance), LOG_BYTES)
    parts = [
        f"{dead.launch.profile} died. Noticed {utc_now()}; started {dead.started_at}.",
        f"Cause: {cause.sentence}. {cause.hint}".rstrip(),
        f"Log line: {cause.line}" if cause.line else "",
        f"Engine: {dead.launch.engine_path} {dead.launch.engine_version}",
        f"Command: {command_line(dead.launch.argv)}",
        "\n".join([*cards, driver.problem]).strip(),
        last_minute,
        f"The last {LAST_LINES} lines of its log:",
        "\n".join(list(fold_repeats(log.splitlines()))[-LAST_LINES:]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def restart_refusal(paths: Paths, view: InstanceView, driver: DriverReading, at: datetime | None = None) -> str | None:
    """Why the dead server is not restarted; ``""`` if none died or its profile wants no restart. ``None``: restart it.

    Raises GpuboxError if the key file cannot be used.
    """
    dead = view.state.running
    if not view.crashed or dead is None or not dead.launch.restart:
        return ""
    if any(gpu.lost for gpu in driver.gpus):
        return "It is not restarted: a GPU is lost."
    if cause_of(paths, view.instance, dead.process).kind is FailureKind.STOPPED:
        return "It is not restarted: it was stopped from outside gpubox."
    if dead.has_api_key and api_key(paths) is None and not is_loopback(dead.launch.host):
        return "It is not restarted: it was started with an API key that gpubox no longer has."
    if len(recent_restarts(view.state, at)) >= MAX_RESTARTS:
        return f"It is not restarted: it died {MAX_RESTARTS} times in {RESTART_SECONDS // 60} minutes."
    return None


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
        refusal = restart_refusal(paths, view, driver)
        _tell(paths, dead, cause_of(paths, instance, dead.process).sentence, refusal)
        if refusal is not None:
            view = observe(paths, instance)
            return view if view.running else None  # the record stays that of a crash, with its cause
        try:
            await supervisor.restart_crashed(dead.launch_id)
            continue
        except GpuboxError as error:
            after = observe(paths, instance)
            if after.operation is None and after.state.running != dead:
                _tell(paths, dead, "it could not be restarted", error.message)
                return after  # the restart failed, and the record says why
            if after.operation is None and not os.access(paths.instance_state(instance).parent, os.W_OK):
                return None
        await asyncio.sleep(BUSY_SECONDS)


def _tell(paths: Paths, dead: RunningServer, why: str, after: str | None) -> None:
    """Has the owner told of a death, once for each launch, and of a restart that failed."""
    name = dead.launch.profile
    text = f"{name} died: {why}. {'It is restarted.' if after is None else after}".rstrip()
    notify(paths, "crash", f"{name} died", text, profile=name, once=f"{dead.launch_id} {why}")


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
                code = os.waitstatus_to_exitcode(ended[1])
                remember_exit_code(recorded.process, code)
                note_death(paths, instance, recorded.process.pid, recorded.process.start_ticks, code)


def note_death(paths: Paths, instance: str, pid: int, ticks: int, code: int) -> None:
    """Writes beside its log how a server ended, which only its watcher has seen."""
    log = paths.instance_log(instance)
    dead = read_launch_record(log)
    if dead and dead.process and (dead.process.pid, dead.process.start_ticks) == (pid, ticks):
        out_of_memory = code == -signal.SIGKILL and killed_for_memory(dead.process)
        save_launch_record(log, replace(dead, exit_code=code, out_of_memory=out_of_memory))


def main() -> None:
    """Arguments: ``INSTANCE CONFIG STATE CACHE CONFIG_FILE LOCK EVENT``, from ``watcher.idle_command``."""
    instance, *folders, lock, event = sys.argv[1:]
    paths = Paths.from_arguments(*folders)
    os.set_inheritable(int(lock.removeprefix("fd:")), False)  # no server may inherit it
    if event == "long":
        truncate_log(paths.instance_log(instance))
    if event.startswith("died:"):
        note_death(paths, instance, *map(int, event.split(":")[1:]))
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
