"""``gpubox serve``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from gpubox.cli import diagnostics, output
from gpubox.cli.context import Context
from gpubox.cli.options import yes_option
from gpubox.errors import GpuboxError, UsageError
from gpubox.profiles.profile import is_loopback
from gpubox.server.state import GatewayRecord

if TYPE_CHECKING:
    from gpubox.gateway.gateway_status import GatewayEvent

_MOST_WAITING_EVENTS, _PRINT_SECONDS, _GATHER_SECONDS = 4096, 1.0, 0.005
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 64 * 1024


@click.command("serve")
@click.option("--host", metavar="ADDRESS", help="Listen on ADDRESS. [default: 127.0.0.1, or host in [gateway]]")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="[default: 8080, or port in [gateway]]")
@click.option("--detach", is_flag=True, help="Start it apart from this terminal.")
@click.option("--stop", is_flag=True, help="End the gateway that runs; the servers keep running.")
@click.option("--install", is_flag=True, help="Write systemd user units that keep it running with these options.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@click.option("--quiet", is_flag=True, help="Do not print a line for each request.")
@yes_option
@click.pass_obj
def command(
    context: Context, host: str | None, port: int | None, detach: bool, stop: bool, install: bool, as_json: bool,
    quiet: bool, yes: bool,
) -> None:  # fmt: skip
    """Answer all clients at one address, and bring up the profile that a request names in `model`.

    OpenAI's, Anthropic's and llama-server's own endpoints pass through. Requests wait while a profile is loaded, and no
    running answer is cut off. If a profile cannot be loaded, the one before it is restored.
    A server that has the gateway's port must stop first (`gpubox stop`): its profile starts again, at another port,
    with the first request for it.

    Stays in the foreground until Ctrl-C. The llama-servers keep running after it.
    """
    if stop:
        return _stop(context, as_json=as_json)
    from gpubox.gateway.background import answered_if_it_fails, inherited_sockets, start_detached

    with answered_if_it_fails(inherited_sockets()) as sockets:
        settings = context.config.gateway
        options = [*(["--host", host] if host else []), *(["--port", str(port)] if port else [])]
        host, port = sockets[0].getsockname()[:2] if sockets else (host or settings.host, port or settings.port)
        _check_host(host)
        _check_exposure(context, host, allow_exposed=yes or context.config.allow_exposed)
        if install:
            return _install(context, (host, port), [*options, *(["--yes"] if yes else [])], as_json=as_json)
        if detach:
            values = _record_values(start_detached(context.paths, host, port, allow_exposed=yes))
            return output.emit_result(f"The gateway listens on {values['base_url']}.", values, as_json=as_json)
        printer = _BackgroundPrinter(_printer(as_json=as_json, quiet=quiet))
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(_serve(context, host, port, sockets, printer))
        finally:
            printed = printer.close()
    if not printed:  # the thread holds stdout, and Python would wait for it
        os._exit(0)
    return None


def _check_host(host: str) -> None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(f"The host {host} is unknown here.", "Use 127.0.0.1, or 0.0.0.0 for every address.") from None


def _check_exposure(context: Context, host: str, *, allow_exposed: bool) -> None:
    if is_loopback(host) or allow_exposed:
        return
    from gpubox.gateway.client_keys import ClientKeys

    if not ClientKeys(context.paths).any:
        raise UsageError(
            f"host {host} opens the gateway to other machines, and there is no key.",
            "Make one: `gpubox keys add NAME`. Or use --yes, or set allow-exposed in config.toml.",
        )


def _stop(context: Context, *, as_json: bool) -> None:
    from gpubox.gateway.background import socket_unit
    from gpubox.gateway.gateway_client import stop

    values = _record_values(stop(context.paths))
    output.emit_result("The gateway has ended; the servers keep running.", values, as_json=as_json)
    if (unit := socket_unit(context.paths)).exists():
        diagnostics.note(f"The next request starts it again: `systemctl --user stop {unit.name}` prevents that.")


def _install(context: Context, address: tuple[str, int], options: list[str], *, as_json: bool) -> None:
    from gpubox.gateway.background import install

    unit = install(context.paths, address, options)
    if as_json:
        output.emit_json({"paths": [str(path) for path in unit.paths], "commands": unit.commands, "notes": unit.notes})
        return
    for path in unit.paths:
        output.emit(f"{path} is written.")
    output.emit("Start both now and at each boot; clients then wait while the gateway restarts:")
    for command in unit.commands:
        output.emit(f"    {command}")
    for note in unit.notes:
        diagnostics.note(f"  {note}")


def _record_values(record: GatewayRecord) -> dict[str, object]:
    return {"base_url": record.base_url, "pid": record.process.pid, "started_at": record.started_at}


def _return_large_blocks() -> None:
    """Bodies of requests go back to the system when they are freed.

    glibc raises its limit for that with each large block that is freed (mallopt(3)), and then keeps them.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, which takes less time for each token, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(
    context: Context, host: str, port: int, sockets: Sequence[socket.socket], emit: Callable[[GatewayEvent], None]
) -> None:
    from gpubox.gateway.gateway import Gateway

    _return_large_blocks()
    gateway = Gateway(context.paths, context.config, host=host, port=port, emit=emit)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, gateway.stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # a lost terminal ends no gateway
    await gateway.serve(sockets)


class _BackgroundPrinter:
    """Prints events in a thread: a stopped terminal, or a pipe that nobody reads, holds up no request.

    Of the events that wait for such a reader, only the first ones are kept.
    """

    def __init__(self, show: Callable[[GatewayEvent], None]) -> None:
        self._show = show
        self._events: queue.SimpleQueue[GatewayEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="print events")
        self._thread.start()

    def __call__(self, event: GatewayEvent) -> None:
        if self._events.qsize() < _MOST_WAITING_EVENTS:
            self._events.put(event)

    def close(self) -> bool:
        """Whether all that was to be printed is printed."""
        self._events.put(None)
        self._thread.join(_PRINT_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while event := self._events.get():
            self._show(event)
            if self._events.empty():
                time.sleep(_GATHER_SECONDS)  # to be woken for each of many events costs more than their lines


def _printer(*, as_json: bool, quiet: bool) -> Callable[[GatewayEvent], None]:
    """Prints each event. A closed stdout is no reason to end."""
    from gpubox.gateway.gateway_status import FinishedRequest
    from gpubox.views.clients import event_text

    def show(event: GatewayEvent) -> None:
        if quiet and isinstance(event, FinishedRequest):
            return
        try:
            if as_json:
                output.emit_text(_json_line(event))
            elif text := event_text(event):
                output.emit(f"{datetime.now():%H:%M:%S}  {text}")
        except (GpuboxError, OSError):
            return

    return show


def _json_line(event: GatewayEvent) -> str:
    import msgspec

    from gpubox.gateway.gateway_status import EVENT_NAMES

    return msgspec.json.encode({"event": EVENT_NAMES[type(event)], **msgspec.to_builtins(event)}).decode()
