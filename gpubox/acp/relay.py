"""The outer end of a confined agent's only ways out: unix sockets in a folder that is mounted inside.

``gateway`` leads to the gateway's address and nowhere else. ``proxy`` is an HTTP proxy to the hosts that the owner
named: it asks for their addresses itself, and leads to none of this machine or its network.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from gpubox.clock import utc_now
from gpubox.errors import GpuboxError
from gpubox.sandbox.spawn import layer_owner
from gpubox.sanitize import sanitize_line
from gpubox.storage import is_locked, open_private, try_lock
from gpubox.units import MIB

GATEWAY, PROXY = "gateway", "proxy"
"""The sockets' names."""
_MAX_CONNECTIONS = 128
"""Of each socket at one time. Further ones are closed."""
_PIECE_BYTES, _MAX_HEAD_BYTES, _MAX_LOG_BYTES = 65536, 65536, MIB
_HEAD_SECONDS, _CONNECT_SECONDS, _FLUSH_SECONDS, _NEW_SECONDS = 30.0, 20.0, 60.0, 60.0
_MAX_PATH_BYTES = 90
"""Of the 108 of a unix socket's address, less its name."""
_HOST = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
_TUNNEL = re.compile(rf"CONNECT {_HOST} HTTP/1\.[01]")
_PLAIN = re.compile(rf"(?!CONNECT)(?P<method>[A-Z]{{1,20}}) http://{_HOST}(?P<path>[/?][!-~]*)? HTTP/1\.[01]")
_NAMED = re.compile(rf"(?P<star>\*\.)?{_HOST}")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _RefusedError(Exception):
    """The proxy refuses a request: a sentence."""


class Relay:
    """Both sockets. Use it with ``async with``."""

    def __init__(self, gateway: tuple[str, int], *, hosts: Sequence[str] = (), log: Path | None = None) -> None:
        """``gateway``: its address and port. ``hosts``: ``example.org``, ``*.example.org``, each perhaps with a port.

        ``log``: where the proxy notes each request. Raises GpuboxError if a host cannot be one.
        """
        self._gateway, self._log, self._owner = gateway, log, layer_owner()
        self._hosts = [_named(host) for host in hosts]
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._lock = -1
        self.folder = Path()
        """Holds the sockets, for the agent's user alone."""

    async def __aenter__(self) -> Relay:
        """Raises GpuboxError."""
        try:
            self.folder, self._lock = _make_folder()
            await self._listen(GATEWAY, self._to_gateway)
            if self._hosts:
                await self._listen(PROXY, self._to_host)
            if self._owner is not None:
                os.chown(self.folder, self._owner, self._owner)
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise GpuboxError(f"The agent's way to the gateway cannot be made: {error.strerror}.") from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections, and returns when they are closed. May be called twice."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.folder.name:
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._lock >= 0:
                os.close(self._lock)
            self._lock = -1

    async def _listen(self, name: str, serve: Callable[[StreamReader, StreamWriter], Awaitable[None]]) -> None:
        count = 0

        async def begin(reader: StreamReader, writer: StreamWriter) -> None:
            nonlocal count
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            count += 1
            try:
                if count <= _MAX_CONNECTIONS:
                    await serve(reader, writer)
                    await _finish(writer)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass  # the other end sees that the connection ends
            except asyncio.CancelledError:
                pass  # of ``close``: the server would report it
            finally:
                count -= 1
                self._tasks.discard(task)
                writer.transport.abort()

        path = self.folder / name
        self._servers.append(await asyncio.start_unix_server(begin, path, limit=_MAX_HEAD_BYTES))
        path.chmod(0o600)
        if self._owner is not None:
            os.chown(path, self._owner, self._owner)

    async def _to_gateway(self, reader: StreamReader, writer: StreamWriter) -> None:
        await _join(reader, writer, *await asyncio.wait_for(asyncio.open_connection(*self._gateway), _CONNECT_SECONDS))

    async def _to_host(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
        first, *fields = head[:-4].decode("latin-1").split("\r\n")
        try:
            host, port, request, body = _request(first, fields)
            streams = await self._connect(host, port)
        except _RefusedError as refusal:
            self._note(first, f"refused: {refusal}")
            text = f"gpubox: {refusal}\n".encode()
            status = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
            writer.write(status + f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
            await writer.drain()
            writer.write_eof()
            await asyncio.wait_for(reader.read(_PIECE_BYTES), _HEAD_SECONDS)  # else what was written may be lost
            return
        if request:
            streams[1].write(request)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        moved = [0, 0]
        try:
            await _join(reader, writer, *streams, most=body, moved=moved)
        finally:
            self._note(first, f"allowed: {moved[0]:,} bytes sent, {moved[1]:,} received")

    async def _connect(self, host: str, port: int) -> tuple[StreamReader, StreamWriter]:
        """Raises _RefusedError if the owner did not name the host, or if it leads to this machine or its network."""
        if not any(_matches(named, host, port) for named in self._hosts):
            raise _RefusedError(f"{host}:{port} is not among the hosts that the owner allowed to this agent.")
        is_named = _address(host) is not None
        try:
            found_at = await asyncio.wait_for(
                asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM), _CONNECT_SECONDS
            )
        except (OSError, TimeoutError, UnicodeError):
            raise _RefusedError(f"{host} has no address.") from None
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found_at))
        outside = [address for address in addresses if is_named or _is_outside(address)]
        if not outside:
            raise _RefusedError(f"{host} is at {addresses[0]}, an address of this machine or its network.")
        for address in outside:
            with contextlib.suppress(OSError, TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection(address, port), _CONNECT_SECONDS)
        raise _RefusedError(f"{host} cannot be reached.")

    def _note(self, request: str, outcome: str) -> None:
        if self._log is None:
            return
        line = f"{utc_now()} {sanitize_line(request[:300])} {outcome}\n".encode()
        with contextlib.suppress(OSError):  # a full disk
            if self._log.exists() and self._log.stat().st_size > _MAX_LOG_BYTES:
                self._log.replace(self._log.with_suffix(".old"))
            descriptor = open_private(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)


