"""Whatever pieces a server's bytes come in, the client gets the same body, and the gateway counts the same tokens."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpubox.paths import Paths
from tests.gateway_process import Gateway, upstream_profile
from tests.ports import free_port
from tests.raw_http import Wire, request_bytes

CASES = 40
PATIENCE = 60.0
WORDS = [" the", " é", "ü", " 漢字", "🦙", "\\n", '\\"content\\":\\"', " data: ", "x" * 3000, " "]


class Pieces:
    """A server that answers each POST with the next body, in pieces that a seed chooses."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = int(self.listener.getsockname()[1])
        self.wire = b""
        self.chance = random.Random(0)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data and (piece := connection.recv(65536)):
            data += piece
        if not data.startswith(b"POST "):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            return
        rest = self.wire
        while rest:
            size = self.chance.choice([1, 2, 3, 17, 100, 1500, 5000, len(rest)])
            connection.sendall(rest[:size])
            rest = rest[size:]
            if self.chance.random() < 0.3:
                time.sleep(0.0005)  # what is in pieces here shall come in pieces there
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Pieces]]:
    root = tmp_path_factory.mktemp("splice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            patch.setenv(f"XDG_{name}_HOME", str(root / name.lower()))
        pieces = Pieces()
        upstream_profile(Paths.default().config, "pieces", pieces.port)
        gateway = Gateway()
        try:
            yield gateway, pieces
        finally:
            gateway.stop()
            pieces.listener.close()


def stream(chance: random.Random) -> tuple[bytes, int]:
    """A stream of events, and its tokens."""
    words = [chance.choice(WORDS) for _ in range(chance.randrange(1, 40))]
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % word.encode() for word in words]
    usage = {"prompt_tokens": 9, "completion_tokens": len(words), "prompt_tokens_details": {"cached_tokens": 4}}
    last = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": usage}).encode()
    return b"".join(events) + last, len(words)


def framed(body: bytes, kind: str, chance: random.Random) -> bytes:
    """The response on the wire."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if kind == "length":
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    if kind == "end":
        return head + b"Connection: close\r\n\r\n" + body
    wire, rest = head + b"Transfer-Encoding: chunked\r\n\r\n", body
    while rest:
        size = min(len(rest), chance.choice([1, 5, 70, 400, 6000]))
        extension = chance.choice([b"", b"", b";a=b", b';q="x"'])
        wire += b"%x%b\r\n%b\r\n" % (size, extension, rest[:size])
        rest = rest[size:]
    return wire + chance.choice([b"0\r\n\r\n", b"0\r\nX-Trailer: 1\r\n\r\n", b"000;x\r\n\r\n"])


@pytest.mark.parametrize("kind", ["chunked", "length", "end"])
def test_bytes_arrive_as_they_were(behind: tuple[Gateway, Pieces], kind: str) -> None:
    gateway, pieces = behind
    for seed in range(CASES):
        chance = random.Random(f"{kind}{seed}")
        body, tokens = stream(chance)
        pieces.wire, pieces.chance = framed(body, kind, chance), chance
        values = {"model": "pieces", "messages": [], "stream": True}
        request = request_bytes(
            "POST", "/v1/chat/completions", json.dumps(values).encode(), {"User-Agent": f"{kind}-{seed}/1"}
        )
        old = seed % 4 == 3
        with Wire(gateway.port, PATIENCE) as wire:
            wire.send(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1) if old else request)
            reply = wire.read()
        assert reply.whole and reply.body == body, (seed, reply.error)
        assert not (old and reply.header("transfer-encoding"))
        line = line_of(gateway, f"{kind}-{seed}")
        assert (line["generated_tokens"], line["prompt_tokens"], line["cached_tokens"]) == (tokens, 9, 4), seed


def line_of(gateway: Gateway, client: str) -> dict[str, Any]:
    """The event of this client's request."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = [event for _, event in list(gateway.events)[-3:] if event.get("client") == client]
        if lines:
            return lines[-1]
        time.sleep(0.001)
    raise AssertionError(f"{client} is not in the events")
