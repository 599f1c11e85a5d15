"""What is true about one instance now: its state file checked against the processes that really run.

An instance is a place for one server: ``main``, or one named like its profile, which is a companion or was started by
the gateway beside others. (llama-server's slots, which share its context among requests, are something else:
``responses.Slot``.)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpubox.clock import utc_now
from gpubox.errors import ExitCode, GpuboxError
from gpubox.hardware.process import ProcessIdentity, boot_id, find_by_marker, is_alive, process_argv
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.log import tail_text
from gpubox.server.server_process import exit_code
from gpubox.server.state import (
    InstanceState,
    Launch,
    Operation,
    RunningServer,
    load_state,
    read_launch_record,
    recent_restarts,
)
from gpubox.storage import file_stamp, lock_holder

if TYPE_CHECKING:
    from gpubox.profiles.profile import Profile
    from gpubox.server.failure_causes import Cause


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance now."""

    instance: str
    running: RunningServer | None
    """The launch whose process is alive."""
    operation: Operation | None
    """What a living gpubox is doing to the instance."""
    message: str
    """Why nothing runs, or what was interrupted; empty if all is well."""
    crashed: bool
    state: InstanceState
    """The state file as it was read."""

    @property
    def process(self) -> ProcessIdentity | None:
        return self.running.process if self.running else None

    @property
    def interrupted(self) -> Operation | None:
        """The killed operation whose servers shall come back. After a reboot none does."""
        last = None if self.operation else self.state.operation
        return last if last and last.replaces and last.owner.boot_id == boot_id() else None

    @property
    def watched(self) -> ProcessIdentity | None:
        """Whose end the watcher waits for: the gpubox that replaces the server, dead or alive; else the server."""
        operation = self.operation or self.interrupted
        return operation.owner if operation and operation.replaces else self.process


def observe(paths: Paths, instance: str) -> InstanceView:
    """The view of ``instance``. Changes nothing on disk."""
    state = load_state(paths.instance_state(instance))
    operation = state.operation if state.operation and is_alive(state.operation.owner) else None
    running = _find_running(paths, instance, state)
    message, crashed = "", False
    if running is None:
        message, crashed = _why_gone(paths, instance, state, operation)
    elif state.operation and not operation and running.ready_at is None:
        message = f"The gpubox that started it has exited (at the step {state.operation.step!r})."
    elif running.note:
        message = running.note
    elif restarts := recent_restarts(state):
        times = "once" if len(restarts) == 1 else f"{len(restarts)} times"
        message = f"It died {times} recently and was restarted; `gpubox logs --failed` shows the last log."
    return InstanceView(instance, running, operation, message, crashed, state)


def instance_names(paths: Paths) -> list[str]:
    """The instances that have a state file."""
    return sorted(path.stem for path in paths.instance_state("x").parent.glob("*.json"))


def find_instance(paths: Paths, profile: str) -> str | None:
    """The instance in which a server of ``profile`` runs; temporary ones do not count."""
    for instance in instance_names(paths):
        running = observe(paths, instance).running
        if running and running.launch.profile == profile and not instance.startswith("~"):
            return instance
    return None


def place_of(profile: Profile, own: RunningServer | None) -> str:
    """The instance in which a verb starts, restarts or replaces ``profile``.

    A companion has one of its own, and so has a profile that the gateway has started beside others. All others share
    the main one. ``own``: the server that runs in the instance named like the profile.
    """
    is_own = profile.companion or (own is not None and own.launch.profile == profile.name)
    return profile.name if is_own else MAIN_INSTANCE


def running_servers(paths: Paths, *instances: str) -> tuple[RunningServer, ...]:
    """The servers that run in ``instances``."""
    return tuple(running for name in instances if (running := observe(paths, name).running))


def check_not_running(profile: str, paths: Paths, consequence: str) -> None:
    """Raises GpuboxError if a server of ``profile`` runs: its file is needed to restart it."""
    views = (observe(paths, instance) for instance in instance_names(paths))
    if any(view.running and view.running.launch.profile == profile for view in views):
        raise GpuboxError(f"{profile} is running, so it {consequence}.", "Stop it first: gpubox stop.")


