"""Watching one launch come up: load, then one proven token. What ends a load is *no progress*, or too much of it.

Progress is a stage, bytes read, memory, and a line of a kind that was not there before. More of the same lines is none.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

from gpubox import units
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.hardware.process import (
    ProcessActivity,
    ProcessIdentity,
    descendants,
    identity_of,
    is_alive,
    is_listening,
    process_tree_activity,
)
from gpubox.server.client import LlamaClient, ReadinessProbe, connect
from gpubox.server.events import LoadProgress, ServerEvent
from gpubox.server.failure_causes import Cause, FailureKind, find_cause
from gpubox.server.log import CUT_MARKER, LogReader, load_stage, parse_line, tail_text
from gpubox.server.log_truncation import exceeds_limit, truncate_log
from gpubox.server.server_process import exit_code
from gpubox.server.state import RunningServer

POLL_SECONDS = 0.05
REPORT_SECONDS = 0.2
PROBE_SECONDS = 120.0
BUSY_CPU_PATIENCE = 10
"""A process that only burns CPU (a kernel being compiled) is waited for this many times longer."""
_LAUNCH_LOG = 1024 * 1024
FLOOD_BYTES = 256 * 1024 * 1024
"""A load that writes more into its log writes nothing of use: llama-server at its most talkative stays below 10 MiB."""
MAX_LINE_KINDS = 1000
"""A log of more kinds of lines holds noise, which is no progress."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


