"""The server's side of the gateway: aiohttp's client, with a connection for each request.

Connections are not kept: build 11434 closes them after each stream, and a request that met a closed one could not be
told from a request that was answered."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    StreamReader,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError
from aiohttp.tracing import Trace
from yarl import URL

from gpubox.gateway.http_connection import HEAD_BYTES, Headers, HttpRequest

_CONNECT = ClientTimeout(total=None, connect=5.0)
"""Only for the connection: a long prompt takes minutes, and a dead server closes."""
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"content-length",
})  # fmt: skip
"""Headers of one connection (RFC 9110, 7.6.1), and those that the framing replaces."""
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"expect", b"authorization", b"x-api-key", b"accept-encoding", b"cookie"}
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What aiohttp would add."""
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
    """Its ``readany`` raises ClientError if it is not whole; ``send_request`` makes UpstreamFailed of that."""


@asynccontextmanager
async def send_request(
    base_url: str, request: HttpRequest, body: bytes, extra: Headers, on_sent: Callable[[], None] | None = None
) -> AsyncIterator[ServerReply]:
    """Sends ``request`` with ``body`` to the server at ``base_url``, and waits for the head of its reply.

    ``extra``: headers of the gateway. ``on_sent`` is called when the body has gone out. In the end the connection is
    closed: a llama-server stops generating then. Raises NotConnected, and UpstreamFailed for all that happens later.
    """
    method, target = request.method, base_url.rstrip("/") + request.target
    headers = [*_forwarded(request.headers), *extra, (b"Connection", b"close")]
    has_body = bool(body) or method in ("POST", "PUT", "PATCH")
    if has_body:
        headers.append((b"Content-Length", b"%d" % len(body)))
    data = _once([body], on_sent) if has_body else None
    del request, body  # it is large, and would be held until the reply is over
    async with ClientSession(
        connector=_connector(asyncio.get_running_loop()), connector_owner=False, cookie_jar=DummyCookieJar(),
        timeout=_CONNECT, auto_decompress=False, skip_auto_headers=_NOT_ADDED,
        max_line_size=HEAD_BYTES, max_field_size=HEAD_BYTES,
    ) as session:  # fmt: skip
        response: ClientResponse | None = None
        try:
            response = await session.request(
                method, URL(target, encoded=True), data=data, allow_redirects=False,
                headers=[(name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in headers],
            )  # fmt: skip
            _watch(response)
            yield _reply(response)
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            reason = f"({error.strerror or error})" if isinstance(error, OSError) else "in time"
            raise NotConnected(f"the server does not take connections {reason}") from None
        except ClientResponseError:
            raise UpstreamFailed("the server's answer is not valid HTTP") from None
        except (ClientError, HttpProcessingError, RuntimeError):  # aiohttp's: the last one for a lost connection
            begun = "in the middle of its answer" if response else "without an answer"
            raise UpstreamFailed(f"the server closed the connection {begun}") from None
        finally:
            if response and response.connection and response.connection.transport:
                response.connection.transport.abort()  # a close would wait for what is not yet sent


class _Connector(TCPConnector):
    """Connects in a third of aiohttp's time: its way with several addresses is for names of other machines."""

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> ResponseHandler:
        if req.is_ssl():
            return await super()._create_connection(req, traces, timeout)
        try:
            _, protocol = await self._loop.create_connection(self._factory, req.url.raw_host or "", req.url.port or 80)
        except OSError as error:
            raise ClientConnectorError(req.connection_key, error) from None
        return protocol


@functools.lru_cache(1)
def _connector(loop: asyncio.AbstractEventLoop) -> _Connector:
    """That of the running loop. It keeps no connection, so nobody has to close it."""
    return _Connector(limit=0, force_close=True, use_dns_cache=False)


async def _once(body: list[bytes], on_sent: Callable[[], None] | None) -> AsyncIterator[bytes]:
    """The body, which nobody holds after that."""
    yield body.pop()
    if on_sent:
        on_sent()


def _watch(response: ClientResponse) -> None:
    """Ends the body with the connection: after a broken chunk aiohttp's client (3.14) would wait on for ever."""
    body, protocol = response.content, response.connection and response.connection.protocol

    def end(_: object) -> None:
        if not body.is_eof() and not body.exception():
            body.set_exception(ClientPayloadError())

    if protocol is not None and (closed := protocol.closed):  # an empty protocol is false
        closed.add_done_callback(end)


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    left_out = _NOT_FORWARDED.union(name.strip() for name in named)
    return [(name, value) for name, value in headers if name not in left_out]


def _reply(response: ClientResponse) -> ServerReply:
    """Raises UpstreamFailed for what aiohttp takes and a client must not get."""
    fields = [(name.lower(), value) for name, value in response.raw_headers]
    codings = {value.lower() for name, value in fields if name == b"transfer-encoding"}
    lengths = {value for name, value in fields if name == b"content-length"}
    is_odd = response.status < 200 or not codings <= {b"chunked"} or len(lengths) > 1
    if is_odd or any(_CONTROL.search(value) for _, value in fields):
        raise UpstreamFailed("the server's answer is not valid HTTP")
    return ServerReply(
        status=response.status,
        headers=tuple((name, value) for name, value in response.raw_headers if name.lower() not in _HOP_BY_HOP),
        length=int(*lengths) if lengths else None,
        is_stream=any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in fields),
        body=response.content,
    )


async def ask_server(
    base_url: str, key: str | None, method: str, path: str, body: bytes = b"", *, seconds: float
) -> tuple[int, bytes]:
    """Status and body of the answer. Raises UpstreamFailed, or TimeoutError after ``seconds``.

    If it is cancelled, the connection is closed, and the server ends what it does for it.
    """
    now, answer = time.monotonic(), bytearray()
    request = HttpRequest(method, path, ((b"content-type", b"application/json"),), body, False, True, "", now, now)
    extra: Headers = ((b"Authorization", b"Bearer " + key.encode()),) if key else ()
    async with asyncio.timeout(seconds), send_request(base_url, request, body, extra) as reply:
        while data := await reply.body.readany():
            answer += data
            if len(answer) > ANSWER_BYTES:
                raise UpstreamFailed("the server's answer is too long")
        return reply.status, bytes(answer)
