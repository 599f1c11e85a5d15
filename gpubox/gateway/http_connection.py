"""The client's side of the gateway: reads HTTP requests within limits, and writes replies as bytes.

aiohttp's parser (llhttp) reads requests, strictly. The connection is not that of aiohttp's server (3.14), which has no
limit of time for a head or a body, waits on for a body whose chunks are broken, closes before a refused client has read
why, and stops reading behind pipelined requests, so that it does not see a client leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from http.client import responses
from typing import Any

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpRequestParser, HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from gpubox.gateway.changes import ReplyChange
from gpubox.sanitize import sanitize_line

HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
HEAD_SECONDS = 15.0
"""For the whole head of a request."""
IDLE_SECONDS = 75.0
"""For the first byte of the next request on a kept connection."""
BODY_SILENCE_SECONDS = 30.0
BODY_SECONDS = 300.0
"""For a whole body."""
STALL_SECONDS = 60.0
"""A client that takes no byte of its answer for so long is dropped: its server's slot waits for it."""
LINGER_SECONDS = 2.0
"""How long the rest of a refused request is read and thrown away: without that, the client may not see the answer."""
BODIES_BYTES = 256 * 1024 * 1024
"""All bodies that are held at once."""
_HEAD_TOO_LARGE = f"The head of the request is larger than {HEAD_BYTES >> 10} KiB or {MAX_HEADERS} lines."
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PIPELINED_BYTES = 64 * 1024
_NEVER_PAUSED = 1 << 30
"""aiohttp's limit for a body that nobody reads; the gateway's own are below it."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: the end of the connection is an error for the client (socket(7))."""

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    target: str
    """Path and query, as sent."""
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case."""
    body: bytes
    keep_alive: bool
    chunked_reply: bool
    """Whether the client understands chunks (HTTP/1.1)."""
    peer: str
    began: float
    """When its first byte came: time.monotonic()."""
    received: float
    """When its last byte came."""

    def header(self, name: str) -> str:
        """The first value of a header; empty if it is absent."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), "")


class RequestRefused(Exception):
    """The request gets no answer of a server. ``status`` and ``sentence`` go to the client."""

    def __init__(
        self, status: int, sentence: str, retry_seconds: float | None = None, *, is_broken: bool = False
    ) -> None:
        """``retry_seconds``: nothing changes before. ``is_broken``: and most likely not then either."""
        super().__init__(sentence)
        self.status, self.sentence, self.retry_seconds, self.is_broken = status, sentence, retry_seconds, is_broken


@dataclass(slots=True)
class ConnectionLimits:
    """What all connections share."""

    body_bytes: int
    most_connections: int
    held_bytes: int = 0
    connections: dict[ClientConnection, None] = field(default_factory=dict)
    """In the order in which they were made."""


