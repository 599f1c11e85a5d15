"""Waits until a launch is loaded and has answered the readiness probe. A load fails when it makes no progress.

Progress is more bytes read, more memory, or a log line of a new kind. Repeated lines are no progress.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gpubox import units
from gpubox.clock import AwakeTime
from gpubox.config import Config
from gpubox.errors import GpuboxError
from gpubox.hardware.process import (
    ProcessActivity,
    ProcessIdentity,
    descendants,
    identity_of,
    is_alive,
    is_listening,
    killed_for_memory,
    process_tree_activity,
)
from gpubox.server.client import ReadinessProbe, connect
from gpubox.server.events import LoadProgress, ServerEvent
from gpubox.server.failure_causes import Cause, FailureKind, find_cause
from gpubox.server.log import (
    CUT_MARKER,
    LogReader,
    exceeds_limit,
    load_stage,
    log_size,
    parse_line,
    tail_text,
    truncate_log,
)
from gpubox.server.server_process import exit_code
from gpubox.server.state import RunningServer

POLL_SECONDS, LOOK_SECONDS = 0.05, 0.005
"""Between two questions, and between two looks at the log: what it says is a reason to ask at once."""
REPORT_SECONDS = 0.2
PROBE_SECONDS = 120.0
BUSY_CPU_PATIENCE = 10
"""A process that only uses CPU time (it may compile a kernel) gets this many times longer."""
_LAUNCH_LOG = 1024 * 1024
FLOOD_BYTES = 256 * 1024 * 1024
"""A load that writes more into its log is ended. The most verbose llama-server stays below 10 MiB."""
MAX_LINE_KINDS = 1000
"""More kinds of lines than that are noise, not progress."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


