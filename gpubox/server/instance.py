"""The truth about one slot: the state file checked against the processes that really run."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.clock import utc_now
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.process import ProcessIdentity, boot_id, find_by_marker, is_alive, process_argv
from gpubox.paths import Paths
from gpubox.server.log import tail_text
from gpubox.server.server_process import exit_code, is_liveness_lock_held, launch_marker
from gpubox.server.state import InstanceState, Launch, Operation, RunningServer, load_state, recent_restarts

if TYPE_CHECKING:
    from gpubox.server.failure_causes import Cause


@dataclass(frozen=True, slots=True)
class InstanceView:
    """What is so now. Read only: looking changes nothing on disk."""

    slot: str
    running: RunningServer | None
    """The launch whose process lives."""
    operation: Operation | None
    """What a living gpubox is doing to the slot."""
    message: str
    """Why nothing runs, or what was cut off; empty when all is well."""
    crashed: bool
    state: InstanceState
    """The file as it stood."""

    @property
    def process(self) -> ProcessIdentity | None:
        return self.running.process if self.running else None


def observe(paths: Paths, slot: str) -> InstanceView:
    """The view of ``slot``: finds its server by identity, or by its marker where the record was cut off."""
    state = load_state(paths.instance_state(slot))
    operation = state.operation if state.operation and is_alive(state.operation.owner) else None
    running = _living(paths, slot, state)
    message, crashed = "", False
    if running is None:
        message, crashed = _why_gone(paths, slot, state, operation)
    elif state.operation and not operation and running.ready_at is None:
        message = f"The gpubox that started it is gone (it was at {state.operation.step!r})."
    elif restarts := recent_restarts(state):
        times = "once" if len(restarts) == 1 else f"{len(restarts)} times"
        message = f"It died {times} lately and was started again; `gpubox logs --failed` shows the last time."
    return InstanceView(slot, running, operation, message, crashed, state)


def instance_names(paths: Paths) -> list[str]:
    """The slots that have a state file."""
    folder = paths.instance_state("x").parent
    return sorted(path.stem for path in folder.glob("*.json"))


def launch_marker_of(paths: Paths, slot: str, running: RunningServer) -> str:
    """The marker that ``running`` was started with."""
    return launch_marker(paths.state, slot, running.launch.profile, running.launch_id)


def _living(paths: Paths, slot: str, state: InstanceState) -> RunningServer | None:
    recorded = state.running
    if recorded and is_alive(recorded.process):
        return recorded
    if not is_liveness_lock_held(paths.slot_life(slot)):
        return None
    # gpubox died between the fork and the record, or the disk refused the record: the lock that the server holds
    # as long as it lives says that there is one, and its marker which.
    found = find_by_marker(f"{paths.state}|{slot}|")
    for identity, mark in found:
        if recorded and mark == launch_marker_of(paths, slot, recorded):
            return replace(recorded, process=identity)
    for identity, mark in found:
        _, _, profile, launch_id = mark.rsplit("|", 3)  # from the right: the state folder may hold a bar
        return RunningServer(_launch_from(identity.pid, profile), launch_id, utc_now(), identity)
    return None


def failed_log(paths: Paths, slot: str) -> tuple[Path, str]:
    """The log of the slot's last launch that failed or died, and what it was. Raises GpuboxError."""
    view = observe(paths, slot)
    if view.crashed:  # nothing was started since: its log still stands in its place
        return paths.instance_log(slot), view.message
    path, failure = paths.failed_log(slot), view.state.failed
    if failure is None or not path.exists():
        raise GpuboxError("No start has failed here, and no server died.", code=ExitCode.NOT_RUNNING)
    return path, f"{failure.profile}, {failure.at}: {failure.sentence}."


def cause_of(paths: Paths, slot: str, process: ProcessIdentity | None) -> Cause:
    """Why the slot's dead server died; found anew only when its log has changed."""
    path = paths.instance_log(slot)
    try:
        found = path.stat()
        stamp = (found.st_mtime_ns, found.st_size)
    except OSError:
        stamp = (0, 0)
    return _cause_of(path, stamp, exit_code(process) if process else None)


@lru_cache(maxsize=8)
def _cause_of(path: Path, stamp: tuple[int, int], code: int | None) -> Cause:
    from gpubox.server.failure_causes import find_cause  # 5 ms of each `status` whose server lives

    return find_cause(tail_text(path), code)


def _launch_from(pid: int, profile: str) -> Launch:
    argv = process_argv(pid)

    def after(name: str, default: str) -> str:
        return argv[argv.index(name) + 1] if name in argv[:-1] else default

    port = after("--port", "8080")
    return Launch(
        profile=profile,
        argv=tuple(argv),
        host=after("--host", "127.0.0.1"),
        port=int(port) if port.isdecimal() else 8080,
        engine_path=argv[0] if argv else "",
        model_path=after("--model", "") or None,
    )


def _why_gone(paths: Paths, slot: str, state: InstanceState, operation: Operation | None) -> tuple[str, bool]:
    if operation:
        return "", False
    cut = state.operation
    if cut:
        back = f" `gpubox start {state.last_good.profile}` brings it back." if state.last_good else ""
        what = f"{cut.kind} {'to' if cut.kind == 'switch' else 'of'} {cut.profile}" if cut.profile else cut.kind
        return f"A {what} was cut off at {cut.step!r}; nothing runs.{back}", False
    if state.running is None:
        return state.message, False
    name = state.running.launch.profile
    if state.running.process and state.running.process.boot_id not in ("", boot_id()):
        return f"The machine was restarted; {name} is not running.", False
    folder = paths.instance_state(slot).parent
    if not os.access(folder, os.W_OK):  # also of a folder on a read-only mount, also for root
        return f"{name} is gone. Whether it was stopped or died is not on record: {folder} cannot be written.", False
    cause = cause_of(paths, slot, state.running.process)
    return f"{name} died: {cause.sentence}.", True
