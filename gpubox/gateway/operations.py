"""Runs operations on servers in child processes: the gateway's loop never waits for a check, a plan or a load.

The child is ``operation.py``. It prints what it does as JSON lines, and stops nothing before it is told to ``go``.
Afterwards it waits for the next request, so that no swap waits for a new Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from subprocess import DEVNULL, PIPE
from typing import Any

import msgspec

from gpubox.children import own_program
from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway.gateway_status import OperationKind
from gpubox.paths import Paths
from gpubox.storage import read_json

LINE_BYTES = 1024 * 1024
MOST_WAITING = 2
END_SECONDS = 120.0
"""For a cancelled operation to bring back what it stopped."""


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """What the gateway wants: the first line of the child's stdin."""

    kind: OperationKind
    profile: str
    asked_by: str = ""
    """The client whose request caused it."""
    idle_seconds: Mapping[str, float] = field(default_factory=dict)
    """Instance -> how long nobody has asked its server; 0 while somebody does."""
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The profiles of the operations that run now -> what ``ServerOperation.placed`` said of each: this one touches
    none of these instances, and leaves them the memory that they will need. If it cannot, it ends as a
    TemporaryFailure; when they are over it may succeed."""


class TemporaryFailure(GpuboxError):
    """Another gpubox, a benchmark or a trial is at work: the same operation may succeed later."""


class _Child:
    def __init__(self, process: subprocess.Popen[bytes], lines: asyncio.StreamReader) -> None:
        self.process, self.lines = process, lines
        self.used = False
        """Whether it was asked for an operation before."""

    @classmethod
    async def start(cls, paths: Paths) -> _Child:
        """Raises GpuboxError if there can be no process."""
        words = own_program("gpubox.gateway.operation", *paths.arguments)
        try:
            process = await asyncio.to_thread(  # not asyncio's own subprocess, which kills a child that is forgotten
                subprocess.Popen, words, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
                start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise GpuboxError(f"No process can be started: {error.strerror}.") from None
        lines = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), process.stdout)
        return cls(process, lines)

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the child is gone: the end of its output says so
            self.process.stdin.write(line + b"\n")


class Operations:
    """Begins operations. Several may run at once, each in a child of its own: see ``OperationRequest.beside``.

    One child waits for the next operation, and a second one once two have run at once: 40 MiB and no processor time.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._waiting: list[_Child] = []

    async def warm(self) -> None:
        """Starts a child that waits for the first operation. Raises GpuboxError if there can be no process."""
        if not self._waiting:
            self._keep(await _Child.start(self._paths))

    async def begin(self, request: OperationRequest, on_event: Callable[[Mapping[str, Any]], None]) -> ServerOperation:
        """Has a child do what ``request`` says. Raises GpuboxError if there can be no process."""
        self._waiting = [child for child in self._waiting if child.process.poll() is None]
        child = self._waiting.pop() if self._waiting else await _Child.start(self._paths)
        operation = ServerOperation(child, on_event, self._keep)
        child.write(msgspec.json.encode(request))
        return operation

    def close(self) -> None:
        """Ends the children that wait. One that works goes on to its end."""
        while self._waiting:
            child = self._waiting.pop()
            child.process.kill()
            child.process.wait()

    def _keep(self, child: _Child) -> None:
        if len(self._waiting) == MOST_WAITING:
            self.close()
        self._waiting.append(child)


class ServerOperation:
    """One operation that runs. ``placed`` tells which instances go; then ``go`` or ``cancel``; ``finished`` ends it."""

    def __init__(
        self, child: _Child, on_event: Callable[[Mapping[str, Any]], None], on_over: Callable[[_Child], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.placed: asyncio.Future[tuple[str, ...]] = loop.create_future()
        """The instances that it will change, its own first: what runs there stops at ``go``. Known some 0.1 s after
        the begin, so that an operation may begin long before its ``go``. Never, if a check failed."""
        self._child, self._on_event, self._on_over = child, on_event, on_over
        self.pid = child.process.pid
        self.finished = loop.create_task(self._read())
        self.finished.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it
        """What was done, in a sentence; or GpuboxError: if it was not placed, nothing was touched. The server answers
        already at the event OperationFinished."""

    def go(self) -> None:
        """Everything may be stopped that ``placed`` named."""
        self._child.write(b"go")

    async def cancel(self) -> None:
        """Ends the operation. What it has stopped comes back."""
        self._child.process.send_signal(signal.SIGTERM)
        await asyncio.wait({self.finished}, timeout=END_SECONDS)

    async def _read(self) -> str:
        """Passes on what the child prints. Returns its result."""
        waited, self._child.used = self._child.used, True
        async for line in self._child.lines:
            waited, values = False, dict[str, Any]()
            with contextlib.suppress(ValueError):
                values = read_json(line, own=True)
            event, message = values.get("event"), str(values.get("message", ""))
            if event == "placed":
                self.placed.set_result(tuple(values.get("instances", ())))
            elif event == "finished":
                self._on_over(self._child)
                return message
            elif event == "failed":
                self._on_over(self._child)
                code = ExitCode(values.get("exit_code", ExitCode.FAILED))
                kind = TemporaryFailure if values.get("temporary") else GpuboxError
                raise kind(message, str(values.get("hint", "")), code=code)
            else:
                self._on_event(values)
        exit_code = await asyncio.to_thread(self._child.process.wait)
        # One that died while it waited has touched nothing, and a kill says nothing about the profile.
        kind = TemporaryFailure if waited or exit_code < 0 else GpuboxError
        raise kind(f"The operation ended without a result (exit code {exit_code}).", "See `gpubox logs`.")
