"""Starts and ends the server process. Each launch is one process group with one marker and one lock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gpubox import units
from gpubox.children import engine_environment
from gpubox.clock import AwakeTime
from gpubox.errors import GpuboxError
from gpubox.hardware.nvml import read_driver, vram_used
from gpubox.hardware.process import (
    MARKER_VARIABLE,
    ProcessIdentity,
    find_by_marker,
    identity_of,
    is_alive,
    thread_states,
)
from gpubox.server.state import Launch
from gpubox.storage import held_lock, open_private

POLL_SECONDS = 0.005
IMMEDIATE_STOP_SECONDS = 1.0
"""Grace when requests are to be aborted. After SIGTERM llama-server (build 11434) first finishes its requests."""
KILL_SECONDS = 15.0
"""How long a killed process may take to disappear: the driver first releases tens of GiB."""
_children: dict[ProcessIdentity, subprocess.Popen[bytes]] = {}
"""The servers that this process started: only a parent can read the exit code, and it must reap them."""
_exits: dict[ProcessIdentity, int] = {}
"""Exit codes of reaped servers, for the question why they ended."""


def spawn_server(launch: Launch, *, log: Path, liveness_lock: Path, marker: str, key: str | None) -> ProcessIdentity:
    """Starts ``launch`` in its own session; its output is appended to ``log``.

    The child inherits the lock on ``liveness_lock`` and holds it while it lives. So no second server of the instance
    can start, whatever happens to gpubox. Raises GpuboxError if it cannot start.
    """
    env = engine_environment({**launch.env, MARKER_VARIABLE: marker})
    if key:
        env["LLAMA_API_KEY"] = key
    busy, hint = "A server that gpubox started still runs in this instance.", "Run `gpubox stop`, then try again."
    with held_lock(liveness_lock, busy, hint, attempts=1) as lock, _append(log) as output:
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
    # A child that is already dead has no identity; use one that matches no process.
    process = identity_of(child.pid) or ProcessIdentity(child.pid, -1, "")
    _children[process] = child
    return process


def exit_code(process: ProcessIdentity) -> int | None:
    """The exit code of a dead server (negative: the signal); ``None`` if this gpubox was not its parent."""
    child = _children.get(process)
    if child is None:
        return _exits.get(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(timeout=1.0)
    return None


def remember_exit_code(process: ProcessIdentity, code: int) -> None:
    """Stores the exit code of a server that the caller reaped itself."""
    _exits[process] = code


def reap_servers() -> None:
    """Reaps the ended servers of this process: a long-running screen must leave no zombies."""
    for process, child in list(_children.items()):
        if (code := child.poll()) is not None:
            del _children[process]
            _exits[process] = code


async def terminate_server(process: ProcessIdentity, marker: str, grace: float, *, told: bool = False) -> str:
    """Ends a server: one SIGTERM, ``grace`` seconds, then SIGKILL to all processes with its marker.

    There is never a second SIGTERM, because llama-server (build 11434) deadlocks on it: ``told`` says that it had its
    SIGTERM from a gpubox that was killed. A cancellation waits for the
    end: a SIGTERM cannot be taken back, and who restores a server must know that this one is gone. Returns a note if
    SIGKILL was needed. Raises GpuboxError if the process does not die.
    """
    ending = asyncio.ensure_future(_terminate(process, marker, grace, told))
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError, GpuboxError):
                await asyncio.shield(ending)
        raise


async def _terminate(process: ProcessIdentity, marker: str, grace: float, told: bool) -> str:
    waited = AwakeTime()
    if not told:
        _signal(process, signal.SIGTERM)
    while is_alive(process) and waited.seconds() < grace:
        await asyncio.sleep(POLL_SECONDS)
    note = f"killed (SIGKILL): it did not exit within {grace:g} s" if is_alive(process) else ""
    ending = [process, *(leftover for leftover, _ in find_by_marker(marker))]
    for each in ending:
        _signal(each, signal.SIGKILL)
    waited = AwakeTime()
    while any(map(is_alive, ending)) and waited.seconds() < KILL_SECONDS:
        await asyncio.sleep(POLL_SECONDS)
    if is_alive(process):
        states = thread_states(process.pid)
        message = f"The server (pid {process.pid}) is still alive {KILL_SECONDS:.0f} s after SIGKILL"
        if "D" in states:
            hint = "`dmesg` may show why. If it stays so, only a reboot ends it."
            raise GpuboxError(f"{message}: it hangs in the kernel, most likely in the GPU driver.", hint)
        raise GpuboxError(f"{message} (states of its threads: {states}).", "Try again: it may only be slow.")
    exit_code(process)
    return note


def _signal(process: ProcessIdentity, number: int) -> None:
    if is_alive(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            raise GpuboxError(
                f"The server (pid {process.pid}) belongs to another user.", "Stop it as that user."
            ) from None


def _append(log: Path) -> BinaryIO:
    try:
        return os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND), "ab")
    except OSError as error:
        raise GpuboxError(f"The log {log} cannot be written: {error.strerror}.") from None


STEADY_BYTES = 32 * 1024 * 1024
INTERVAL_SECONDS = 0.1
LIMIT_SECONDS = 10.0


async def wait_vram_released() -> str:
    """Waits until no card's use falls any more, at most LIMIT_SECONDS; returns a note about the result.

    The driver releases the memory only after the process is gone. Another server may load meanwhile: that use grows.
    """
    before = await asyncio.to_thread(vram_used)
    if before is None:
        return "no GPU driver"
    began = time.monotonic()
    while time.monotonic() - began < LIMIT_SECONDS:
        await asyncio.sleep(INTERVAL_SECONDS)
        after = await asyncio.to_thread(vram_used)
        if after is None:
            return "the GPU driver stopped answering"
        if len(after) == len(before) and all(b - a <= STEADY_BYTES for a, b in zip(after, before, strict=True)):
            return f"{units.memory(sum(after))} in use"
        before = after
    return f"still changing after {LIMIT_SECONDS:.0f} s"


class VramInUse(NamedTuple):
    """VRAM in use when a server is ready. What it uses more later, it has grown since the load."""

    used: tuple[tuple[int, int], ...]
    """``(GPU index, bytes)``: what the server holds, or what all processes hold if the driver hides the processes."""
    whole: tuple[int, ...]
    """The GPU indexes of the second case."""


def vram_in_use(pid: int) -> VramInUse:
    """What ``pid`` holds on each card now."""
    used, whole = [], []
    for gpu in read_driver().gpus:
        own = next((p.vram_bytes for p in gpu.processes if p.pid == pid), None)
        if own is not None:
            used.append((gpu.index, own))
        elif gpu.vram_used_bytes is not None:
            used.append((gpu.index, gpu.vram_used_bytes))
            whole.append(gpu.index)
    return VramInUse(tuple(used), tuple(whole))
