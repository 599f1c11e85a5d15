"""What the gateway makes of a server's answer that comes in pieces, or not whole."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gpubox.gateway.admission import Ticket
from gpubox.gateway.client_request import STREAM_HEADERS, ClientRequest
from gpubox.gateway.http_connection import ClientConnection, ConnectionLimits, Exchange
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


async def test_a_stream_that_has_begun_ends_with_an_error_also_after_a_server_that_fell_silent() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n")
        writer.close()

    async def handle(exchange: Exchange) -> None:
        """What the gateway does for a request that waits, goes to a server that dies, and then to none."""
        exchange.start(200, STREAM_HEADERS, chunked=True)
        task = asyncio.current_task()
        assert task
        request = ClientRequest(Ticket(1), exchange, task, lambda line: None)
        with pytest.raises(UpstreamFailed):
            await request.forward(address, b"", None)
        request.cut(503, "no server is up")

    def refuse(exchange: Exchange, status: int, sentence: str) -> None:
        raise AssertionError(sentence)

    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    limits = ConnectionLimits(1 << 20, 10)
    front = await loop.create_server(lambda: ClientConnection(limits, handle, refuse), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
        writer.write(b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 30)
        assert b"No server is up." in answer and answer.endswith(b"0\r\n\r\n")
        writer.close()
    finally:
        server.close()
        front.close()