class LaunchError(GpuboxError):
    """A launch failed; ``cause`` says why."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"{cause.sentence}.", cause.hint, code=cause.exit_code)
        self.cause = cause


class StallDetector:
    """Decides when a load has stopped. Pure: readings and the clock are handed in."""

    def __init__(self, stall_seconds: float, at: float) -> None:
        self._stall = stall_seconds
        self._signs: tuple[int, ...] = ()
        self._cpu = 0.0
        self._moved = self._ran = at

    def stalled(self, reading: ProcessActivity | None, kinds: int, at: float) -> bool:
        """Whether nothing has moved for too long: kinds of lines in the log, file reads, memory.

        CPU time alone counts for a while.
        """
        signs: tuple[int, ...] = (kinds,)
        if reading:
            signs = (kinds, reading.read_chars, reading.rss_bytes >> 20, reading.file_rss_bytes >> 20)
            if reading.cpu_seconds - self._cpu > 0.05:
                self._cpu, self._ran = reading.cpu_seconds, at
        best = tuple(map(max, signs, self._signs)) if len(signs) == len(self._signs) else signs
        if best != self._signs:  # what only goes down and up again is no progress
            self._signs, self._moved = best, at
        quiet = at - max(self._moved, self._ran)
        return quiet > self._stall or at - self._moved > self._stall * BUSY_CPU_PATIENCE


class LoadLog:
    """What the log of a load tells while it is written. Cuts it where it floods."""

    def __init__(self, path: Path) -> None:
        self.stage = "starting"
        self.written = 0
        """Bytes since the start, with those that were cut out since."""
        self.last = ""
        self._path, self._reader, self._size = path, LogReader(path), 0
        self._kinds: set[str] = set()

    @property
    def kinds(self) -> int:
        """How many kinds of lines there are: lines that differ only in numbers are of one."""
        return len(self._kinds)

    def read(self) -> None:
        """Takes in what is new. Where it floods, only the end of that."""
        self._reader.skip(_LAUNCH_LOG)
        for line in self._reader.read(_LAUNCH_LOG):
            text = parse_line(line).text.strip()
            if text.startswith(CUT_MARKER):
                continue
            self.stage, self.last = load_stage(text) or self.stage, text or self.last
            if len(self._kinds) < MAX_LINE_KINDS:
                self._kinds.add(_NUMBER.sub("#", text[:200]))
        size = _size(self._path)
        self.written += max(0, size - self._size)
        self._size = size

    def cut(self) -> None:
        """Keeps the file within its bound. What is cut out is more of the same: it is not kept."""
        if exceeds_limit(self._path):
            truncate_log(self._path, keep=False)
            self._size = _size(self._path)


async def wait_loaded(
    running: RunningServer, log: Path, key: str | None, config: Config, emit: Callable[[ServerEvent], None]
) -> ProcessIdentity:
    """Returns the process that holds the port, when the server says that it is up. Raises LaunchError.

    That is the process that was started, or a child of it: engines are often wrapped in a script.
    """
    assert running.process is not None
    began = reported = time.monotonic()
    watch, told, read = StallDetector(config.stall_seconds, began), LoadLog(log), 0
    launch = running.launch
    async with connect(launch.base_url, key, timeout=1.0) as client:
        while (await client.health()).status != "ok" or (serving := _serving(running)) is None:
            at = time.monotonic()
            _check_alive(running.process, log)
            told.read()
            told.cut()
            if told.written > FLOOD_BYTES or at - reported >= REPORT_SECONDS:
                reported = at
                reading = process_tree_activity(running.process.pid)
                if cause := _given_up(told, watch.stalled(reading, told.kinds, at), at - began, config):
                    raise LaunchError(cause)
                read = max(read, max(reading.read_chars, reading.file_rss_bytes) if reading else 0)
                total = launch.model_bytes
                emit(LoadProgress(launch.profile, told.stage, min(read, total) if total else None, total, at - began))
            await asyncio.sleep(POLL_SECONDS)
    _check_alive(serving, log)
    return serving


def _serving(running: RunningServer) -> ProcessIdentity | None:
    """Who of the launch listens on its port: another program's answer on that port is not this launch's."""
    process, port = running.process, running.launch.port
    assert process is not None
    if is_listening(process.pid, port) is not False:
        return process
    children = (identity_of(pid) for pid in descendants(process.pid) if is_listening(pid, port))
    return next((child for child in children if child), None)


async def probe_readiness(running: RunningServer, log: Path, key: str | None) -> ReadinessProbe:
    """Has the server make one token. Raises LaunchError when it dies or refuses."""
    assert running.process is not None
    async with connect(running.launch.base_url, key) as client:
        asking = asyncio.ensure_future(_ask(client, running))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=0.2)
                if not asking.done():
                    _check_alive(running.process, log)
                    truncate_log(log, keep=False)
            proof = asking.result()
        except GpuboxError as error:
            await _check_not_dying(running.process, log)
            words = error.message.rstrip(".")
            raise LaunchError(Cause(FailureKind.HANG, words[:1].lower() + words[1:])) from None
        finally:
            asking.cancel()
    _check_alive(running.process, log)
    return proof


async def _ask(client: LlamaClient, running: RunningServer) -> ReadinessProbe:
    return await client.probe_readiness(embeddings=running.launch.embeddings, timeout=PROBE_SECONDS)


def _check_alive(process: ProcessIdentity, log: Path) -> None:
    if not is_alive(process):
        raise LaunchError(find_cause(tail_text(log, _LAUNCH_LOG), exit_code(process)))


async def _check_not_dying(process: ProcessIdentity, log: Path) -> None:
    # A connection that breaks is often the first sign of a death that /proc shows a moment later.
    for _ in range(20):
        _check_alive(process, log)
        await asyncio.sleep(POLL_SECONDS)


def _given_up(told: LoadLog, stalled: bool, seconds: float, config: Config) -> Cause | None:
    """Why the load is not waited for any longer; ``None``: it is."""
    if told.written > FLOOD_BYTES:
        sentence = f"the engine floods its log: {units.memory(told.written)} in {seconds:.0f} s (stage: {told.stage})"
        return Cause(
            FailureKind.HANG, sentence, "`gpubox logs --failed` has its first and last lines.", told.last[:300]
        )
    if stalled:
        sentence = f"the engine hung: nothing moved for {config.stall_seconds:.0f} s (stage: {told.stage})"
        hint = "`gpubox logs --failed` has its last lines; stall-seconds in config.toml sets the patience."
        return Cause(FailureKind.HANG, sentence, hint, told.last[:300])
    if seconds > config.load_seconds:
        sentence = f"the load was not over after {units.rough_duration(config.load_seconds)} (stage: {told.stage})"
        return Cause(
            FailureKind.HANG, sentence, "load-seconds in config.toml sets how long it may take.", told.last[:300]
        )
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
