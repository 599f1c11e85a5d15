"""The gateway's operations as a program of its own: each starts a profile or unloads one, one after the other.

It reads a request from a line of stdin, checks and plans, and prints ``placed`` before anything stops. Then
it waits for the line ``go``: until then, the end of stdin or SIGTERM cancels it, and nothing was touched. Afterwards it
goes on to its end whatever happens to the gateway; SIGTERM brings back what it has stopped, as Ctrl-C does for a verb.
Then it waits for the next request; the end of stdin, or SIGTERM, ends it. Nothing but imports outlasts an operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import select
import sys
from dataclasses import asdict, replace
from functools import partial

import msgspec

from gpubox.concurrency import run_cancellable
from gpubox.config import load_config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway.operations import OperationRequest
from gpubox.gateway.placement import Placement, find_placement
from gpubox.gateway.servers import ProfileTable
from gpubox.paths import Paths
from gpubox.planner.planner import Planner
from gpubox.planner.supervisors import make_supervisor
from gpubox.sanitize import sanitize_line
from gpubox.server.client import import_httpx
from gpubox.server.events import ServerEvent
from gpubox.server.failure_causes import FailureKind
from gpubox.server.held_instance import InstanceBusy
from gpubox.server.instance import find_instance
from gpubox.server.supervisor import OperationFailed, Supervisor
from gpubox.storage import json_line

LOOPBACK = "127.0.0.1"
_REQUEST_BYTES, _GO = 1024 * 1024, b"go\n"
_NAME_LETTERS = 64
_LATER_IMPORTS = ("gpubox.bench.under_way", "gpubox.server.trial", "gpubox.planner.solve")
_PATIENCE_SECONDS = 5.0
"""How long a gateway that does not read may hold up a line that it waits for."""


class MeasurementUnderWay(GpuboxError):
    """A benchmark or a trial uses the servers now."""


class OperationChannel:
    """The pipes to the gateway. A gateway that is gone, or does not read, never holds up an operation."""

    def __init__(self, source: int = 0, sink: int = 1) -> None:
        # Unbuffered: a line is read to its end, and no further, so that the next one makes the pipe readable.
        self._source, self._sink = io.FileIO(source, closefd=False), sink
        os.set_blocking(sink, False)

    def is_asked(self) -> bool:
        """Whether a line, or the end of stdin, is there already."""
        return bool(select.select([self._source], [], [], 0)[0])

    def read_request(self) -> OperationRequest | None:
        """Waits for a request; None at the end of stdin. Raises GpuboxError if the line is none."""
        while (line := self._source.readline(_REQUEST_BYTES)) == _GO:
            continue  # for an operation that had failed meanwhile
        try:
            return msgspec.json.decode(line, type=OperationRequest) if line else None
        except msgspec.MsgspecError as error:
            raise GpuboxError(f"The request of the gateway cannot be read: {error}") from None

    async def wait_go(self) -> bool:
        """Whether the gateway says ``go``; False if it has gone without a word."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._source, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._source)
        return self._source.readline(_REQUEST_BYTES) == _GO

    def emit(self, event: str, *, patience: float = 0.0, **values: object) -> None:
        """Prints one line; drops it if the gateway is gone, or its pipe stays full for so many seconds."""
        data = json_line({"event": event, **values}) + b"\n"
        with contextlib.suppress(OSError):
            while data and select.select([], [self._sink], [], patience)[1]:
                data = data[os.write(self._sink, data) :]


def check_no_measurement(paths: Paths) -> None:
    """Raises MeasurementUnderWay while a benchmark or a trial uses the servers."""
    from gpubox.bench.under_way import executed_runs
    from gpubox.server.trial import trial_profile

    if name := trial_profile(paths):
        raise MeasurementUnderWay(f"A trial of {name} is under way.", "It can be kept or reverted at any time.")
    if not executed_runs(paths):
        return
    from gpubox.bench.run_store import run_under_way  # reading a run imports more than all of this

    if run := run_under_way(paths):
        raise MeasurementUnderWay(f"The benchmark {run.id} is under way.", "It restores the server at its end.")


