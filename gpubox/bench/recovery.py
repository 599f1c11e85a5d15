"""Restores the server that ran before a benchmark, if the benchmark was killed before it could."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from gpubox.bench.events import Emit, ignore_event
from gpubox.bench.model import RunInfo
from gpubox.bench.run_store import Run, list_runs
from gpubox.bench.target_server import TargetServer, started_by_run
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.profiles.profile import Profile
from gpubox.server.instance import InstanceView, observe


def pending_restore(paths: Paths) -> RunInfo | None:
    """The newest killed run whose server, or half-finished switch, is still in place.

    ``None`` if another server was started or stopped since: that was the owner's choice.
    """
    view = observe(paths, MAIN_INSTANCE)
    infos = map(_pending_info, reversed(list_runs(paths)))
    return next((info for info in infos if info and _is_in_place(view, info)), None)


def clear_pending_restores(paths: Paths) -> None:
    """Marks every killed run as restored."""
    for run in list_runs(paths):
        if info := _pending_info(run):
            with contextlib.suppress(GpuboxError), run.owned():
                run.save(replace(info, restore_pending=False))


async def restore(info: RunInfo, paths: Paths, config: Config, emit: Emit = ignore_event) -> str:
    """Restores the server that ran before ``info``'s run. Returns its profile, empty if none ran.

    Raises GpuboxError.
    """
    await TargetServer(paths, config, _no_profile, emit, earlier=info).restore()
    clear_pending_restores(paths)
    running = observe(paths, MAIN_INSTANCE).running
    return running.launch.profile if running else ""


def _pending_info(run: Run) -> RunInfo | None:
    with contextlib.suppress(GpuboxError):
        info = run.info
        return info if info.restore_pending and not run.busy else None
    return None


def _is_in_place(view: InstanceView, info: RunInfo) -> bool:
    if view.operation:
        return False
    if view.running is None:
        return view.state.operation is not None  # killed between stop and start
    return started_by_run(view.running, info)


def _no_profile(name: str) -> Profile:
    raise UsageError(f"Restoring a server does not need the profile {name}.")
