"""A slot for one run alone: no other gpubox shares it, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpubox.cli import diagnostics
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.paths import Paths
from gpubox.server.supervisor import Supervisor
from gpubox.storage import lock_file

PREFIX = "~once-"
"""No profile can be called so, and therefore no companion's slot is."""


@contextmanager
def temporary_instance(paths: Paths) -> Iterator[str]:
    """A slot of this process, held by a lock that ends with it, however it ends."""
    slot = f"{PREFIX}{os.getpid()}"
    with _held(paths, slot) as mine:
        if not mine:
            raise GpuboxError(f"The slot {slot} is in use.")  # another container's gpubox with this pid
        yield slot


async def remove_abandoned_instances(paths: Paths, config: Config) -> None:
    """Stops the servers of runs that are gone and removes their files; those of living runs are left alone."""
    folder = paths.instance_state("x").parent
    for slot in sorted({path.stem for path in folder.glob(f"{PREFIX}*.*")}):
        with _held(paths, slot) as dead:
            if dead:
                await stop_and_remove(Supervisor(paths, config, slot))


async def stop_and_remove(supervisor: Supervisor) -> None:
    """Stops the server and removes the slot's files. Interrupts wait until it is done. Raises GpuboxError."""
    await _surely(_end(supervisor))


async def _end(supervisor: Supervisor) -> None:
    await supervisor.stop()
    paths, slot = supervisor.paths, supervisor.slot
    logs = paths.logs.glob(f"{paths.instance_log(slot).name}*")
    state = paths.instance_state(slot)
    states = state.parent.glob(f"{state.name}*")  # who is killed while it writes one leaves it half written beside
    for path in (*states, paths.instance_lock(slot), paths.slot_life(slot), *logs):
        path.unlink(missing_ok=True)


async def stop_and_remove_after_failure(supervisor: Supervisor) -> None:
    """As ``stop_and_remove`` where something else failed already: that is what the owner should read."""
    try:
        await stop_and_remove(supervisor)
    except asyncio.CancelledError:
        return  # interrupted once more, and it is done
    except (GpuboxError, OSError) as error:
        diagnostics.note(f"  ! {supervisor.slot} is not cleared away: {error}")


async def _surely(work: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.ensure_future(work)
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


@contextmanager
def _held(paths: Paths, slot: str) -> Iterator[bool]:
    """Whether nobody else holds ``slot``; it is held inside the block and its lock file removed at the end."""
    path = paths.instance_state(slot).with_suffix(".run")
    while True:
        try:
            descriptor = lock_file(path)
        except OSError as error:
            raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None
        if descriptor is None:
            yield False
            return
        try:
            if not _is(path, descriptor):
                continue  # it was removed by who held it before: a lock that nobody can find holds nothing
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _is(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