def _make_folder() -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock. Removes those that a killed gpubox left."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(os.fsencode(base)) < _MAX_PATH_BYTES - 20 and os.access(base, os.W_OK):
            for old in Path(base).glob("gpubox-relay-*"):
                with contextlib.suppress(OSError):
                    status = old.lstat()
                    is_new = status.st_mtime > time.time() - _NEW_SECONDS  # perhaps not locked yet
                    if stat.S_ISDIR(status.st_mode) and not is_new and not is_locked(old):
                        shutil.rmtree(old, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix="gpubox-relay-", dir=base))
            lock = os.open(folder, os.O_RDONLY)
            try_lock(lock)
            return folder, lock
    raise OSError(0, "no folder for sockets")


async def _join(
    reader: StreamReader,
    writer: StreamWriter,
    other_reader: StreamReader,
    other_writer: StreamWriter,
    *,
    most: int | None = None,
    moved: list[int] | None = None,
) -> None:
    """Passes bytes both ways until both ends have ended, or one fails; from the first at most ``most``."""
    counts = [0, 0] if moved is None else moved

    async def pass_on(source: StreamReader, target: StreamWriter, way: int, left: int | None) -> None:
        while left != 0 and (data := await source.read(min(left or _PIECE_BYTES, _PIECE_BYTES))):
            target.write(data)
            counts[way] += len(data)
            left = left - len(data) if left is not None else None
            await target.drain()
        if most is None or way:
            target.write_eof()

    ways = [
        asyncio.create_task(pass_on(reader, other_writer, 0, most)),
        asyncio.create_task(pass_on(other_reader, writer, 1, None)),
    ]
    try:
        await asyncio.gather(*ways)
        await _finish(other_writer)
    finally:
        for task in ways:
            task.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        other_writer.transport.abort()


async def _finish(writer: StreamWriter) -> None:
    """Closes it once the other end has taken all that was written."""
    writer.close()
    await asyncio.wait_for(writer.wait_closed(), _FLUSH_SECONDS)


def _request(first: str, fields: list[str]) -> tuple[str, int, bytes, int | None]:
    """Host, port, what is sent there first, and how many bytes of a body follow; ``None``: it is a tunnel.

    Raises _RefusedError.
    """
    if match := _TUNNEL.fullmatch(first):
        return _plain_host(match["host"]), _port(match["port"], 443), b"", None
    if not (match := _PLAIN.fullmatch(first)):
        raise _RefusedError("this is no request of a proxy: CONNECT host:port, or a URL with http.")
    host, port, length = _plain_host(match["host"]), _port(match["port"], 80), 0
    kept = [f"{match['method']} {match['path'] or '/'} HTTP/1.1", f"Host: {match['host']}:{port}", "Connection: close"]
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not re.fullmatch(r"[!#-'*+.0-9A-Z^-z|~-]+", name) or re.search(r"[\0\r\n]", value):
            raise _RefusedError("a field of the request is malformed.")
        if name.lower() == "transfer-encoding":
            raise _RefusedError("a body without a length is not passed on.")
        if name.lower() == "content-length":
            if length or not re.fullmatch(r" *[0-9]{1,12} *", value):
                raise _RefusedError("the length of the body is malformed.")
            length = int(value)
        if name.lower() not in ("host", "connection", "keep-alive", "upgrade") and not name.lower().startswith(
            "proxy-"
        ):
            kept.append(field)
    return host, port, "\r\n".join([*kept, "", ""]).encode("latin-1"), length


def _plain_host(text: str) -> str:
    return text.strip("[]").rstrip(".").lower()


def _port(text: str | None, usual: int) -> int:
    port = int(text) if text else usual
    if not 0 < port < 65536:
        raise _RefusedError(f"{port} is no port.")
    return port


def _named(text: str) -> tuple[bool, str, int | None]:
    """Whether it stands for the hosts below it, the host, and its port. Raises GpuboxError."""
    match = _NAMED.fullmatch(text)
    if not match or (match["star"] and _address(match["host"])) or not _plain_host(match["host"]):
        raise GpuboxError(
            f"{sanitize_line(text[:100])} is no host.", "Write example.org, *.example.org or a host:port."
        )
    return bool(match["star"]), _plain_host(match["host"]), int(match["port"]) if match["port"] else None


def _matches(named: tuple[bool, str, int | None], host: str, port: int) -> bool:
    below, name, only_port = named
    right_port = port == only_port if only_port else port in (80, 443)
    return right_port and (host.endswith(f".{name}") if below else host == name)


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_outside(text: str) -> bool:
    """Whether the address is one of the internet, and not of this machine."""
    address = _address(text)
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner and not _is_outside(str(inner)):
            return False
    if address is None or not address.is_global or address.is_multicast:
        return False
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((text, 9))  # sends nothing: it only asks which way leads there
        return str(probe.getsockname()[0]) != text
    return True
