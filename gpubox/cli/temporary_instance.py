"""A server instance for one command: no other gpubox uses it, and its files are removed at the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpubox.cli import diagnostics
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.planner.supervisors import make_supervisor
from gpubox.server.supervisor import Supervisor
from gpubox.storage import lock_file

PREFIX = "~once-"
"""No profile can have such a name, so no companion's instance has it."""


@contextmanager
def temporary_instance(paths: Paths) -> Iterator[str]:
    """The name of an instance that only this process uses. A lock marks it, which ends with the process."""
    instance = f"{PREFIX}{os.getpid()}"
    with _locked(paths, instance) as locked:
        if not locked:
            raise GpuboxError(f"The instance {instance} is in use.")  # a gpubox with this pid in another container
        yield instance


async def remove_abandoned_instances(paths: Paths, config: Config) -> None:
    """Stops the servers of killed commands and removes their files."""
    folder = paths.instance_state("x").parent
    for instance in sorted({path.stem for path in folder.glob(f"{PREFIX}*.*")}):
        with _locked(paths, instance) as abandoned:
            if abandoned:
                await stop_and_remove(make_supervisor(paths, config, instance))


async def stop_and_remove(supervisor: Supervisor) -> None:
    """Stops the server and removes the instance's files. An interrupt waits until that is done. Raises GpuboxError."""
    task = asyncio.ensure_future(_stop_and_remove(supervisor))
    interrupted = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            interrupted = True
        except GpuboxError:
            break
    task.result()
    if interrupted:
        raise asyncio.CancelledError


async def stop_and_remove_after_failure(supervisor: Supervisor) -> None:
    """Like ``stop_and_remove``, but only notes an error: the caller raises the first one."""
    try:
        await stop_and_remove(supervisor)
    except asyncio.CancelledError:
        return  # a second interrupt; everything is removed
    except (GpuboxError, OSError) as error:
        diagnostics.note(f"  ! The files of {supervisor.instance} were not removed: {error}")


async def _stop_and_remove(supervisor: Supervisor) -> None:
    await supervisor.stop()
    paths, instance = supervisor.paths, supervisor.instance
    logs = paths.logs.glob(f"{paths.instance_log(instance).name}*")
    state = paths.instance_state(instance)
    states = state.parent.glob(f"{state.name}*")  # a kill during a write leaves a temporary file beside it
    for path in (*states, paths.instance_lock(instance), paths.liveness_lock(instance), *logs):
        path.unlink(missing_ok=True)


@contextmanager
def _locked(paths: Paths, instance: str) -> Iterator[bool]:
    """Locks ``instance`` inside the block and removes the lock file afterwards; ``False`` if it is locked already."""
    path = paths.instance_state(instance).with_suffix(".run")
    try:
        while (descriptor := lock_file(path)) is not None and not _is_same_file(path, descriptor):
            os.close(descriptor)  # its former owner removed it: a lock on a removed file protects nothing
    except OSError as error:
        raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
