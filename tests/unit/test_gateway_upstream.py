"""What the gateway makes of a server's answer that comes in pieces, or not whole."""

from __future__ import annotations

import asyncio
import contextlib
from unittest.mock import AsyncMock, Mock

import pytest

from gpubox.gateway.admission import Ticket
from gpubox.gateway.client_request import STREAM_HEADERS, ClientRequest
from gpubox.gateway.http_connection import Exchange, HttpRequest
from gpubox.gateway.upstream import ANSWER_BYTES, NotConnected, UpstreamFailed, ask_server
from tests.ports import free_port

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS: dict[str, tuple[list[bytes], bytes | str]] = {
    "chunks": ([CHUNKS + b"2\r\n{}", b"\r\n0\r\n\r\n"], b"{}"),
    "a length": ([OK + b"Content-Length: 2\r\n\r\n{", b"}"], b"{}"),
    "until the end": ([OK + b"\r\n{", b"}"], b"{}"),
    "first 100 Continue": ([b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 2\r\n\r\n{}"], b"{}"),
    "nothing": ([], "the server closed the connection without an answer"),
    "a broken chunk later": ([CHUNKS + b"2\r\n{}\r\n", b"zz\r\n"], "in the middle of its answer|is not valid HTTP"),
    "a chunk that is cut": ([CHUNKS + b"5\r\n{}"], "in the middle of its answer"),
    "a length that is not reached": ([OK + b"Content-Length: 9\r\n\r\n{}"], "in the middle of its answer"),
    "no HTTP": ([b"hello\r\n\r\n"], "the server's answer is not valid HTTP"),
    "a control character": ([OK + b"X-A: \x1b[31m\r\nContent-Length: 2\r\n\r\n{}"], "is not valid HTTP"),
    "a coding that nobody asked for": ([OK + b"Transfer-Encoding: gzip\r\n\r\n{}"], "is not valid HTTP"),
    "too much": ([OK + b"\r\n", b"a" * (ANSWER_BYTES + 1)], "answer is too long"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_whole_or_an_error(name: str) -> None:
    pieces, expected = ANSWERS[name]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"\r\nAuthorization: Bearer secret\r\n" in await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.005)  # what is in pieces here shall come in pieces there
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        if isinstance(expected, bytes):
            assert await ask_server(address, "secret", "GET", "/slots", seconds=30) == (200, expected)
        else:
            with pytest.raises(UpstreamFailed, match=expected):
                await ask_server(address, "secret", "POST", "/completion", b"{}", seconds=30)
    finally:
        server.close()


async def test_a_server_that_is_gone_has_seen_nothing() -> None:
    with pytest.raises(NotConnected, match="does not take connections"):
        await ask_server(f"http://127.0.0.1:{free_port()}", None, "GET", "/slots", seconds=30)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (OK + b"Content-Length: 9\r\n\r\n", b"No server is up."),  # it dies, and there is no other one
        (
            b"HTTP/1.1 400 Bad\r\nContent-Length: 9\r\n\r\ntoo  long",
            b"The server refused the request (HTTP 400): too long",
        ),
    ],
)
async def test_a_stream_that_has_begun_while_it_waited_ends_with_an_error(head: bytes, says: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        writer.close()

    client, asked = Mock(closes=False), HttpRequest("GET", "/v1/models", (), b"", True, True, "", 0.0, 0.0)
    client.writable.wait = AsyncMock()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    exchange = Exchange(client, asked)
    request = ClientRequest(Ticket(1), exchange, Mock(), lambda line: None)
    exchange.start(200, STREAM_HEADERS, chunked=True)
    try:
        await request.forward(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", b"", None)
    except UpstreamFailed:
        request.cut(503, "no server is up")
    assert says in b"".join(call.args[0] for call in client.write.call_args_list)
    assert client.finish.called and not client.abort.called
    server.close()
