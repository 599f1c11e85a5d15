"""Watching one launch come up: load, then one proven token. Only *no progress* ends a load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from gpubox.errors import GpuboxError
from gpubox.hardware.process import Activity, Identity, activity, descendants, identity_of, is_alive, listens
from gpubox.server.causes import Cause, Kind, find_cause
from gpubox.server.client import LlamaClient, Proof, connect
from gpubox.server.events import LoadProgress, ServerEvent
from gpubox.server.log import LogReader, stage_of, tail_text
from gpubox.server.record import Running
from gpubox.server.spawn import exit_code

POLL_SECONDS = 0.05
REPORT_SECONDS = 0.2
PROVE_SECONDS = 120.0
BUSY_CPU_PATIENCE = 10
"""A process that only burns CPU (a kernel being compiled) is waited for this many times longer."""
_LAUNCH_LOG = 1024 * 1024


class LaunchError(GpuboxError):
    """A launch failed; ``cause`` says why."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"{cause.sentence}.", cause.hint, code=cause.exit_code)
        self.cause = cause


class StallWatch:
    """Decides when a load has stopped. Pure: readings and the clock are handed in."""

    def __init__(self, stall_seconds: float, at: float) -> None:
        self._stall = stall_seconds
        self._signs: tuple[int, ...] = ()
        self._cpu = 0.0
        self._moved = self._ran = at

    def stalled(self, reading: Activity | None, log_bytes: int, at: float) -> bool:
        """Whether nothing has moved for too long: log, file reads, memory; CPU time alone counts for a while."""
        signs: tuple[int, ...] = (log_bytes,)
        if reading:
            signs = (log_bytes, reading.read_chars, reading.rss_bytes >> 20, reading.file_rss_bytes >> 20)
            if reading.cpu_seconds - self._cpu > 0.05:
                self._cpu, self._ran = reading.cpu_seconds, at
        if signs != self._signs:
            self._signs, self._moved = signs, at
        quiet = at - max(self._moved, self._ran)
        return quiet > self._stall or at - self._moved > self._stall * BUSY_CPU_PATIENCE


async def wait_loaded(
    running: Running, log: Path, key: str | None, stall_seconds: float, emit: Callable[[ServerEvent], None]
) -> Identity:
    """Returns the process that holds the port, when the server says that it is up. Raises LaunchError.

    That is the process that was started, or a child of it: engines are often wrapped in a script.
    """
    assert running.process is not None
    began = reported = time.monotonic()
    watch = StallWatch(stall_seconds, began)
    reader, stage, read = LogReader(log), "starting", 0
    launch = running.launch
    async with connect(launch.base_url, key, timeout=1.0) as client:
        while (await client.health()).status != "ok" or (serving := _serving(running)) is None:
            at = time.monotonic()
            _check_alive(running.process, log)
            for line in reader.read():
                stage = stage_of(line) or stage
            if at - reported >= REPORT_SECONDS:
                reported = at
                reading = activity(running.process.pid)
                if watch.stalled(reading, _size(log), at):
                    raise LaunchError(_hang(stage, stall_seconds))
                read = max(read, max(reading.read_chars, reading.file_rss_bytes) if reading else 0)
                total = launch.model_bytes
                emit(LoadProgress(launch.profile, stage, min(read, total) if total else None, total, at - began))
            await asyncio.sleep(POLL_SECONDS)
    _check_alive(serving, log)
    return serving


def _serving(running: Running) -> Identity | None:
    """Who of the launch listens on its port: another program's answer on that port is not this launch's."""
    process, port = running.process, running.launch.port
    assert process is not None
    if listens(process.pid, port) is not False:
        return process
    children = (identity_of(pid) for pid in descendants(process.pid) if listens(pid, port))
    return next((child for child in children if child), None)


async def prove(running: Running, log: Path, key: str | None) -> Proof:
    """Has the server make one token. Raises LaunchError when it dies or refuses."""
    assert running.process is not None
    async with connect(running.launch.base_url, key) as client:
        asking = asyncio.ensure_future(_ask(client, running))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=0.2)
                if not asking.done():
                    _check_alive(running.process, log)
            proof = asking.result()
        except GpuboxError as error:
            await _check_not_dying(running.process, log)
            words = error.message.rstrip(".")
            raise LaunchError(Cause(Kind.HANG, words[:1].lower() + words[1:])) from None
        finally:
            asking.cancel()
    _check_alive(running.process, log)
    return proof


async def _ask(client: LlamaClient, running: Running) -> Proof:
    return await client.prove(embeddings=running.launch.embeddings, timeout=PROVE_SECONDS)


def _check_alive(process: Identity, log: Path) -> None:
    if not is_alive(process):
        raise LaunchError(find_cause(tail_text(log, _LAUNCH_LOG), exit_code(process)))


async def _check_not_dying(process: Identity, log: Path) -> None:
    # A connection that breaks is often the first sign of a death that /proc shows a moment later.
    for _ in range(20):
        _check_alive(process, log)
        await asyncio.sleep(POLL_SECONDS)


def _hang(stage: str, seconds: float) -> Cause:
    return Cause(
        Kind.HANG,
        f"the engine hung: nothing moved for {seconds:.0f} s (stage: {stage})",
        "`gpubox logs` has its last lines; stall-seconds in config.toml sets the patience.",
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
