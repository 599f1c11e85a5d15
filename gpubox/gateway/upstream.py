"""The server's side of the gateway: a connection for each request; aiohttp's parser (llhttp) reads the reply.

Connections are not kept: build 11434 closes them after each stream, and a request that met a closed one could not be
told from a request that was answered. aiohttp's own client (3.14) takes twice the processor time for a request, and
waits on for ever behind a broken chunk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpResponseParser, RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from gpubox.gateway.http_connection import HEAD_BYTES, HttpRequest

_CONNECT_SECONDS = 5.0
"""Only for the connection: a long prompt takes minutes, and a dead server closes."""
_READ_BYTES = 256 * 1024
"""Of a body that nobody takes, at most about twice as much is read."""
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"content-length",
})  # fmt: skip
"""Headers of one connection (RFC 9110, 7.6.1), and those that the framing replaces."""
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"expect", b"authorization", b"x-api-key", b"accept-encoding", b"cookie"}
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""aiohttp takes them in the headers of a reply."""
ANSWER_BYTES = 16 * 1024 * 1024


class UpstreamFailed(Exception):
    """The server did not answer, or not whole. The text is one sentence without a full stop."""


class NotConnected(UpstreamFailed):
    """No connection: the server has seen nothing of the request."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A reply whose head is here."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    """Those that go to the client."""
    length: int | None
    is_stream: bool
    """Whether the body is a stream of server-sent events."""
    body: StreamReader
    """Its ``readany`` raises UpstreamFailed if it is not whole."""


@asynccontextmanager
async def send_request(
    base_url: str, request: HttpRequest, body: bytes, key: str | None, on_sent: Callable[[], None] = lambda: None
) -> AsyncIterator[ServerReply]:
    """Sends ``request`` with ``body`` to the server at ``base_url``, and waits for the head of its reply.

    ``on_sent`` is called when the body has gone out. In the end the connection is
    closed: a llama-server stops generating then. Raises NotConnected, and UpstreamFailed for all that happens later.
    """
    address = urlsplit(base_url)  # which remembers the last addresses
    tls = _certificates() if address.scheme == "https" else None
    target = address.path.rstrip("/") + request.target.partition("#")[0]
    lines = [f"{request.method} {target} HTTP/1.1".encode(), b"Host: " + address.netloc.encode("idna")]
    lines += [name + b": " + value for name, value in _forwarded(request.headers)]
    if key:
        lines.append(b"Authorization: Bearer " + key.encode())
    if body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(b"Content-Length: %d" % len(body))
    data = [b"\r\n".join((*lines, b"Connection: close", b"", b"")), body]
    with_body = request.method != "HEAD"
    del request, body  # it is large, and would be held until the reply is over
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _ServerConnection(on_sent, with_body=with_body),
                address.hostname or "", address.port or (443 if tls else 80), ssl=tls,
            )  # fmt: skip
    except OSError as error:
        why = "in time" if isinstance(error, TimeoutError) else f"({error.strerror or error})"
        raise NotConnected(f"the server does not take connections {why}") from None
    try:
        connection.send(data)
        yield await connection.reply
    finally:
        if connection.transport:
            connection.transport.abort()  # a close would wait for what is not yet sent


class _ServerConnection(BaseProtocol):
    """One connection to a server, for one request and its reply."""

    def __init__(self, on_sent: Callable[[], None], *, with_body: bool) -> None:
        super().__init__(asyncio.get_running_loop())
        self._replies = self._parser = HttpResponseParser(
            self, self._loop, _READ_BYTES, max_line_size=HEAD_BYTES, max_field_size=HEAD_BYTES,
            response_with_body=with_body, read_until_eof=True, auto_decompress=False,
        )  # fmt: skip
        self._on_sent = on_sent
        self._body: StreamReader = EMPTY_PAYLOAD
        self.reply: asyncio.Future[ServerReply] = self._loop.create_future()

    def send(self, data: list[bytes]) -> None:
        """Sends these bytes, and keeps none of them."""
        while data and self.transport:
            self.transport.write(data.pop(0))
        if not self.writing_paused:
            self._on_sent()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._on_sent()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused and self.transport:  # aiohttp calls it for each piece
            super().resume_reading(resume_parser)

    def data_received(self, data: bytes) -> None:
        try:
            messages, _, _ = self._replies.feed_data(data)
            for message, body in messages:
                if not self.reply.done() and (message.code >= 200 or message.upgrade):
                    self._body = body
                    self.reply.set_result(_reply(message, body))
        except (HttpProcessingError, UpstreamFailed):
            self._fail("the server's answer is not valid HTTP")

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        with contextlib.suppress(HttpProcessingError):
            self._replies.feed_eof()
        begun = "in the middle of its answer" if self.reply.done() else "without an answer"
        self._fail(f"the server closed the connection {begun}")
        self._parser = None  # it holds this connection
        del self._replies

    def _fail(self, sentence: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(UpstreamFailed(sentence))
        elif not self._body.is_eof() and not self._body.exception():
            self._body.set_exception(UpstreamFailed(sentence))


_certificates = functools.cache(ssl.create_default_context)
"""Reading them takes longer than a request."""


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    left_out = _NOT_FORWARDED.union(name.strip() for name in named)
    return [(name, value) for name, value in headers if name not in left_out]


def _reply(message: RawResponseMessage, body: StreamReader) -> ServerReply:
    """Raises UpstreamFailed for what aiohttp takes and a client must not get."""
    fields = [(name.lower(), value) for name, value in message.raw_headers]
    codings = {value.lower() for name, value in fields if name == b"transfer-encoding"}
    lengths = {value for name, value in fields if name == b"content-length"}
    is_odd = message.code < 200 or not codings <= {b"chunked"} or len(lengths) > 1
    if is_odd or _CONTROL.search(b"".join(value for _, value in fields)):
        raise UpstreamFailed("the server's answer is not valid HTTP")
    return ServerReply(
        status=message.code,
        headers=tuple(
            pair for pair, (name, _) in zip(message.raw_headers, fields, strict=True) if name not in _HOP_BY_HOP
        ),
        length=int(*lengths) if lengths else None,
        is_stream=any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in fields),
        body=body,
    )


async def ask_server(
    base_url: str, key: str | None, method: str, path: str, body: bytes = b"", *, seconds: float
) -> tuple[int, bytes]:
    """Status and body of the answer. Raises UpstreamFailed, or TimeoutError after ``seconds``.

    If it is cancelled, the connection is closed, and the server ends what it does for it.
    """
    now, answer = time.monotonic(), bytearray()
    request = HttpRequest(method, path, ((b"content-type", b"application/json"),), body, False, True, "", now, now)
    async with asyncio.timeout(seconds), send_request(base_url, request, body, key) as reply:
        while data := await reply.body.readany():
            answer += data
            if len(answer) > ANSWER_BYTES:
                raise UpstreamFailed("the server's answer is too long")
        return reply.status, bytes(answer)
