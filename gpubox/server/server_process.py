"""Starting and ending the server process. One launch, one process group, one marker, one lock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gpubox.errors import GpuboxError
from gpubox.hardware.process import MARKER_VARIABLE, ProcessIdentity, find_by_marker, identity_of, is_alive
from gpubox.server.state import Launch
from gpubox.storage import lock_file, lock_holder

POLL_SECONDS = 0.02
IMMEDIATE_STOP_SECONDS = 1.0
"""The grace of a server whose requests are to be cut off: llama-server otherwise answers them first (build 11434)."""
KILL_SECONDS = 15.0
"""How long the kernel may take to bury a killed process: a driver gives back tens of GiB first."""
_children: dict[int, subprocess.Popen[bytes]] = {}
"""The servers this very process started: only a parent can see an exit code, and must reap."""
_started: dict[int, ProcessIdentity] = {}
_exits: dict[ProcessIdentity, int] = {}
"""How the reaped ones ended: the reason is asked for after the reaping."""


def launch_marker(state: Path, slot: str, profile: str, launch_id: str) -> str:
    """What the environment of a launch carries; a prefix of it finds all launches of a slot."""
    return f"{state}|{slot}|{profile}|{launch_id}"


def spawn_server(launch: Launch, *, log: Path, life: Path, mark: str, key: str | None) -> ProcessIdentity:
    """Starts ``launch`` detached in its own session, its output appended to ``log``.

    The child inherits a lock on ``life`` and holds it for as long as it lives, so that no second server of
    the slot can start, whatever happened to gpubox. Raises GpuboxError when it cannot start.
    """
    env = {**os.environ, **launch.env, MARKER_VARIABLE: mark}
    if key:
        env["LLAMA_API_KEY"] = key
    with _life_lock(life) as lock, _appended(log) as output:
        try:
            child = subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=Path.home() if Path.home().is_dir() else "/",
                start_new_session=True,
                pass_fds=(lock,),
            )
        except OSError as error:
            raise GpuboxError(f"{launch.argv[0]} cannot be started: {error.strerror}.") from None
    _children[child.pid] = child
    # A child that is already dead has no identity any more; one that cannot match stands for it.
    _started[child.pid] = identity_of(child.pid) or ProcessIdentity(child.pid, -1, "")
    return _started[child.pid]


def exit_code(process: ProcessIdentity) -> int | None:
    """The exit code of a dead server (negative: the signal); ``None`` when this gpubox was not its parent."""
    child = _children.get(process.pid)
    if child is None:
        return _exits.get(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(timeout=1.0)
    return None


def remember_exit_code(process: ProcessIdentity, code: int) -> None:
    """Remembers how ``process`` ended, for who learnt it another way."""
    _exits[process] = code


def reap_servers() -> None:
    """Collects the servers of ours that ended, so that no zombie is left under a long-running screen."""
    for pid, child in list(_children.items()):
        if (code := child.poll()) is not None:
            del _children[pid]
            _exits[_started.pop(pid)] = code


async def terminate_server(process: ProcessIdentity, mark: str, grace: float) -> str:
    """Ends a server: one SIGTERM, ``grace`` seconds, then SIGKILL to whatever still carries its marker.

    Never a second SIGTERM: llama-server deadlocks on it (research, build 11434). Returns how it went.
    Raises GpuboxError where it does not die.
    """
    began = time.monotonic()
    _signal(process, signal.SIGTERM)
    while is_alive(process) and time.monotonic() - began < grace:
        await asyncio.sleep(POLL_SECONDS)
    how = f"SIGKILL, it did not leave in {grace:g} s" if is_alive(process) else ""
    _signal(process, signal.SIGKILL)
    for leftover, _ in find_by_marker(mark):
        _signal(leftover, signal.SIGKILL)
    while is_alive(process) and time.monotonic() - began < grace + KILL_SECONDS:
        await asyncio.sleep(POLL_SECONDS)
    if is_alive(process):
        raise GpuboxError(
            f"The server (pid {process.pid}) does not die, not even of SIGKILL.",
            "It hangs in the driver: `dmesg` may say why; a reboot frees it.",
        )
    exit_code(process)
    return how


def _signal(process: ProcessIdentity, number: int) -> None:
    if is_alive(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            raise GpuboxError(
                f"The server (pid {process.pid}) belongs to another user.", "Stop it as the user who started it."
            ) from None


def _appended(log: Path) -> BinaryIO:
    try:
        return log.open("ab")
    except OSError as error:
        raise GpuboxError(f"The log {log} cannot be written: {error.strerror}.") from None


def is_liveness_lock_held(path: Path) -> bool:
    """Whether some process holds the life lock ``path``."""
    return lock_holder(path) is not None


@contextmanager
def _life_lock(path: Path) -> Iterator[int]:
    try:
        descriptor = lock_file(path)
    except OSError as error:
        raise GpuboxError(f"{path} cannot be written: {error.strerror}.") from None
    if descriptor is None:
        raise GpuboxError("A server that gpubox started still runs in this slot.", "`gpubox stop`, then try again.")
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # the child's copy keeps the lock
