"""Runs that were killed before the box was as it had been: who comes next settles what they on_restore_point."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from gpubox.bench.events import Emit, ignore_event
from gpubox.bench.model import RunInfo
from gpubox.bench.run_store import Run, list_runs
from gpubox.bench.target_server import TargetServer, started_by_run, target_profiles_of
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.server.instance import InstanceView, observe


def pending_restore(paths: Paths) -> RunInfo | None:
    """The last run that was cut off with its server, or half of it, still in the place of what ran before.

    ``None`` where another server was started or stopped since: that is the owner's choice.
    """
    view = observe(paths, MAIN_INSTANCE)
    return next((info for info in map(_owing, reversed(list_runs(paths))) if info and _left_behind(view, info)), None)


def clear_pending_restores(paths: Paths) -> None:
    """The box is as it was: runs that were cut off on_restore_point nothing any more."""
    for run in list_runs(paths):
        if info := _owing(run):
            with contextlib.suppress(GpuboxError), run.owned():
                run.save(replace(info, restore_pending=False))


async def restore(info: RunInfo, paths: Paths, config: Config, emit: Emit = ignore_event) -> str:
    """What ran before ``info``'s run runs again. Returns the profile, empty where nothing ran. Raises GpuboxError."""
    target_profiles = target_profiles_of(info.plan)
    target_server = TargetServer(
        paths,
        config,
        _no_profile,
        emit,
        before=info.before,
        restore_pending=info.restore_pending,
        applied_argv=info.applied_argv,
        target_profiles=target_profiles,
    )
    await target_server.restore()
    clear_pending_restores(paths)
    running = observe(paths, MAIN_INSTANCE).running
    return running.launch.profile if running else ""


def _owing(run: Run) -> RunInfo | None:
    with contextlib.suppress(GpuboxError):
        info = run.info
        return info if info.restore_pending and not run.busy else None
    return None


def _left_behind(view: InstanceView, info: RunInfo) -> bool:
    if view.operation:
        return False
    if view.running is None:
        return view.state.operation is not None  # cut off between stop and start
    return started_by_run(view.running, info.applied_argv, target_profiles_of(info.plan))


def _no_profile(name: str) -> Profile:
    raise UsageError(f"{name} is not needed to give the box back.")
