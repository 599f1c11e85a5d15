"""GET /gpubox/watch: what the screen of this box shows, for keys that may watch. It changes nothing.

One child, `gpubox status --record -`, samples for all who look, and ends when nobody has looked for some seconds. Who
asks seldom gets the newest readings: nothing is kept for slow viewers. Paths are as in a recording, the home folder
as ~. Of the log come the lines that llama-server writes by itself; with --verbose it also writes prompts (level D).
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections import deque
from pathlib import Path
from subprocess import DEVNULL, PIPE
from urllib.parse import parse_qsl

from gpubox import __version__, units
from gpubox.children import own_program
from gpubox.concurrency import run_in_thread
from gpubox.gateway.gateway_status import BoxNews, GatewayStatus
from gpubox.gateway.http_connection import HttpRequest, RequestRefused
from gpubox.paths import MAIN_INSTANCE, Paths
from gpubox.server.log import LogReader, parse_line
from gpubox.storage import DECODE_ERRORS, json_line
from gpubox.telemetry.recorder import LINE_BYTES, SnapshotReader, header_line, snapshot_line, without_home
from gpubox.telemetry.snapshot import Snapshot

IDLE_SECONDS = 10.0
START_SECONDS = 10.0
LOG_BYTES = 128 * 1024
"""So much of the log in one answer; who is further behind misses lines."""
_KEPT = 16
"""Snapshots of whose requests a viewer may have all, so that they are not sent again."""
_AFTER_DEBUG = "d"
_KEY_ENDS = "api_keys: "
"""In the line with the last characters of the server's key (tools/server/server-http.cpp, build 11434)."""


class BoxWatch:
    """Samples while somebody looks."""

    def __init__(self, paths: Paths) -> None:
        self._words = own_program("gpubox.cli.entry", *paths.options, "status", "--record", "-")
        self._log = paths.instance_log(MAIN_INSTANCE)
        self._latest: deque[Snapshot] = deque(maxlen=_KEPT)
        self._came = asyncio.Event()
        self._asked_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def answer(self, request: HttpRequest, status: GatewayStatus) -> bytes:
        """Three lines: header, Snapshot, BoxNews. Raises RequestRefused.

        The query has ``after``, the time of the Snapshot that the viewer has, and ``log``, its position in the log.
        """
        asked = dict(parse_qsl(request.target.partition("?")[2]))
        snapshot = await self._newest()
        known = next((each.requests for each in self._latest if each.time == asked.get("after")), ())
        lines, position = await run_in_thread(log_since, self._log, asked.get("log", ""))
        news = without_home(json_line(BoxNews(status, tuple(lines), position)))
        return header_line(__version__) + snapshot_line(snapshot, known) + news + b"\n"

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _newest(self) -> Snapshot:
        self._asked_at = time.monotonic()
        if self._task is None or self._task.done():
            self._latest.clear()
            self._came.clear()
            self._task = asyncio.create_task(self._sample())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._came.wait(), START_SECONDS)
        if not self._latest:
            raise RequestRefused(503, "The box cannot be read now: `gpubox status` on it says why.")
        return self._latest[-1]

    async def _sample(self) -> None:
        process = transport = None
        try:
            process = await asyncio.to_thread(
                subprocess.Popen, self._words, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, cwd="/"
            )
            loop, lines = asyncio.get_running_loop(), asyncio.StreamReader(limit=LINE_BYTES)
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), process.stdout)
            reader = SnapshotReader(await lines.readline())
            while time.monotonic() - self._asked_at < IDLE_SECONDS:
                line = await asyncio.wait_for(lines.readline(), IDLE_SECONDS)  # a child that hangs is killed
                self._latest.append(reader.read(line))
                self._came.set()
        except (OSError, OverflowError, *DECODE_ERRORS):  # at its end, too
            pass  # the next viewer starts another one
        finally:
            self._came.set()
            if transport:
                transport.close()
            if process:
                process.kill()
                await run_in_thread(process.wait)


def log_since(path: Path, asked: str) -> tuple[list[str], str]:
    """The lines since the position ``asked``, without those of level D and what continues them, and the new position.

    Blocks.
    """
    reader = LogReader(path, from_end=True)
    reader.go_to(asked.removesuffix(_AFTER_DEBUG) or f"{reader.position.partition('-')[0]}-0")
    skipped = reader.skip(LOG_BYTES)
    shows = not (skipped or asked.endswith(_AFTER_DEBUG))
    lines = [f"… {units.memory(skipped)} of the log are not shown"] if skipped and asked else []
    for line in reader.read(LOG_BYTES):
        level = parse_line(line).level
        shows = level != "D" if level else shows
        if shows and _KEY_ENDS not in line:
            lines.append(line)
    return lines, reader.position + ("" if shows else _AFTER_DEBUG)