class Exchange:
    """One request, and the reply that is written to its client."""

    def __init__(self, connection: ClientConnection, request: HttpRequest) -> None:
        self.request = request
        self.status = 0
        """The status that was sent; 0: none yet."""
        self.complete = False
        """Whether the whole reply was written."""
        self.page_may_read = False
        """Whether a web page that asked may read the reply: its Origin, or its key, was accepted."""
        self.headers: Headers = ()
        """More headers of the reply."""
        self.change: ReplyChange | None = None
        self.chunked = False
        self._connection = connection
        connection.closes = connection.closes or not request.keep_alive
        self._endless = False
        self._unsent = b""

    def start(self, status: int, headers: Headers, *, length: int | None = None, chunked: bool = False) -> None:
        """Writes the head, with the body that follows at once. ``chunked``: the body comes in chunks, if the client
        understands them. Without a length and chunks it ends with the connection.
        """
        self.status = status
        headers = (*headers, *self.headers)
        if self.change:
            headers, length, chunked = self.change.head(headers), None, True
        self.chunked = chunked and self.request.chunked_reply
        self._endless = length is None and not self.chunked
        self._connection.closes = self._connection.closes or self._endless
        phrase = responses.get(status, "Status")
        lines = [f"HTTP/1.1 {status} {phrase}".encode(), *(name + b": " + value for name, value in headers)]
        origin = self.request.header("origin") if self.page_may_read else ""
        if origin and b"access-control-allow-origin" not in {name.lower() for name, _ in headers}:
            lines.append(b"Access-Control-Allow-Origin: " + origin.encode("latin-1"))
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif length is not None:
            lines.append(b"Content-Length: %d" % length)
        lines.append(b"Connection: close" if self._connection.closes else b"Connection: keep-alive")
        self._unsent = b"\r\n".join((*lines, b"", b""))
        asyncio.get_running_loop().call_soon(self._send, b"")  # each write wakes the client: one is cheaper than two

    def write(self, payload: bytes) -> None:
        """Writes a part of the body, in the framing that the head announced."""
        self._send(self._framed(self.change.feed(payload) if self.change else payload))

    def _framed(self, payload: bytes) -> bytes:
        if not payload or self.request.method == "HEAD":
            return b""
        return b"%x\r\n%b\r\n" % (len(payload), payload) if self.chunked else payload

    def _send(self, data: bytes) -> None:
        data, self._unsent = self._unsent + data, b""
        self._connection.write(data)

    async def drained(self) -> None:
        """Returns when the client has read most of what was written: whoever waits for it buffers nothing more."""
        await self._connection.writable.wait()

    def finish(self, payload: bytes = b"") -> None:
        """Ends the reply with the last part of its body."""
        if self.change:
            payload = self.change.feed(payload) + self.change.end()
        ends = self.chunked and self.request.method != "HEAD"
        self._send(self._framed(payload) + (b"0\r\n\r\n" if ends else b""))
        self.complete = True
        self._connection.finish()

    def reply(self, status: int, body: bytes, content_type: bytes = b"application/json", headers: Headers = ()) -> None:
        self.start(status, ((b"Content-Type", content_type), *headers), length=len(body))
        self.finish(body)

    def abort(self) -> None:
        """Closes the connection in the middle of the reply: so the client knows that it is not whole."""
        self._connection.abort(reset=self._endless)

    def drop_body(self) -> None:
        """The body has been sent on: its memory is free again."""
        self.request = replace(self.request, body=b"")
        self._connection.release_body()


Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Answers one request. It is cancelled when the client leaves."""
Refuser = Callable[[Exchange, int, str], None]
"""Answers a request that could not be read."""


class ClientConnection(BaseProtocol):
    """One connection of a client: its requests are answered one after another."""

    def __init__(self, limits: ConnectionLimits, handler: Handler, refuser: Refuser) -> None:
        super().__init__(asyncio.get_running_loop())
        self._limits, self._handler, self._refuser = limits, handler, refuser
        self._requests = HttpRequestParser(
            self, self._loop, _NEVER_PAUSED, max_line_size=HEAD_BYTES, max_field_size=HEAD_BYTES,
            max_headers=MAX_HEADERS, auto_decompress=False, max_msg_queue_size=1,
        )  # fmt: skip
        self._head: RawRequestMessage | None = None
        self._headers: tuple[tuple[bytes, bytes], ...] = ()
        self._payload: StreamReader = EMPTY_PAYLOAD
        self._peer = ""
        self._timer = self._loop.call_later(IDLE_SECONDS, self.abort)
        self._stalled: asyncio.TimerHandle | None = None
        self._came = self._held = 0
        self._began = self._last_data = 0.0
        self._task: asyncio.Task[None] | None = None
        self._pipelined = b""
        self.closes = self._lingers = False
        """closes: after this reply. lingers: what still comes is not read."""
        self.writable = asyncio.Event()
        self.writable.set()

    # -- asyncio.Protocol ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self._peer = name[0] if isinstance(name, tuple) else ""
        self._limits.connections[self] = None
        if len(self._limits.connections) > self._limits.most_connections:
            if silent := next((each for each in self._limits.connections if each.idle and each is not self), None):
                silent.abort()
            else:
                self._refuse(RequestRefused(503, "The gateway has too many connections."))

    def data_received(self, data: bytes) -> None:
        if self._task is None:
            self._feed(data)
            return
        self._pipelined += data
        if len(self._pipelined) > _PIPELINED_BYTES:  # reading goes on: else the client's end would not be seen
            self._pipelined, self.closes = b"", True

    def eof_received(self) -> bool:
        if self._task is not None:  # a client that closes its side while it waits has left
            self._task.cancel()
        elif self._began and not self._lingers:
            self._refuse(RequestRefused(400, "The request ends in its middle."))
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._limits.connections.pop(self, None)
        self._payload = EMPTY_PAYLOAD
        del self._requests  # it holds this connection, and a body would stay until memory is searched for cycles
        self._timer.cancel()
        if self._stalled:
            self._stalled.cancel()
        self.release_body()
        if self._task is not None:
            self._task.cancel()

    def pause_reading(self) -> None:
        """aiohttp asks for it; reading goes on: else the client's end would not be seen."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """It was not paused."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writable.clear()
        self._stalled = self._loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writable.set()
        if self._stalled:
            self._stalled.cancel()

    # -- for Exchange ----------------------------------------------------

    def write(self, data: bytes) -> None:
        if self.transport is not None and data:
            self.transport.write(data)

    def release_body(self) -> None:
        self._limits.held_bytes -= self._held
        self._held = 0

    def finish(self) -> None:
        self.release_body()
        if not self.transport or not self.closes:
            return
        if self._lingers:
            with contextlib.suppress(OSError):
                self.transport.write_eof()
        else:
            self._wait(STALL_SECONDS, self.abort)  # the client may never read the rest
            self.transport.close()

    def abort(self, *, reset: bool = False) -> None:
        if not self.transport:
            return
        if reset:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    # -- the work ----------------------------------------------------

    def end_when_idle(self) -> None:
        """Closes the connection if no request is being answered on it; the gateway ends."""
        if self._task is None and self.transport:
            self.transport.close()

    @property
    def idle(self) -> bool:
        """Whether no byte of a request has come."""
        return not self._began and self._task is None and not self._lingers

    def _feed(self, data: bytes) -> None:
        if self._lingers:
            return
        self._last_data = now = time.monotonic()
        is_first = bool(data) and not self._began
        self._began = now if is_first else self._began
        self._came += len(data)
        try:
            self._read(data, now)
        except (HttpProcessingError, ValueError) as error:  # ValueError: a target that yarl does not take
            sentence = sanitize_line(str(*error.args[:1])).partition(":")[0][:200]
            status = 431 if isinstance(error, LineTooLong) else 400
            self._refuse(RequestRefused(status, f"This is not valid HTTP: {sentence}."))
        except RequestRefused as refusal:
            self._refuse(refusal)
        else:
            if is_first and self._head is None and self._task is None:
                self._wait(HEAD_SECONDS, self._head_late)

    def _read(self, data: bytes, now: float) -> None:
        messages, upgrades, _ = self._requests.feed_data(data)
        self.closes = self.closes or upgrades
        if messages:
            self._head, self._payload = messages[0]
            self._headers = _checked_headers(self._head, self._limits.body_bytes)
        if self._head is None:
            if self._came > HEAD_BYTES:
                raise RequestRefused(431, _HEAD_TOO_LARGE)
            return
        self._hold(self._payload.total_bytes - self._held)
        if self._payload.is_eof():
            self._answer(self._head, now)
        elif messages:
            self._wait(BODY_SILENCE_SECONDS, self._check_body)
            if (b"expect", b"100-continue") in self._headers and not self._held:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif self._came > 4 * HEAD_BYTES + 8 * self._held:
            raise RequestRefused(400, "The chunks of the body are mostly frames.")

    def _hold(self, size: int) -> None:
        self._held += size
        self._limits.held_bytes += size
        if self._held > self._limits.body_bytes:
            raise RequestRefused(413, _too_large(self._limits.body_bytes))
        if self._limits.held_bytes > BODIES_BYTES:
            raise RequestRefused(503, "The gateway holds too many large requests now.")

    def _answer(self, head: RawRequestMessage, now: float) -> None:
        self._timer.cancel()
        is_new = head.version == HttpVersion11
        request = HttpRequest(
            method=head.method,
            target=_origin_form(head.path),
            headers=self._headers,
            body=self._payload.read_nowait(),
            keep_alive=is_new and not head.should_close,
            chunked_reply=is_new,
            peer=self._peer,
            began=self._began or now,
            received=now,
        )
        self._head, self._payload = None, EMPTY_PAYLOAD
        self._task = self._loop.create_task(self._run(Exchange(self, request)))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except asyncio.CancelledError:
            exchange.abort()
        finally:
            self._task = None
        if not exchange.complete:
            exchange.abort()
        elif self.transport and not self.transport.is_closing():
            self._next()

    def _next(self) -> None:
        """Reads the next request of a kept connection."""
        self._began, self._came, waiting, self._pipelined = 0.0, 0, self._pipelined, b""
        self._wait(IDLE_SECONDS, self.abort)
        self._requests.message_consumed()
        self._feed(waiting)  # behind what the parser kept

    def _refuse(self, refusal: RequestRefused) -> None:
        """Answers a request that is not read to its end, and closes the connection."""
        self._lingers, self._payload = True, EMPTY_PAYLOAD
        method = self._head.method if self._head else "GET"
        request = HttpRequest(method, "/", (), b"", False, False, self._peer, self._began, time.monotonic())
        self._refuser(Exchange(self, request), refusal.status, refusal.sentence)
        self._wait(LINGER_SECONDS, self.abort)

    def _head_late(self) -> None:
        self._refuse(RequestRefused(408, f"The head of the request did not come within {HEAD_SECONDS:.0f} s."))

    def _check_body(self) -> None:
        now = time.monotonic()
        if now - self._began > BODY_SECONDS or now - self._last_data >= BODY_SILENCE_SECONDS:
            self._refuse(RequestRefused(408, "The body of the request did not come in time."))
        else:
            self._wait(BODY_SILENCE_SECONDS - (now - self._last_data), self._check_body)

    def _wait(self, seconds: float, act: Callable[[], None]) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, act)


