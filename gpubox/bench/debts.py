"""Runs that were killed before the box was as it had been: who comes next settles what they owe."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from gpubox.bench.events import Emit, silent
from gpubox.bench.model import RunInfo
from gpubox.bench.stand import Stand, borrowers_of, is_lent
from gpubox.bench.store import Run, list_runs
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import MAIN_SLOT, Paths
from gpubox.profiles.model import Profile
from gpubox.server.slot import SlotView, observe


def debt(paths: Paths) -> RunInfo | None:
    """The last run that was cut off with its server, or half of it, still in the place of what ran before.

    ``None`` where another server was started or stopped since: that is the owner's choice.
    """
    view = observe(paths, MAIN_SLOT)
    return next((info for info in map(_owing, reversed(list_runs(paths))) if info and _left_behind(view, info)), None)


def settled(paths: Paths) -> None:
    """The box is as it was: runs that were cut off owe nothing any more."""
    for run in list_runs(paths):
        if info := _owing(run):
            with contextlib.suppress(GpuboxError), run.owned():
                run.save(replace(info, owed=False))


async def give_back(info: RunInfo, paths: Paths, config: Config, emit: Emit = silent) -> str:
    """What ran before ``info``'s run runs again. Returns the profile, empty where nothing ran. Raises GpuboxError."""
    borrowers = borrowers_of(info.plan)
    stand = Stand(
        paths, config, _no_profile, emit, before=info.before, owed=info.owed, lent=info.lent, borrowers=borrowers
    )
    await stand.give_back()
    settled(paths)
    running = observe(paths, MAIN_SLOT).running
    return running.launch.profile if running else ""


def _owing(run: Run) -> RunInfo | None:
    with contextlib.suppress(GpuboxError):
        info = run.info
        return info if info.owed and not run.busy else None
    return None


def _left_behind(view: SlotView, info: RunInfo) -> bool:
    if view.operation:
        return False
    if view.running is None:
        return view.state.operation is not None  # cut off between stop and start
    return is_lent(view.running, info.lent, borrowers_of(info.plan))


def _no_profile(name: str) -> Profile:
    raise UsageError(f"{name} is not needed to give the box back.")
