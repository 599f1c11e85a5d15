"""One operation of the gateway as a program of its own: it starts a profile or unloads one.

It reads the request from the first line of stdin, checks and plans, and prints ``placed`` before anything stops. Then
it waits for the line ``go``: until then, the end of stdin or SIGTERM cancels it, and nothing was touched. Afterwards it
goes on to its end whatever happens to the gateway; SIGTERM brings back what it has stopped, as Ctrl-C does for a verb.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from dataclasses import asdict, replace
from functools import partial

import msgspec

from gpubox.concurrency import run_cancellable
from gpubox.config import Config, load_config
from gpubox.errors import ExitCode, GpuboxError
from gpubox.gateway.operations import OperationRequest
from gpubox.gateway.placement import Placement, ServerLoad, find_placement
from gpubox.paths import Paths
from gpubox.planner.planner import Planner
from gpubox.planner.supervisors import make_supervisor
from gpubox.profiles.loader import load_catalog
from gpubox.sanitize import sanitize_line
from gpubox.server.events import ServerEvent
from gpubox.server.held_instance import InstanceBusy
from gpubox.server.instance import find_instance, running_servers
from gpubox.server.supervisor import Supervisor

LOOPBACK = "127.0.0.1"
_REQUEST_BYTES = 1024 * 1024
_NAME_LETTERS = 64
_LAST_LINE_SECONDS = 5.0
"""How long a gateway that does not read may hold up the last line."""


class MeasurementUnderWay(GpuboxError):
    """A benchmark or a trial uses the servers now."""


class OperationChannel:
    """The pipes to the gateway. A gateway that is gone, or does not read, never holds up an operation."""

    def __init__(self, source: int = 0, sink: int = 1) -> None:
        self._source, self._sink, self._rest = source, sink, b""
        os.set_blocking(sink, False)

    def read_request(self) -> OperationRequest:
        """Waits for the first line. Raises GpuboxError if it is not a request."""
        while b"\n" not in self._rest and len(self._rest) < _REQUEST_BYTES and (data := os.read(self._source, 65536)):
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return msgspec.json.decode(line, type=OperationRequest)
        except msgspec.MsgspecError as error:
            raise GpuboxError(f"The request of the gateway cannot be read: {error}") from None

    async def wait_go(self) -> bool:
        """Whether the gateway says ``go``; False if it has gone without a word."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._source, readable.set)
        try:
            while b"\n" not in self._rest:
                await readable.wait()
                readable.clear()
                if not (data := os.read(self._source, 4096)):
                    return False
                self._rest += data
        finally:
            loop.remove_reader(self._source)
        return self._rest.split(b"\n")[0].strip() == b"go"

    def emit(self, event: str, **values: object) -> None:
        """Prints one line; drops it if the gateway is gone or its pipe is full."""
        with contextlib.suppress(OSError):
            os.write(self._sink, _line(event, values))

    def emit_last(self, event: str, **values: object) -> None:
        """Prints the result. A full pipe is waited for a while."""
        data = _line(event, values)
        with contextlib.suppress(OSError):
            while data and select.select([], [self._sink], [], _LAST_LINE_SECONDS)[1]:
                data = data[os.write(self._sink, data) :]


def _line(event: str, values: dict[str, object]) -> bytes:
    return msgspec.json.encode({"event": event, **values}) + b"\n"


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

    def __init__(self, request: OperationRequest, paths: Paths, config: Config, channel: OperationChannel) -> None:
        self.request, self.paths, self.config, self.channel = request, paths, config, channel
        self.placed, self.went = False, False

    async def run(self) -> tuple[str, str]:
        """Returns the instance, and what was done in a sentence. Raises GpuboxError."""
        check_no_measurement(self.paths)
        return await (self._start() if self.request.kind == "start" else self._stop())

    async def _start(self) -> tuple[str, str]:
        catalog = await asyncio.to_thread(load_catalog, self.paths)
        profile = catalog.get(self.request.profile)
        if profile.elsewhere:
            raise GpuboxError(profile.elsewhere)
        profile = replace(profile, host=LOOPBACK, port=0)
        planner = Planner(self.paths, self.config)
        loads = {
            each.instance: ServerLoad(each.idle_seconds, each.running + each.waiting, each.pinned)
            for each in self.request.servers
        }
        placement = await asyncio.to_thread(find_placement, profile, self.paths, catalog, planner, loads)
        supervisor = self._supervisor(placement.instance, planner)
        await supervisor.place(profile, displaces=placement.displaces, go=partial(self._go, placement))
        return placement.instance, f"{profile.name} answers."

    async def _stop(self) -> tuple[str, str]:
        name = self.request.profile
        instance = find_instance(self.paths, name)
        if instance is None:
            raise GpuboxError(f"{name} is not running.", code=ExitCode.NOT_RUNNING)
        go = partial(self._go, Placement(instance, (instance,)))
        await self._supervisor(instance).unload(name, go=go)
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
        instances = sorted({placement.instance, *placement.displaces})
        displaces = [name for name in instances if running_servers(self.paths, name)]
        self.placed = True
        self.channel.emit("placed", instance=placement.instance, displaces=displaces)
        if not await self.channel.wait_go():
            raise GpuboxError("The gateway gave it up.", code=ExitCode.INTERRUPTED)
        check_no_measurement(self.paths)  # it may have begun meanwhile
        self.went = True


def run_operation(paths: Paths, channel: OperationChannel) -> int:
    """Runs the operation that the gateway asks for. Returns the exit code."""
    try:
        request = channel.read_request()
        work = _Work(request, paths, load_config(paths), channel)
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
        channel.emit_last("placed", instance=instance, displaces=[])  # it ran already
    channel.emit_last("finished", ok=True, instance=instance, message=message)
    return 0


def _fail(channel: OperationChannel, error: GpuboxError) -> int:
    # Temporary: it says nothing about the profile, and the same request may succeed a moment later.
    temporary = isinstance(error, InstanceBusy | MeasurementUnderWay) or error.code == ExitCode.INTERRUPTED
    values = {"message": error.message, "hint": error.hint, "exit_code": int(error.code), "temporary": temporary}
    channel.emit_last("failed", **values)
    return int(error.code)


def main() -> int:
    """Arguments: ``CONFIG STATE CACHE CONFIG_FILE``, as for the watcher."""
    return run_operation(Paths.from_arguments(*sys.argv[1:]), OperationChannel())


if __name__ == "__main__":
    raise SystemExit(main())