def _checked_headers(head: RawRequestMessage, body_limit: int) -> tuple[tuple[bytes, bytes], ...]:
    """Its headers with names in lower case. Raises RequestRefused for what the gateway does not take."""
    if head.method not in METHODS:
        raise RequestRefused(405, f"The gateway does not know the method {head.method}.")
    headers = tuple((name.lower(), value) for name, value in head.raw_headers)
    if len(head.path) + sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES:
        raise RequestRefused(431, _HEAD_TOO_LARGE)
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if head.version not in (HttpVersion10, HttpVersion11) or (codings and head.version != HttpVersion11):
        raise RequestRefused(400, "The request is not HTTP/1.1.")
    if codings and codings != [b"chunked"]:
        raise RequestRefused(400, "The gateway knows no Transfer-Encoding but chunked.")
    if any(name == b"content-length" and int(value) > body_limit for name, value in headers):
        raise RequestRefused(413, _too_large(body_limit))
    return headers


def _origin_form(target: str) -> str:
    """Path and query of a target; that of a proxy request has scheme and host before it (RFC 9112, 3.2)."""
    if target.lower().startswith(("http://", "https://")):
        rest = target.split("://", 1)[1]
        target = "/" + rest.partition("/")[2]
    if target == "*":
        return "/"
    if not target.startswith("/") or not target.isascii():
        raise RequestRefused(400, "The target of the request is not a path.")
    return target


def _too_large(limit: int) -> str:
    return f"The body is larger than {limit >> 20} MiB (max-body-mib in config.toml)."
