"""Where the gateway listens, and how many clients may come."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable, Sequence

from gpubox.errors import GpuboxError
from gpubox.gateway.background import UNIT
from gpubox.hardware.process import port_owner

MAX_CONNECTIONS = 1024
_ACCEPTED_AT_ONCE = 32
_OTHER_DESCRIPTORS = 64 + 8 * _ACCEPTED_AT_ONCE
"""Files, pipes to an operation, and connections that were accepted and are not known yet."""
_BACKLOG = MAX_CONNECTIONS
"""So many clients may wait while systemd starts the gateway again: each more would try again after 1 s, 3 s, 7 s ..."""


def most_connections() -> int:
    """How many clients there may be at once: each may need a connection to a server, too.

    Raises the process's own limit of open files for that as far as it may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + _OTHER_DESCRIPTORS
    if 0 <= soft < wanted:  # -1: no limit
        raised = wanted if hard < 0 else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return MAX_CONNECTIONS if soft < 0 else max(8, min(MAX_CONNECTIONS, (soft - _OTHER_DESCRIPTORS) // 2))


async def listen(
    host: str, port: int, factory: Callable[[], asyncio.Protocol], sockets: Sequence[socket.socket]
) -> list[asyncio.Server]:
    """Takes connections at ``host`` and ``port``, or on sockets that are open and stay so. Raises GpuboxError."""
    loop = asyncio.get_running_loop()
    if sockets:
        own = [await loop.create_server(factory, sock=each.dup(), backlog=_ACCEPTED_AT_ONCE) for each in sockets]
        for each in sockets:
            each.listen(_BACKLOG)
        return own
    try:
        listener = await loop.create_server(factory, host, port, backlog=_ACCEPTED_AT_ONCE)
        for each in listener.sockets:  # asyncio knows one number for what it accepts at once and for the kernel's queue
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(_BACKLOG)
        return [listener]
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise GpuboxError(f"The gateway cannot listen on {host}:{port}: {error.strerror or error}.") from None
        owner = await asyncio.to_thread(port_owner, port)
        if owner and owner.name == "systemd":
            hint = f"Units of `gpubox serve --install` start the gateway there: `systemctl --user start {UNIT}`."
        else:
            hint = "`gpubox stop` frees the port of a server: its profile starts again with the first request for it. "
            hint += f"Or use another port: `gpubox serve --port {port + 1}`."
        raise GpuboxError(f"Port {port} is used{f' by {owner}' if owner else ''}.", hint) from None