class _Work:
    """One operation from its checks to its end."""

    def __init__(self, request: OperationRequest, channel: OperationChannel, profiles: ProfileTable) -> None:
        self.request, self.channel, self.profiles = request, channel, profiles
        self.paths, self.config = profiles.paths, load_config(profiles.paths)
        self.placed, self.went = False, False

    async def run(self) -> tuple[str, str]:
        """Returns the instance, and what was done in a sentence. Raises GpuboxError."""
        check_no_measurement(self.paths)
        return await (self._start() if self.request.kind == "start" else self._stop())

    async def _start(self) -> tuple[str, str]:
        await asyncio.to_thread(self.profiles.refresh)
        catalog = self.profiles.catalog
        profile = catalog.get(self.request.profile)
        if profile.elsewhere:
            raise GpuboxError(profile.elsewhere)
        profile = replace(profile, host=LOOPBACK, port=0)
        planner = Planner(self.paths, self.config)
        idle, beside = self.request.idle_seconds, self.request.beside
        placement = await asyncio.to_thread(find_placement, profile, self.paths, catalog, planner, idle, beside)
        supervisor = self._supervisor(placement.instance, planner)
        place = partial(supervisor.place, profile, displaces=placement.displaces, go=partial(self._go, placement))
        try:
            await place()
        except OperationFailed as error:
            if error.cause.kind is not FailureKind.KILLED:
                raise
            await place()  # a kill says nothing about the profile: once more
        return placement.instance, f"{profile.name} answers."

    async def _stop(self) -> tuple[str, str]:
        name = self.request.profile
        instance = find_instance(self.paths, name)
        if instance is None:
            raise GpuboxError(f"{name} is not running.", code=ExitCode.NOT_RUNNING)
        await self._supervisor(instance).unload(name, go=partial(self._go, Placement(instance, (instance,))))
        return instance, f"{name} is unloaded."

    def _supervisor(self, instance: str, planner: Planner | None = None) -> Supervisor:
        asked_by = sanitize_line(self.request.asked_by)[:_NAME_LETTERS]  # a program on the network calls itself so
        return make_supervisor(
            self.paths, self.config, instance, self._emit, planner=planner, asked_by=asked_by, gives_way=True
        )

    def _emit(self, event: ServerEvent) -> None:
        self.channel.emit(type(event).__name__, **asdict(event))

    async def _go(self, placement: Placement) -> None:
        """All checks are done: says what will stop, and waits until the gateway is ready for it."""
        if self.went:
            return
        self.placed = True
        others = sorted({*placement.displaces} - {placement.instance})
        self.channel.emit("placed", patience=_PATIENCE_SECONDS, instances=[placement.instance, *others])
        if not await self.channel.wait_go():
            raise GpuboxError("The gateway gave it up.", code=ExitCode.INTERRUPTED)
        check_no_measurement(self.paths)  # it may have begun meanwhile
        self.went = True


def run_operation(channel: OperationChannel, profiles: ProfileTable) -> int | None:
    """Runs the next operation that the gateway asks for. Returns its exit code; None if the gateway has gone."""
    try:
        if (request := channel.read_request()) is None:
            return None
        work = _Work(request, channel, profiles)
        try:
            instance, message = run_cancellable(work.run())
        except KeyboardInterrupt:
            message = "It was cancelled." if work.went else "It was cancelled; nothing was touched."
            raise GpuboxError(message, code=ExitCode.INTERRUPTED) from None
    except GpuboxError as error:
        return _fail(channel, error)
    except Exception as error:  # the gateway must hear of it
        return _fail(channel, GpuboxError(f"gpubox failed: {type(error).__name__}: {error}", "Please report it."))
    if not work.placed:
        channel.emit("placed", patience=_PATIENCE_SECONDS, instances=[instance])  # it ran already
    channel.emit("finished", patience=_PATIENCE_SECONDS, ok=True, instance=instance, message=message)
    return 0


def _fail(channel: OperationChannel, error: GpuboxError) -> int:
    # Temporary: it says nothing about the profile, and the same request may succeed a moment later.
    temporary = isinstance(error, InstanceBusy | MeasurementUnderWay) or error.code == ExitCode.INTERRUPTED
    channel.emit(
        "failed", patience=_PATIENCE_SECONDS, message=error.message, hint=error.hint, exit_code=int(error.code),
        temporary=temporary,
    )  # fmt: skip
    return int(error.code)


def main() -> int:
    """Arguments: ``CONFIG STATE CACHE CONFIG_FILE``, as for the watcher. Returns the code of the last operation."""
    paths, channel, last = Paths.from_arguments(*sys.argv[1:]), OperationChannel(), 0
    if not channel.is_asked():  # nobody waits for what is imported now
        import_httpx()
        for module in _LATER_IMPORTS:
            importlib.import_module(module)
    profiles = ProfileTable(paths, load_config(paths))
    while (code := run_operation(channel, profiles)) is not None:
        last = code
    return last


if __name__ == "__main__":
    raise SystemExit(main())
