"""The object of `gpubox status --json`, read by a child: so the gateway stays small, and never waits for a driver."""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from typing import Any

from gpubox.children import own_program
from gpubox.paths import Paths
from gpubox.storage import read_json

FRESH_SECONDS = 4.0
"""So long a reading serves all who ask: whoever scrapes every second must not cost a core."""
_TIMEOUT_SECONDS = 10.0


class MachineReader:
    """Reads it at most once in FRESH_SECONDS."""

    def __init__(self, paths: Paths) -> None:
        self._words = own_program("gpubox.cli.entry", *paths.options, "status", "--json")
        self._reading = asyncio.Lock()
        self._latest: Mapping[str, Any] | None = None
        self._read_at = -FRESH_SECONDS

    async def read(self) -> Mapping[str, Any] | None:
        """The object; None if it could not be read in time."""
        async with self._reading:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                self._latest = await self._read()
                self._read_at = time.monotonic()
            return self._latest

    async def _read(self) -> Mapping[str, Any] | None:
        try:
            child = await asyncio.create_subprocess_exec(
                *self._words, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, cwd="/"
            )
        except OSError:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                output, _ = await child.communicate()
            values = read_json(output)
        except (TimeoutError, ValueError):
            return None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        return values if isinstance(values, dict) and "server" in values else None