def launch_marker(paths: Paths, instance: str, running: RunningServer) -> str:
    """The value of MARKER_VARIABLE in the environment of ``running``."""
    return f"{paths.state}|{instance}|{running.launch.profile}|{running.launch_id}"


def _find_running(paths: Paths, instance: str, state: InstanceState) -> RunningServer | None:
    recorded = state.running
    if recorded and is_alive(recorded.process):
        return recorded
    if lock_holder(paths.liveness_lock(instance)) is None:
        return None
    # A server holds the lock, but is not on record: gpubox died between the fork and the record, or the disk refused
    # the record. The marker in the server's environment says which launch it is.
    marked = find_by_marker(f"{paths.state}|{instance}|")
    for identity, marker in marked:
        if recorded and marker == launch_marker(paths, instance, recorded):
            return replace(recorded, process=identity)
    for identity, marker in marked:
        _, _, profile, launch_id = marker.rsplit("|", 3)  # from the right: the state folder may contain a bar
        return RunningServer(_launch_from_argv(identity.pid, profile), launch_id, utc_now(), identity)
    return None


def failed_log(paths: Paths, instance: str) -> tuple[Path, str]:
    """The log of the instance's last launch that failed or crashed, and what happened. Raises GpuboxError."""
    view = observe(paths, instance)
    if view.crashed:  # nothing was started since then, so the log was not rotated
        return paths.instance_log(instance), view.message
    path, failure = paths.failed_log(instance), view.state.failed
    if failure is None or not path.exists():
        raise GpuboxError("No start has failed, and no server has died.", code=ExitCode.NOT_RUNNING)
    return path, f"{failure.profile}, {failure.at}: {failure.sentence}."


def cause_of(paths: Paths, instance: str, process: ProcessIdentity | None) -> Cause:
    """Why the instance's dead server died. Cached until the log changes."""
    path = paths.instance_log(instance)
    code, record = exit_code(process) if process else None, read_launch_record(path)
    seen = record if record and record.process == process else None
    code = code if code is not None or seen is None else seen.exit_code
    return _cached_cause(path, file_stamp(path), code, seen is not None and seen.out_of_memory)


@lru_cache(maxsize=8)
def _cached_cause(path: Path, stamp: tuple[int, ...], code: int | None, out_of_memory: bool) -> Cause:
    from gpubox.server.failure_causes import find_cause  # `status` of a living server must not pay its 5 ms

    return find_cause(tail_text(path), code, out_of_memory=out_of_memory)


def _launch_from_argv(pid: int, profile: str) -> Launch:
    argv = process_argv(pid)

    def value_of(name: str, default: str) -> str:
        return argv[argv.index(name) + 1] if name in argv[:-1] else default

    port = value_of("--port", "8080")
    return Launch(
        profile=profile,
        argv=tuple(argv),
        host=value_of("--host", "127.0.0.1"),
        port=int(port) if port.isdecimal() else 8080,
        engine_path=argv[0] if argv else "",
        model_path=value_of("--model", "") or None,
    )


def _why_gone(paths: Paths, instance: str, state: InstanceState, operation: Operation | None) -> tuple[str, bool]:
    """Why nothing runs, and whether that was a crash."""
    if operation:
        return "", False
    interrupted = state.operation
    if interrupted:
        hint = f" `gpubox start {state.last_good.profile}` starts it again." if state.last_good else ""
        name = f"{interrupted.kind} {'to' if interrupted.kind == 'switch' else 'of'} {interrupted.profile}"
        name = name if interrupted.profile else interrupted.kind
        return f"A {name} was interrupted at the step {interrupted.step!r}; nothing runs.{hint}", False
    if state.running is None:
        return state.message, False
    profile = state.running.launch.profile
    if state.running.process and state.running.process.boot_id not in ("", boot_id()):
        return f"The machine was rebooted; {profile} is not running.", False
    folder = paths.instance_state(instance).parent
    if not os.access(folder, os.W_OK):  # also false for root on a read-only mount
        return f"{profile} is gone. Whether it was stopped or died is unknown: {folder} cannot be written.", False
    cause = cause_of(paths, instance, state.running.process)
    return f"{profile} died: {cause.sentence}. {cause.hint}".rstrip(), True
