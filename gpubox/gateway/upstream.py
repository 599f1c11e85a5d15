"""The server's side of the gateway: one connection for one request, whose reply is spliced to the client as bytes.

Connections are not kept: build 11434 closes them after each stream, and a request that met a closed one could not be
told from a request that was answered."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from gpubox.gateway.http_connection import Headers, HttpRequest

CONNECT_SECONDS = 5.0
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"content-length",
})  # fmt: skip
"""Headers of one connection (RFC 9110, 7.6.1), and those that the framing replaces."""
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"expect", b"authorization", b"x-api-key", b"accept-encoding", b"cookie"}
_HEAD_BYTES = 64 * 1024
_EARLY_BYTES = 256 * 1024
"""Of a body that nobody reads yet."""


class UpstreamFailed(Exception):
    """The server did not answer, or not whole. The text is one sentence without a full stop."""


class NotConnected(UpstreamFailed):
    """No connection: the server has seen nothing of the request."""


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Status line and headers of a reply."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    """Those that go to the client."""
    chunked: bool
    length: int | None

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key.lower() == name), b"")

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.header(b"content-type").startswith(b"text/event-stream")


class BodyScanner:
    """Finds the payload and the end of a body in its bytes."""

    def __init__(self, head: ReplyHead, *, empty: bool) -> None:
        self.done = empty or head.length == 0
        self.at_boundary = True
        """Whether all bytes so far are whole chunks: something may be added here."""
        self.surplus = 0
        """The bytes of the last data that lie behind the end of the body."""
        self._chunked = head.chunked
        self._left = head.length or 0
        self._endless = head.length is None and not head.chunked
        self._line = b""
        self._state = "size"

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in ``data``. Raises UpstreamFailed for broken chunks."""
        if self.done:
            self.surplus = len(data)
            return []
        if self._chunked:
            return self._feed_chunks(data)
        if not self._endless:
            self.surplus = max(0, len(data) - self._left)
            data = data[: self._left]
            self._left -= len(data)
            self.done = self._left == 0
        return [data]

    def end(self) -> bool:
        """The connection ended. Whether the body is whole."""
        self.done = self.done or self._endless
        return self.done

    def _feed_chunks(self, data: bytes) -> list[bytes]:
        payload, position, end = [], 0, len(data)
        while position < end and not self.done:
            if self._state == "data":
                part = data[position : position + self._left]
                payload.append(part)
                position += len(part)
                self._left -= len(part)
                self._state = "data" if self._left else "crlf"
                continue
            newline = data.find(b"\n", position)
            if newline < 0:
                self._line += data[position:]
                if len(self._line) > 4096:
                    raise UpstreamFailed("the server sent a broken chunk")
                break
            line, self._line, position = self._line + data[position:newline], b"", newline + 1
            self._take_line(line.rstrip(b"\r"))
        self.at_boundary = self._state == "size" and not self._line
        self.surplus = end - position if self.done else 0
        return payload

    def _take_line(self, line: bytes) -> None:
        if self._state == "crlf":
            if line:
                raise UpstreamFailed("the server sent a broken chunk")
            self._state = "size"
        elif self._state == "trailer":
            self.done = not line
        else:
            digits = line.partition(b";")[0].strip()
            if not digits or len(digits) > 15 or not all(digit in b"0123456789abcdefABCDEF" for digit in digits):
                raise UpstreamFailed("the server sent a broken chunk")
            self._left = int(digits, 16)
            self._state = "data" if self._left else "trailer"


