"""The client's side of the gateway: reads HTTP requests within limits, and writes replies as bytes.

h11 parses requests, strictly. Replies are written without it, because a server's bytes are passed on as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import h11

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
MAX_CONNECTIONS = 1024
ACCEPTED_AT_ONCE = 32
_OTHER_DESCRIPTORS = 64 + 8 * ACCEPTED_AT_ONCE
"""Files, pipes to an operation, and connections that were accepted and are not known yet."""
BODIES_BYTES = 256 * 1024 * 1024
"""All bodies that are held at once."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PIPELINED_BYTES = 64 * 1024
_CHUNK_END = b"0\r\n\r\n"

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One whole request of a client."""

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
    """The request is broken or too large. ``status`` and ``sentence`` go to the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(slots=True)
class ConnectionLimits:
    """What all connections share."""

    body_bytes: int
    held_bytes: int = 0
    connections: dict[ClientConnection, None] = field(default_factory=dict)
    """In the order in which they were made."""
    most_connections: int = MAX_CONNECTIONS


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
        self._connection = connection
        self._chunked = False
        self._close = not request.keep_alive

    @property
    def head_sent(self) -> bool:
        return self.status != 0

    def start(self, status: int, headers: Headers, *, length: int | None = None, chunked: bool = False) -> None:
        """Writes the head. ``chunked``: the body comes in chunks, if the client understands them.

        Without a length and chunks the body ends with the connection.
        """
        self.status = status
        self._chunked = chunked and self.request.chunked_reply
        self._close = self._close or (length is None and not self._chunked)
        headers = (*headers, *self.headers)
        if self.change:
            headers, length, self._chunked = self.change.head(headers), None, self.request.chunked_reply
            self._close = self._close or not self._chunked
        lines = [f"HTTP/1.1 {status} {_phrase(status)}".encode(), *(name + b": " + value for name, value in headers)]
        origin = self.request.header("origin") if self.page_may_read else ""
        if origin and b"access-control-allow-origin" not in {name.lower() for name, _ in headers}:
            lines.append(b"Access-Control-Allow-Origin: " + origin.encode("latin-1"))
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif length is not None:
            lines.append(b"Content-Length: %d" % length)
        lines.append(b"Connection: close" if self._close else b"Connection: keep-alive")
        self.write_raw(b"\r\n".join((*lines, b"", b"")))

    def write_raw(self, data: bytes) -> None:
        """Writes bytes as they are, with the framing that they have."""
        self._connection.write(data)

    def write(self, payload: bytes) -> None:
        """Writes a part of the body, in the framing that the head announced."""
        self._write(self.change.feed(payload) if self.change else payload)

    def _write(self, payload: bytes) -> None:
        if payload:
            self.write_raw(b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload)

    def finish(self, *, framed: bool = False) -> None:
        """Ends the reply. ``framed``: the end of the chunks was written with the raw bytes."""
        if self.change:
            self._write(self.change.end())
        if self._chunked and not framed:
            self.write_raw(_CHUNK_END)
        self.complete = True
        self._connection.finish(close=self._close)

    def reply(self, status: int, body: bytes, content_type: bytes = b"application/json", headers: Headers = ()) -> None:
        """Writes a whole reply."""
        self.start(status, ((b"Content-Type", content_type), *headers), length=len(body))
        self.write(b"" if self.request.method == "HEAD" else body)
        self.finish()

    def close_after(self) -> None:
        """Closes the connection after this reply."""
        self._close = True

    def abort(self) -> None:
        """Closes the connection in the middle of the reply: so the client knows that it is not whole."""
        self._connection.abort()

    def on_pressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Sets what stops and continues the source of the body when the client reads too slowly."""
        self._connection.on_pressure(pause, resume)

    def drop_body(self) -> None:
        """The body has been sent on: its memory is free again."""
        self.request = replace(self.request, body=b"")
        self._connection.release_body()


Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Answers one request. It is cancelled when the client leaves."""
Refuser = Callable[[Exchange, int, str], None]
"""Answers a request that could not be read."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client: its requests are answered one after another."""

    def __init__(self, limits: ConnectionLimits, handler: Handler, refuser: Refuser) -> None:
        self._limits, self._handler, self._refuser = limits, handler, refuser
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = _new_parser()
        self._peer = ""
        self._timer: asyncio.TimerHandle | None = None
        self._head: h11.Request | None = None
        self._parts: list[bytes] = []
        self._held = 0
        self._began = self._last_data = 0.0
        self._task: asyncio.Task[None] | None = None
        self._pipelined = b""
        self._too_much_pipelined = False
        self._lingering = False
        self._pressure: tuple[Callable[[], None] | None, Callable[[], None] | None] = (None, None)
        self._stalled: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self._peer = name[0] if isinstance(name, tuple) else ""
        self._limits.connections[self] = None
        self._wait(IDLE_SECONDS, self.abort)
        if len(self._limits.connections) > self._limits.most_connections:
            if silent := next((each for each in self._limits.connections if each.idle and each is not self), None):
                silent.abort()
            else:
                self._refuse(RequestRefused(503, "The gateway has too many connections."))

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._task is not None:
            self._pipelined += data
            if len(self._pipelined) > _PIPELINED_BYTES:  # reading goes on: else the client's end would not be seen
                self._pipelined, self._too_much_pipelined = b"", True
            return
        self._feed(data)

    def eof_received(self) -> bool:
        if self._task is not None:  # a client that closes its side while it waits has left
            self._task.cancel()
        elif self._began and not self._lingering:
            self._feed(b"")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._limits.connections.pop(self, None)
        self._cancel_timer()
        self._cancel_stall()
        self.release_body()
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        if pause := self._pressure[0]:
            pause()
        self._stalled = self._stalled or self._loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        self._cancel_stall()
        if resume := self._pressure[1]:
            resume()

    # -- for Exchange ----------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def on_pressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pressure = (pause, resume)
        if self._stalled:
            pause()

    def release_body(self) -> None:
        self._limits.held_bytes -= self._held
        self._held = 0

    def finish(self, *, close: bool) -> None:
        self._pressure = (None, None)
        self.release_body()
        if not self._transport or not (close or self._too_much_pipelined):
            return
        if self._lingering:
            with contextlib.suppress(OSError):
                self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    # -- the work ----------------------------------------------------

    def end_when_idle(self) -> None:
        """Closes the connection if no request is being answered on it; the gateway ends."""
        if self._task is None and self._transport:
            self._transport.close()

    @property
    def idle(self) -> bool:
        """Whether no byte of a request has come."""
        return not self._began and self._task is None and not self._lingering

    def _feed(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._began and data:
            self._began = now
            self._wait(HEAD_SECONDS, self._head_late)
        try:
            self._parser.receive_data(data)
            self._read_events(now)
        except h11.RemoteProtocolError as error:
            self._refuse(RequestRefused(error.error_status_hint, f"This is not valid HTTP: {_plain(str(error))}."))
        except RequestRefused as refusal:
            self._refuse(refusal)

    def _read_events(self, now: float) -> None:
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                if self._head is None:
                    return
                if self._parser.they_are_waiting_for_100_continue:
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    self._parser.send(h11.InformationalResponse(status_code=100, headers=[]))
                return
            if isinstance(event, h11.Request):
                self._head = event
                _check_framing(event, self._limits.body_bytes)
                self._last_data = now
                self._wait(BODY_SILENCE_SECONDS, self._check_body)
            elif isinstance(event, h11.Data):
                self._last_data = now
                self._hold(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._answer(now)
                return
            else:  # the connection was closed between two requests
                return

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        self._limits.held_bytes += len(part)
        if self._held > self._limits.body_bytes:
            raise RequestRefused(413, _too_large(self._limits.body_bytes))
        if self._limits.held_bytes > BODIES_BYTES:
            raise RequestRefused(503, "The gateway holds too many large requests now.")
        self._parts.append(part)

    def _answer(self, now: float) -> None:
        assert self._head is not None
        self._cancel_timer()
        self._pipelined = self._parser.trailing_data[0]
        exchange = Exchange(self, self._request(self._head, b"".join(self._parts), now))
        self._head, self._parts = None, []
        self._task = self._loop.create_task(self._run(exchange))

    def _request(self, head: h11.Request, body: bytes, now: float) -> HttpRequest:
        version = head.http_version
        connection = b",".join(value for name, value in head.headers if name == b"connection").lower()
        return HttpRequest(
            method=head.method.decode("ascii"),
            target=_origin_form(head.target.decode("ascii", "replace")),
            headers=tuple((bytes(name), bytes(value)) for name, value in head.headers),
            body=body,
            keep_alive=version == b"1.1" and b"close" not in connection,
            chunked_reply=version == b"1.1",
            peer=self._peer,
            began=self._began,
            received=now,
        )

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        except asyncio.CancelledError:
            self.abort()
        finally:
            self._task = None
        if not exchange.complete:
            self.abort()
        elif self._transport and not self._transport.is_closing():
            self._next()

    def _next(self) -> None:
        """Reads the next request of a kept connection."""
        self._parser = _new_parser()
        self._began, waiting, self._pipelined = 0.0, self._pipelined, b""
        self._wait(IDLE_SECONDS, self.abort)
        if waiting:
            self._feed(waiting)

    def _refuse(self, refusal: RequestRefused) -> None:
        """Answers a request that is not read to its end, and closes the connection."""
        self._lingering = True
        head = self._head or h11.Request(method="GET", target="/", headers=[("Host", "")])
        try:
            request = self._request(head, b"", time.monotonic())
        except RequestRefused:
            request = HttpRequest("GET", "/", (), b"", False, False, self._peer, self._began, time.monotonic())
        exchange = Exchange(self, request)
        exchange.close_after()
        self._parts = []
        self._refuser(exchange, refusal.status, refusal.sentence)
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
        self._cancel_timer()
        self._timer = self._loop.call_later(seconds, act)

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _cancel_stall(self) -> None:
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None


def _new_parser() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)


def _check_framing(head: h11.Request, body_limit: int) -> None:
    """Raises RequestRefused for what the gateway does not take, before any of the body is read."""
    method = head.method.decode("ascii")
    if method not in METHODS:
        raise RequestRefused(405, f"The gateway does not know the method {_plain(method)}.")
    if head.http_version not in (b"1.0", b"1.1"):
        raise RequestRefused(505, "The gateway speaks HTTP/1.1.")
    size = len(head.target) + sum(len(name) + len(value) + 4 for name, value in head.headers)
    if size > HEAD_BYTES or len(head.headers) > MAX_HEADERS:  # h11 limits only a head that comes in parts
        raise RequestRefused(
            431, f"The head of the request is larger than {HEAD_BYTES >> 10} KiB or {MAX_HEADERS} lines."
        )
    names = [name for name, _ in head.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise RequestRefused(400, "The request gives its length twice: Content-Length and Transfer-Encoding.")
    if b"transfer-encoding" in names and head.http_version != b"1.1":
        raise RequestRefused(400, "Transfer-Encoding needs HTTP/1.1.")
    length = next((int(value) for name, value in head.headers if name == b"content-length"), 0)
    if length > body_limit:
        raise RequestRefused(413, _too_large(body_limit))


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


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"


def _plain(text: str) -> str:
    return sanitize_line(text)[:200]
