"""Runs one operation on a server in a child process: the gateway's loop never waits for a check, a plan or a load.

The child is ``operation.py``. It prints what it does as JSON lines, and stops nothing before it is told to ``go``.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gpubox.children import own_program
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import Paths
from gpubox.storage import read_json

OperationKind = Literal["start", "stop"]
LINE_BYTES = 1024 * 1024
END_SECONDS = 120.0
"""For a cancelled operation to bring back what it stopped."""


@dataclass(frozen=True, slots=True)
class OperationServer:
    """A running server, as the gateway knows it."""

    instance: str
    pinned: bool = False
    idle_seconds: float = 0.0
    """Since its last request ended."""
    running: int = 0
    """Requests that it works on for the gateway."""
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """What the gateway wants: the first line of the child's stdin."""

    kind: OperationKind
    profile: str
    asked_by: str = ""
    """The client whose request caused it."""
    servers: tuple[OperationServer, ...] = ()


class TemporaryFailure(GpuboxError):
    """Another gpubox, a benchmark or a trial is at work: the same operation may succeed later."""


class ServerOperation:
    """One operation that runs. ``placed`` tells which instances go; then ``go`` or ``cancel``; ``finished`` ends it."""

    def __init__(self, process: Process, on_event: Callable[[Mapping[str, Any]], None]) -> None:
        loop = asyncio.get_running_loop()
        self.placed: asyncio.Future[tuple[str, ...]] = loop.create_future()
        """The instances that must stop for it. GpuboxError if a check failed: then nothing was touched."""
        self.finished: asyncio.Future[str] = loop.create_future()
        """What was done, in a sentence; or GpuboxError."""
        self._process, self._on_event = process, on_event
        self.pid = process.pid
        self._reading = loop.create_task(self._read())

    @classmethod
    async def start(
        cls, paths: Paths, request: OperationRequest, on_event: Callable[[Mapping[str, Any]], None]
    ) -> ServerOperation:
        """Starts the child. Raises GpuboxError if there can be no process."""
        try:
            process = await asyncio.create_subprocess_exec(
                *own_program("gpubox.gateway.operation", *paths.arguments),
                stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_BYTES, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise GpuboxError(f"No process can be started: {error.strerror}.") from None
        operation = cls(process, on_event)
        operation._write(msgspec.json.encode(request))
        return operation

    def go(self) -> None:
        """Everything may be stopped that ``placed`` named."""
        self._write(b"go")

    async def cancel(self) -> None:
        """Ends the operation. What it has stopped comes back."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()

    async def close(self) -> None:
        """Forgets the child. It goes on by itself if it has not ended."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        for future in (self.placed, self.finished):
            if future.done() and not future.cancelled():
                future.exception()
            future.cancel()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the child is gone: _read says so
            self._process.stdin.write(line + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                values = read_json(line, own=True)
            except ValueError:
                continue
            event = values.get("event")
            if event == "placed":
                self._settle(self.placed, tuple(values.get("displaces", ())))
            elif event == "finished":
                self._settle(self.finished, str(values.get("message", "")))
            elif event == "failed":
                error_code = ExitCode(values.get("exit_code", ExitCode.FAILED))
                kind = TemporaryFailure if values.get("temporary") else GpuboxError
                self._fail(kind(str(values.get("message", "")), str(values.get("hint", "")), code=error_code))
            else:
                self._on_event(values)
        code = await self._process.wait()
        self._fail(GpuboxError(f"The operation ended without a result (exit code {code}).", "See `gpubox logs`."))

    def _settle(self, future: asyncio.Future[Any], value: object) -> None:
        if not future.done():
            future.set_result(value)

    def _fail(self, error: GpuboxError) -> None:
        for future in (self.placed, self.finished):
            if not future.done():
                future.set_exception(error)