class LaunchError(GpuboxError):
    """A launch failed; ``cause`` says why."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"{cause.sentence}.", cause.hint, code=cause.exit_code)
        self.cause = cause


class StallDetector:
    """Decides when a load has stopped. Pure: the caller passes readings and time."""

    def __init__(self, stall_seconds: float, at: float) -> None:
        self._stall = stall_seconds
        self._best: tuple[int, ...] = ()
        self._cpu_seconds = 0.0
        self._progress_at = self._cpu_at = at

    def stalled(self, reading: ProcessActivity | None, kinds: int, at: float) -> bool:
        """Whether ``kinds`` of log lines, bytes read and memory did not grow for too long.

        CPU time alone counts as progress for a limited time.
        """
        values: tuple[int, ...] = (kinds,)
        if reading:
            values = (kinds, reading.read_chars, reading.rss_bytes >> 20, reading.file_rss_bytes >> 20)
            if reading.cpu_seconds - self._cpu_seconds > 0.05:
                self._cpu_seconds, self._cpu_at = reading.cpu_seconds, at
        best = tuple(map(max, values, self._best)) if len(values) == len(self._best) else values
        if best != self._best:  # a value that falls and rises again is no progress
            self._best, self._progress_at = best, at
        idle = at - max(self._progress_at, self._cpu_at)
        return idle > self._stall or at - self._progress_at > self._stall * BUSY_CPU_PATIENCE


class LoadLog:
    """Follows the log of a load and cuts it if it grows too fast."""

    def __init__(self, path: Path) -> None:
        self.stage = "starting"
        self.written = 0
        """Bytes written since the start, including those that were cut."""
        self.last_line = ""
        self._path, self._reader, self._size = path, LogReader(path), 0
        self._kinds: set[str] = set()

    @property
    def kinds(self) -> int:
        """How many kinds of lines there are. Lines that differ only in numbers are of one kind."""
        return len(self._kinds)

    def read(self) -> None:
        """Reads the new lines; of very many, only the last ones."""
        self._reader.skip(_LAUNCH_LOG)
        for line in self._reader.read(_LAUNCH_LOG):
            text = parse_line(line).text.strip()
            if text.startswith(CUT_MARKER):
                continue
            self.stage, self.last_line = load_stage(text) or self.stage, text or self.last_line
            if len(self._kinds) < MAX_LINE_KINDS:
                self._kinds.add(_NUMBER.sub("#", text[:200]))
        size = log_size(self._path)
        self.written += max(0, size - self._size)
        self._size = size

    def cut(self) -> None:
        """Keeps the file within its limit, without a copy of the text that is cut."""
        if exceeds_limit(self._path):
            truncate_log(self._path, keep=False)
            self._size = log_size(self._path)


async def wait_loaded(
    running: RunningServer, log: Path, key: str | None, config: Config, emit: Callable[[ServerEvent], None]
) -> ProcessIdentity:
    """Waits until the server is up; returns the process that listens on its port. Raises LaunchError.

    That is the started process or a child of it, because engines are often wrapped in a script.
    """
    assert running.process is not None
    awake, reported = AwakeTime(), 0.0
    detector, load_log, bytes_read = StallDetector(config.stall_seconds, 0.0), LoadLog(log), 0
    launch = running.launch
    async with connect(launch.base_url, key, timeout=1.0) as client:
        while (await client.health()).status != "ok" or (serving := _listening_process(running)) is None:
            at = awake.seconds()
            _check_alive(running.process, log)
            load_log.read()
            load_log.cut()
            if load_log.written > FLOOD_BYTES or at - reported >= REPORT_SECONDS:
                reported = at
                reading = process_tree_activity(running.process.pid)
                stalled = detector.stalled(reading, load_log.kinds, at)
                if cause := _give_up_cause(load_log, stalled, at, config):
                    raise LaunchError(cause)
                if reading:
                    bytes_read = max(bytes_read, reading.read_chars, reading.file_rss_bytes)
                total = launch.model_bytes
                loaded = min(bytes_read, total) if total else None
                emit(LoadProgress(launch.profile, load_log.stage, loaded, total, at))
            size, end = log_size(log), time.monotonic() + POLL_SECONDS
            while log_size(log) == size and time.monotonic() < end:
                await asyncio.sleep(LOOK_SECONDS)
    _check_alive(serving, log)
    return serving


def _listening_process(running: RunningServer) -> ProcessIdentity | None:
    """The process of the launch that listens on its port. The answer may come from another program on that port."""
    process, port = running.process, running.launch.port
    assert process is not None
    if is_listening(process.pid, port) is not False:
        return process
    children = (identity_of(pid) for pid in descendants(process.pid) if is_listening(pid, port))
    return next((child for child in children if child), None)


async def probe_readiness(running: RunningServer, log: Path, key: str | None) -> ReadinessProbe:
    """Has the server generate one token, or one embedding. Raises LaunchError if it dies or refuses."""
    assert running.process is not None
    async with connect(running.launch.base_url, key) as client:
        request = asyncio.ensure_future(
            client.probe_readiness(embeddings=running.launch.embeddings, timeout=PROBE_SECONDS)
        )
        try:
            while not request.done():
                await asyncio.wait({request}, timeout=0.2)
                if not request.done():
                    _check_alive(running.process, log)
                    truncate_log(log, keep=False)
            probe = request.result()
        except GpuboxError as error:
            await _check_not_dying(running.process, log)
            message = error.message.rstrip(".")
            raise LaunchError(Cause(FailureKind.HANG, message[:1].lower() + message[1:])) from None
        finally:
            request.cancel()
    _check_alive(running.process, log)
    return probe


def _check_alive(process: ProcessIdentity, log: Path) -> None:
    if not is_alive(process):
        code = exit_code(process)
        out_of_memory = code == -signal.SIGKILL and killed_for_memory(process)
        raise LaunchError(find_cause(tail_text(log, _LAUNCH_LOG), code, out_of_memory=out_of_memory))


async def _check_not_dying(process: ProcessIdentity, log: Path) -> None:
    # A broken connection is often the first sign of a death; /proc shows it a moment later.
    for _ in range(20):
        _check_alive(process, log)
        await asyncio.sleep(POLL_SECONDS)


def _give_up_cause(load_log: LoadLog, stalled: bool, seconds: float, config: Config) -> Cause | None:
    """Why the load is given up; ``None`` to keep waiting."""
    if load_log.written > FLOOD_BYTES:
        sentence = f"the engine wrote {units.memory(load_log.written)} into its log in {seconds:.0f} s"
        hint = "`gpubox logs --failed` has its first and last lines."
    elif stalled:
        sentence = f"the engine hung: no progress for {config.stall_seconds:.0f} s"
        hint = "`gpubox logs --failed` has its last lines; stall-seconds in config.toml sets the limit."
    elif seconds > config.load_seconds:
        sentence = f"the load took more than {units.rough_duration(config.load_seconds)}"
        hint = "load-seconds in config.toml sets the limit."
    else:
        return None
    return Cause(FailureKind.HANG, f"{sentence} (stage: {load_log.stage})", hint, load_log.last_line[:300])
