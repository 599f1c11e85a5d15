"""Each of many raw requests, and each answer of a server that lies, gets the kind of answer that its table says.

What reaches the server is read here by a strict reader: one plain request for each that was answered, and no other.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import unquote_to_bytes

import pytest

from gpubox.paths import Paths
from tests.gateway_process import Gateway, resident_mib, upstream_profile
from tests.hostile.raw_cases import BODY, FINE, HIDDEN, JSON, LIARS, MIB, NAME, OK, RAW_CASES, SIZE, head, sized
from tests.ports import free_port
from tests.raw_http import Reply, Wire, request_bytes

pytestmark = pytest.mark.xdist_group("raw requests")  # one worker has the gateway
PATIENCE = 30.0
LIMITS = {"HEAD_SECONDS": 1.0, "BODY_SILENCE_SECONDS": 1.0, "BODY_SECONDS": 2.0, "STALL_SECONDS": 1.0,
          "LINGER_SECONDS": 0.5}  # fmt: skip
PLAIN = re.compile(rb"[A-Z]+ /[\x21-\x7e]* HTTP/1\.1\r\n(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: ?[^\r\n\0]*\r\n)*\r\n")
"""The head of a request that no reader can take for another one."""


class Recorder:
    """A server that keeps its connections, reads strictly, and says to each POST what it was told to say."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = int(self.listener.getsockname()[1])
        self.posts: list[str] = []
        """The ``user`` of each POST."""
        self.wrong: list[bytes] = []
        """What no gateway may send."""
        self.answer: Callable[[socket.socket, bytes], bool] = usual
        """Writes the answer to this body; False: the connection is closed then."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with connection, contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in data:
                    if not (piece := connection.recv(1 << 20)):
                        return
                    data += piece
                start, _, data = data.partition(b"\r\n\r\n")
                start += b"\r\n\r\n"
                self._check(start)
                lengths = re.findall(rb"(?mi)^content-length: *(\d+)\r$", start)
                size = int(lengths[0]) if lengths else 0
                while len(data) < size:
                    data += connection.recv(1 << 20)
                body, data = data[:size], data[size:]
                if not start.startswith(b"POST "):
                    connection.sendall(OK + b"Content-Length: 2\r\n\r\n" + (b"" if start[:4] == b"HEAD" else b"{}"))
                    continue
                self.posts.append(_user(body))
                if not self.answer(connection, body):
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
                    return

    def _check(self, start: bytes) -> None:
        target = start.split(b" ", 2)[1]
        path = re.sub(rb"/+", b"/", unquote_to_bytes(target.partition(b"?")[0]))
        names = [line.partition(b":")[0].lower() for line in start.split(b"\r\n")[1:]]
        lengths = names.count(b"content-length")
        ours = path.startswith((b"/slots/", b"/gpubox/")) or path == b"/gpubox" or b".." in path.split(b"/")
        if not PLAIN.fullmatch(start) or lengths > 1 or b"transfer-encoding" in names or ours:
            self.wrong.append(start)


def usual(connection: socket.socket, body: bytes) -> bool:
    connection.sendall(OK + FINE)
    return True


def _user(body: bytes) -> str:
    try:
        return str(json.loads(body)["user"])
    except (ValueError, KeyError, TypeError):
        return repr(body[:80])


class Place:
    """The gateway, and the server behind it."""

    def __init__(self, gateway: Gateway, server: Recorder) -> None:
        self.gateway, self.port, self.server = gateway, gateway.port, server

    def send(self, data: bytes, *, ends: bool = False) -> Reply:
        """The first answer to these bytes; then the client leaves, and all else that comes is thrown away."""
        with Wire(self.port, PATIENCE) as wire:
            with contextlib.suppress(ConnectionError):
                wire.send(data)
                if ends:
                    wire.sock.shutdown(socket.SHUT_WR)
            while (reply := wire.read()).status == 100:
                pass
            with contextlib.suppress(OSError):
                wire.sock.shutdown(socket.SHUT_WR)
                while wire.sock.recv(65536):
                    pass
        return reply


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root, server = tmp_path_factory.mktemp("raw"), Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            patch.setenv(f"XDG_{name}_HOME", str(root / name.lower()))
        upstream_profile(Paths.default().config, NAME, server.port)
        gateway = Gateway(limits=LIMITS)
        try:
            yield Place(gateway, server)
        finally:
            gateway.stop()
            server.listener.close()
    assert not gateway.problems()


def clean(reply: Reply) -> bool:
    """Whether an error is one sentence in JSON."""
    message = reply.json()["error"]["message"]
    return bool(message) and len(message) < 1000 and message.isprintable() and "Traceback" not in message


@pytest.mark.parametrize("name", RAW_CASES)
def test_a_raw_request_is_answered_as_the_table_says(place: Place, name: str) -> None:
    data, kind = RAW_CASES[name]
    before = len(place.server.posts)
    kind, _, ends = kind.partition(", ")
    reply = place.send(data, ends=bool(ends)) if kind != "bare" else Reply(status=_status(place.port, data))
    came = place.server.posts[before:]
    assert not place.server.wrong, place.server.wrong.pop()
    assert "smuggled" not in came and reply.status != 500, (reply, came)
    if kind == "served":
        assert reply.whole and reply.status == 200, reply
    if kind == "refused":
        assert reply.status >= 400 or reply.error.startswith("Connection"), reply
        assert not came
    if reply.status >= 400:
        assert reply.whole and clean(reply), reply
        assert not came
    else:
        assert reply.status == 200 or reply.error.startswith("Connection"), reply
        assert len(came) == (reply.status == 200) or data.startswith((b"GET", b"HEAD", b"OPTIONS")), came


def _status(port: int, data: bytes) -> int:
    with Wire(port, PATIENCE) as wire:
        wire.send(data)
        return int(wire.sock.recv(65536).split()[1])


@pytest.mark.parametrize("name", LIARS)
def test_a_server_that_lies_fools_no_client(place: Place, name: str) -> None:
    answer, kinds = LIARS[name]

    def lie(connection: socket.socket, body: bytes) -> bool:
        connection.sendall(answer)
        return False

    place.server.answer = lie
    try:
        reply = place.send(sized())
    finally:
        place.server.answer = usual
    assert "TimeoutError" not in reply.error and not reply.header("set-cookie"), reply
    assert not {"keep-alive", "proxy-authenticate"} & {key for key, _ in reply.headers}
    assert b"SMUGGLED" not in reply.body
    got = (
        "cut, told" if not reply.whole else
        "refused" if reply.status in (502, 503) and clean(reply) else
        "told" if b'"error"' in reply.body else
        "whole" if reply.status == 200 and reply.body == JSON else
        f"status {reply.status}"
    )  # fmt: skip
    assert kinds == "anything" or any(each in kinds for each in got.split(", ")), (got, reply)
    assert place.send(sized()).body == JSON, "the next client gets what the server said to this one"


def test_thirty_requests_at_once_are_answered_in_their_order(place: Place) -> None:
    """Also where one of them is a HEAD, whose answer has no body, or the gateway answers one by itself."""

    def echo(connection: socket.socket, body: bytes) -> bool:
        text = _user(body).encode()
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        return True

    place.server.answer = echo
    users = [f"user{n}" for n in range(30)]
    bodies = [json.dumps({"model": NAME, "user": user}).encode() for user in users]
    own = request_bytes("GET", "/health")
    try:
        with Wire(place.port, PATIENCE) as wire:
            wire.send(b"".join(request_bytes("POST", "/v1/chat/completions", body) + own for body in bodies))
            replies = [wire.read() for _ in range(2 * len(bodies))]
    finally:
        place.server.answer = usual
    assert [reply.body.decode() for reply in replies[::2]] == users
    assert all(reply.status == 200 and reply.whole for reply in replies)


def test_what_a_server_says_too_much_goes_to_no_other_client(place: Place) -> None:
    """Its connection may be kept for the next request, which must not be answered with what lay there already."""

    def surplus(connection: socket.socket, body: bytes) -> bool:
        connection.sendall(OK + FINE + OK + b"Content-Length: 8\r\n\r\nSMUGGLED")
        return True

    place.server.answer = surplus
    try:
        replies = [place.send(sized()) for _ in range(8)]
    finally:
        place.server.answer = usual
    assert [reply.body for reply in replies] == [JSON] * 8
    assert [place.send(sized()).body for _ in range(8)] == [JSON] * 8


def test_bytes_behind_a_broken_request_are_no_request(place: Place) -> None:
    before = len(place.server.posts)
    for broken in (head("X A: b", SIZE) + BODY, head(SIZE, "Transfer-Encoding: x") + BODY, b"GET /\r\n\r\n"):
        assert place.send(broken + HIDDEN).status in (0, 400, 501, 505)
    assert place.server.posts[before:] == []


def test_a_client_that_resets_in_the_middle(place: Place) -> None:
    """In the head, in the body, in the wait and in the answer: the next one is served."""
    whole = sized()
    for cut in (10, len(whole) - 5, len(whole)):
        with Wire(place.port, PATIENCE) as wire:
            wire.send(whole[:cut])
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert place.send(whole).status == 200


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_of_33_mb(place: Place, framing: str) -> None:
    """Just above the limit that is the default: refused, however it comes, and memory returns."""
    before, sent = resident_mib(place.gateway.pid), len(place.server.posts)
    filler = b"{" + b" " * (33 * MIB)
    with Wire(place.port, PATIENCE) as wire, contextlib.suppress(ConnectionError):
        if framing == "length":
            wire.send(head(f"Content-Length: {len(filler)}") + filler)
        else:
            wire.send(head("Transfer-Encoding: chunked"))
            for at in range(0, len(filler), MIB):
                part = filler[at : at + MIB]
                wire.send(b"%x\r\n%b\r\n" % (len(part), part))
            wire.send(b"0\r\n\r\n")
    with Wire(place.port, PATIENCE) as wire:
        if framing == "length":
            wire.send(head(f"Content-Length: {len(filler)}"))
            assert wire.read().status == 413
    assert len(place.server.posts) == sent
    end = time.monotonic() + PATIENCE
    while resident_mib(place.gateway.pid) > before + 40 and time.monotonic() < end:
        time.sleep(0.01)
    assert resident_mib(place.gateway.pid) < before + 40


def trickle(port: int, data: bytes, step: int, seconds: float) -> tuple[Reply, float]:
    """Sends ``step`` bytes every tenth of a second for so long; the answer, and when it ended."""
    began = time.monotonic()
    with Wire(port, PATIENCE) as wire:
        with contextlib.suppress(OSError):
            for at in range(0, len(data), step):
                wire.send(data[at : at + step])
                wire.sock.settimeout(0.1)
                if time.monotonic() - began > seconds:
                    break
                with contextlib.suppress(TimeoutError):
                    wire.sock.recv(1, socket.MSG_PEEK)
                    break  # it answered, or closed
        wire.sock.settimeout(PATIENCE)
        return wire.read(), time.monotonic() - began


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("data", "seconds"),
    [(sized(*["X-A: b"] * 100), 1.0), (head("Content-Length: 100000") + b" " * 100_000, 2.0),
     (head("Transfer-Encoding: chunked") + b"1\r\n \r\n" * 10_000, 2.0)],
    ids=["head", "body", "chunks"],
)  # fmt: skip
def test_a_client_that_sends_byte_by_byte_has_an_end(place: Place, data: bytes, seconds: float) -> None:
    """A limit for silence does not do: there is always one more byte."""
    reply, took = trickle(place.port, data, 2, 20)
    assert reply.status == 408 or reply.error.startswith("Connection"), reply
    assert took < seconds + 3


@pytest.mark.nightly
def test_a_fast_stream_to_clients_that_do_not_read_takes_no_memory(place: Place) -> None:
    """The server sends as fast as it can, for as long as the gateway takes it."""
    taken = []

    def fast(connection: socket.socket, body: bytes) -> bool:
        connection.sendall(OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"a" * 60_000)
        try:
            for _ in range(20_000):
                connection.sendall(b"%x\r\n%b\r\n" % (len(event), event))
                taken.append(len(event))
        except OSError:
            taken.append(0)
        return False

    before, place.server.answer = resident_mib(place.gateway.pid), fast
    try:
        wires = [Wire(place.port, PATIENCE) for _ in range(8)]
        for wire in wires:
            wire.send(sized())
        end, most = time.monotonic() + PATIENCE, 0.0
        while taken.count(0) < len(wires) and time.monotonic() < end:
            most = max(most, resident_mib(place.gateway.pid))
            time.sleep(0.05)
    finally:
        place.server.answer = usual
    assert taken.count(0) == len(wires), "a client that does not read holds its server's slot for ever"
    assert most < before + 40
    for wire in wires:
        wire.sock.close()
    assert place.send(sized()).status == 200