class UpstreamReply(asyncio.Protocol):
    """One reply, as it comes. ``head`` first, then ``splice``."""

    def __init__(self, request: h11.Connection, *, is_head: bool) -> None:
        loop = asyncio.get_running_loop()
        self.head: asyncio.Future[ReplyHead] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the body is whole; UpstreamFailed if it is not."""
        self.scanner: BodyScanner | None = None
        self._parser, self._is_head = request, is_head
        self._sink: Callable[[bytes, list[bytes]], None] | None = None
        self._early: list[tuple[bytes, list[bytes]]] = []
        self._early_bytes = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            if self.scanner is None:
                data = self._read_head(data)
            if self.scanner is not None and data:
                payload = self.scanner.feed(data)
                self._pass_on(data[: len(data) - self.scanner.surplus], payload)
                self._check_done()
        except (h11.RemoteProtocolError, UpstreamFailed) as error:
            text = str(error) if isinstance(error, UpstreamFailed) else "the server's answer is not valid HTTP"
            self.fail(UpstreamFailed(text))

    def connection_lost(self, error: Exception | None) -> None:
        if self.scanner is not None and self.scanner.end():
            self._check_done()
        else:
            begun = "in the middle of its answer" if self.scanner else "without an answer"
            self.fail(UpstreamFailed(f"the server closed the connection {begun}"))

    def splice(self, sink: Callable[[bytes, list[bytes]], None]) -> None:
        """From now on ``sink`` gets all bytes of the body, and the payload in them. ``ended`` says when it is over."""
        self._sink = sink
        early, self._early = self._early, []
        if early:  # in one piece, because the scanner says of all of it whether it is the end
            sink(b"".join(data for data, _ in early), [part for _, payload in early for part in payload])
        self.resume()

    def pause(self) -> None:
        """Takes nothing more from the server for now."""
        if self._transport and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Ends the connection. A llama-server stops generating then."""
        if self._transport:
            self._transport.abort()
        self._sink, self._early = None, []
        for future in (self.head, self.ended):
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # seen: nobody waits for it any more

    def _read_head(self, data: bytes) -> bytes:
        self._parser.receive_data(data)
        event = self._parser.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = self._parser.next_event()
        if not isinstance(event, h11.Response):
            return b""
        head = _reply_head(event)
        self.scanner = BodyScanner(head, empty=self._is_head or head.status in (204, 304))
        if not self.head.done():
            self.head.set_result(head)
        rest = bytes(self._parser.trailing_data[0])
        self._check_done()
        return rest

    def _pass_on(self, data: bytes, payload: list[bytes]) -> None:
        if self._sink:
            self._sink(data, payload)
            return
        self._early.append((data, payload))
        self._early_bytes += len(data)
        if self._early_bytes > _EARLY_BYTES:
            self.pause()

    def _check_done(self) -> None:
        if self.scanner and self.scanner.done and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: UpstreamFailed) -> None:
        """The reply is not whole: whoever waits for it gets ``error``."""
        for future in (self.head, self.ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: there may be nobody who waits for it
        if self._transport:
            self._transport.abort()


@functools.cache
def _tls() -> ssl.SSLContext:
    """One for all connections: it reads the certificates of this machine, and the loop waits 40 ms for it."""
    return ssl.create_default_context()


async def send_request(base_url: str, request: HttpRequest, body: bytes, extra: Headers) -> UpstreamReply:
    """Sends ``request`` with ``body`` to the server at ``base_url``. ``extra``: headers of the gateway.

    Raises NotConnected if there is no connection; ``UpstreamReply`` tells of everything later.
    """
    parts = urlsplit(base_url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
    target = parts.path.rstrip("/") + request.target
    headers = [(b"Host", parts.netloc.encode()), *_forwarded(request.headers), *extra, (b"Connection", b"close")]
    if body or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"Content-Length", b"%d" % len(body)))
    head = client.send(h11.Request(method=request.method, target=target, headers=headers))
    content = client.send(h11.Data(body)) if body else b""
    client.send(h11.EndOfMessage())
    loop, context = asyncio.get_running_loop(), _tls() if parts.scheme == "https" else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, reply = await loop.create_connection(
                lambda: UpstreamReply(client, is_head=request.method == "HEAD"), host, port, ssl=context
            )
    except (OSError, TimeoutError) as error:
        reason = "in time" if isinstance(error, TimeoutError) else f"({getattr(error, 'strerror', '') or error})"
        raise NotConnected(f"the server does not take connections {reason}") from None
    transport.writelines([head or b"", content or b""])
    return reply


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    left_out = _NOT_FORWARDED.union(name.strip() for name in named)
    return [(name, value) for name, value in headers if name not in left_out]


def _reply_head(response: h11.Response) -> ReplyHead:
    fields = list(response.headers.raw_items())
    lower = {bytes(name).lower(): bytes(value) for name, value in fields}
    chunked = b"chunked" in lower.get(b"transfer-encoding", b"").lower()
    length = lower.get(b"content-length")
    return ReplyHead(
        status=response.status_code,
        headers=tuple((bytes(name), bytes(value)) for name, value in fields if bytes(name).lower() not in _HOP_BY_HOP),
        chunked=chunked,
        length=int(length) if length is not None and not chunked else None,
    )


ANSWER_BYTES = 16 * 1024 * 1024


async def ask_server(
    base_url: str, key: str | None, method: str, path: str, body: bytes = b"", *, seconds: float
) -> tuple[int, bytes]:
    """Status and body of the answer. Raises UpstreamFailed, or TimeoutError after ``seconds``.

    If it is cancelled, the connection is closed, and the server ends what it does for it.
    """
    now, parts = time.monotonic(), list[bytes]()
    request = HttpRequest(method, path, ((b"content-type", b"application/json"),), body, False, True, "", now, now)
    extra: Headers = ((b"Authorization", b"Bearer " + key.encode()),) if key else ()
    size = 0

    def take(data: bytes, payload: list[bytes]) -> None:
        nonlocal size
        size += sum(map(len, payload))
        if size > ANSWER_BYTES:
            reply.fail(UpstreamFailed("the server's answer is too long"))
        else:
            parts.extend(payload)

    async with asyncio.timeout(seconds):
        reply = await send_request(base_url, request, body, extra)
        try:
            head = await reply.head
            reply.splice(take)
            await reply.ended
        finally:
            reply.close()
    return head.status, b"".join(parts)
