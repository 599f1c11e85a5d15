"""The ways out of a confined agent: the gateway alone, and the hosts that the owner named, where they lead outside."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpubox.acp import relay as relay_module
from gpubox.acp.relay import GATEWAY, PROXY, Relay
from gpubox.errors import GpuboxError

HOSTS = ("allowed.test", "*.below.test", "odd.test:8443", "10.9.8.7", "here.test", "inner.test", "mixed.test")
ADDRESSES = {
    "allowed.test": ["93.184.215.14"], "a.below.test": ["93.184.215.15"], "odd.test": ["93.184.215.16"],
    "here.test": ["127.0.0.1"], "inner.test": ["192.168.1.10", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"],
    "mixed.test": ["10.0.0.1", "93.184.215.17"], "10.9.8.7": ["10.9.8.7"],
}  # fmt: skip


class Outside:
    """A server that stands for all hosts: what it was sent, and where that was addressed to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.got = b""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.got += data
            if self.got.endswith(b"\r\n\r\n") or b"body" in self.got:
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n")
                break
        writer.close()


@pytest.fixture
async def outside(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Outside]:
    made, connect = Outside(), asyncio.open_connection

    async def opened(host: str, port: int, **more: Any) -> Any:
        made.asked.append((host, port))
        return await connect("127.0.0.1", made.port)

    async def resolved(self: object, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        if host not in ADDRESSES:
            raise socket.gaierror
        return [(2, 1, 6, "", (address, port)) for address in ADDRESSES[host]]

    monkeypatch.setattr(asyncio, "open_connection", opened)
    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", resolved)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        yield made


@asynccontextmanager
async def to(relay: Relay, name: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(relay.folder / name)
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(relay: Relay, request: str) -> str:
    async with to(relay, PROXY) as (reader, writer):
        writer.write(request.encode("latin-1"))
        try:
            async with asyncio.timeout(10):
                return (await reader.read()).decode()
        except ConnectionResetError:
            return ""


REFUSED = {
    "CONNECT evil.test:443 HTTP/1.1": "not among",
    "CONNECT below.test:443 HTTP/1.1": "not among",
    "CONNECT xbelow.test:443 HTTP/1.1": "not among",
    "CONNECT allowed.test.evil.test:443 HTTP/1.1": "not among",
    "CONNECT allowed.test:22 HTTP/1.1": "not among",
    "CONNECT odd.test:443 HTTP/1.1": "not among",
    "CONNECT 127.0.0.1:443 HTTP/1.1": "not among",
    "CONNECT 169.254.169.254:80 HTTP/1.1": "not among",
    "CONNECT [::1]:443 HTTP/1.1": "not among",
    "CONNECT 2130706433:443 HTTP/1.1": "not among",
    "CONNECT 0x7f.1:443 HTTP/1.1": "not among",
    "CONNECT 93.184.215.14:443 HTTP/1.1": "not among",
    "CONNECT here.test:443 HTTP/1.1": "an address of this machine",
    "CONNECT inner.test:443 HTTP/1.1": "an address of this machine",
    "CONNECT allowed.test:99999 HTTP/1.1": "no port",
    "CONNECT allowed.test@evil.test:443 HTTP/1.1": "no request",
    "CONNECT allowed.test:443@evil.test HTTP/1.1": "no request",
    "CONNECT http://allowed.test/ HTTP/1.1": "no request",
    "CONNECT allowed.test:443 HTTP/1.1 x": "no request",
    "CONNECT allowed.test%00.evil.test:443 HTTP/1.1": "no request",
    "GET http://allowed.test@evil.test/ HTTP/1.1": "no request",
    "GET http://evil.test/?http://allowed.test/ HTTP/1.1": "not among",
    "GET http://evil.test#allowed.test HTTP/1.1": "no request",
    "GET http://evil.test\\.allowed.test/ HTTP/1.1": "no request",
    "GET http://169.254.169.254/latest/meta-data HTTP/1.1": "not among",
    "GET https://allowed.test/ HTTP/1.1": "no request",
    "GET file:///etc/passwd HTTP/1.1": "no request",
    "GET / HTTP/1.1\r\nHost: allowed.test": "no request",
    "POST http://allowed.test/ HTTP/1.1\r\nTransfer-Encoding: chunked": "without a length",
    "POST http://allowed.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2": "malformed",
    "GET http://allowed.test/ HTTP/1.1\r\nX : y": "malformed",
    "GET http://allowed.test/ HTTP/1.1\r\nX: y\nHost: evil.test": "malformed",
}


@pytest.mark.parametrize("request_text", REFUSED)
async def test_what_the_owner_did_not_allow_is_refused_in_a_sentence(
    request_text: str, outside: Outside, tmp_path: Path
) -> None:
    async with Relay(("127.0.0.1", 9), hosts=HOSTS, log=tmp_path / "log") as relay:
        told = await answer(relay, f"{request_text}\r\n\r\n")
    assert told.startswith("HTTP/1.1 403 Forbidden\r\n")
    assert REFUSED[request_text] in told
    assert (outside.asked, outside.got) == ([], b"")
    assert "refused: " in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("allowed.test:443", ("93.184.215.14", 443)),
        ("ALLOWED.test.:443", ("93.184.215.14", 443)),
        ("a.below.test:443", ("93.184.215.15", 443)),
        ("odd.test:8443", ("93.184.215.16", 8443)),
        ("10.9.8.7:443", ("10.9.8.7", 443)),
        ("mixed.test:443", ("93.184.215.17", 443)),
    ],
)
async def test_a_tunnel_leads_to_the_address_that_was_looked_up(
    target: str, address: tuple[str, int], outside: Outside, tmp_path: Path
) -> None:
    async with Relay(("127.0.0.1", 9), hosts=HOSTS, log=tmp_path / "log") as relay:
        told = await answer(relay, f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\nhello\r\n\r\n")
    assert told.startswith("HTTP/1.1 200 ") and "302 Found" in told
    assert (outside.asked, outside.got) == ([address], b"hello\r\n\r\n")
    assert "allowed: 9 bytes sent, 51 received" in (tmp_path / "log").read_text()


async def test_a_plain_request_names_the_host_that_was_checked_and_no_second_one_follows(outside: Outside) -> None:
    async with Relay(("127.0.0.1", 9), hosts=HOSTS) as relay:
        told = await answer(
            relay,
            "POST http://allowed.test/a?b HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: x\r\nAccept: y\r\n"
            "Content-Length: 4\r\n\r\nbodyGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        )
    assert told.startswith("HTTP/1.1 302 Found")  # which it does not follow
    head = b"POST /a?b HTTP/1.1\r\nHost: allowed.test:80\r\nConnection: close\r\nAccept: y\r\nContent-Length: 4\r\n\r\n"
    assert outside.got == head + b"body"


@pytest.mark.parametrize("host", ["", "*", "*.", "http://a.test", "a b", "*.10.0.0.1", "a.test:x", "a.test/b", "."])
def test_a_host_that_cannot_be_one(host: str) -> None:
    with pytest.raises(GpuboxError, match="is no host"):
        Relay(("127.0.0.1", 9), hosts=[host])


async def test_the_log_is_bounded_and_shows_no_controls(
    outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "_MAX_LOG_BYTES", 500)
    async with Relay(("127.0.0.1", 9), hosts=HOSTS, log=tmp_path / "proxy.log") as relay:
        for number in range(30):
            await answer(relay, f"CONNECT \x1b[2J{number}{'x' * 2000} HTTP/1.1\r\n\r\n")
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]  # noqa: ASYNC240
    assert len(sizes) == 2 and max(sizes) < 1500
    assert "\x1b" not in (tmp_path / "proxy.log").read_text()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def test_heads_without_end_and_many_connections_are_ended(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "_MAX_CONNECTIONS", 3)
    async with Relay(("127.0.0.1", 9), hosts=HOSTS) as relay:
        assert await answer(relay, "x" * 200_000) == ""
        async with to(relay, PROXY), to(relay, PROXY), to(relay, PROXY):
            await until(lambda: len(relay._tasks) == 3)
            assert await answer(relay, "CONNECT allowed.test:443 HTTP/1.1\r\n\r\n") == ""


async def test_closing_ends_what_is_under_way() -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        relay = Relay(server.sockets[0].getsockname())
        async with relay, to(relay, GATEWAY) as (reader, writer):
            writer.write(b"x")
            await until(lambda: len(relay._tasks) == 1)
            assert relay.folder.stat().st_mode & 0o777 == 0o700
            assert not (relay.folder / PROXY).exists()
            await relay.close()
            with pytest.raises(ConnectionError):
                assert await reader.read() == b""
                raise ConnectionResetError
        await asyncio.wait_for(ended.wait(), 10)
        assert not relay.folder.exists()
        await relay.close()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's, which a test's own may not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def test_what_a_killed_gpubox_left_goes_at_the_next_start_and_what_is_used_stays(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    left, new, other = short / "gpubox-relay-left", short / "gpubox-relay-new", short / "gpubox-relay-link"
    for folder in (left, new):
        folder.mkdir()
    other.symlink_to(new)
    (left / GATEWAY).touch()
    async with Relay(("127.0.0.1", 9)) as used:
        for folder in (left, used.folder):
            os.utime(folder, (0, 0))
        async with Relay(("127.0.0.1", 9)) as relay:
            assert set(short.iterdir()) == {new, other, used.folder, relay.folder}  # noqa: ASYNC240
    assert set(short.iterdir()) == {new, other}  # noqa: ASYNC240


async def test_a_gateway_that_is_not_there_ends_the_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with Relay(unused.getsockname()) as relay, to(relay, GATEWAY) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
                raise ConnectionResetError
