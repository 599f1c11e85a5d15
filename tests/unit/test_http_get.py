"""GET over kept connections, against sockets that send exactly the bytes of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from gpubox.server.http_get import ConnectionPool, NoResponse, ResponseTooLarge

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"


class Wire:
    """Accepts connections one by one and sends the answers of each; ``None`` closes the connection."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.plays: list[list[bytes | None]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                for answer in self.plays.pop(0):
                    head = b""
                    while answer is not None and not head.endswith(b"\r\n\r\n"):
                        part = connection.recv(65536)
                        if not part:
                            break
                        head += part
                    self.requests += [head] if head else []
                    if answer is None:
                        break
                    connection.sendall(answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@pytest.fixture
def wire() -> Iterator[Wire]:
    server = Wire()
    yield server
    server.close()


def pool(wire: Wire, folder: str = "", timeout: float = 10.0) -> ConnectionPool:
    return ConnectionPool(f"http://127.0.0.1:{wire.port}{folder}", {"Authorization": "Bearer sesame"}, timeout)


def test_the_key_goes_into_a_header_and_nowhere_else(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    wire.plays = [[OK]]

    assert pool(wire).get("/slots", 100) == (200, b"[]")

    assert wire.requests[0].startswith(b"GET /slots HTTP/1.1\r\n")
    assert wire.requests[0].count(b"sesame") == wire.requests[0].count(b"\r\nAuthorization: Bearer sesame\r\n") == 1


def test_a_folder_of_the_address_stands_before_each_path(wire: Wire) -> None:
    wire.plays = [[OK]]

    pool(wire, "/box/").get("/slots", 100)

    assert wire.requests[0].startswith(b"GET /box/slots ")


def test_a_connection_is_kept_and_one_that_was_closed_is_made_anew(wire: Wire) -> None:
    wire.plays = [[OK, OK, None], [OK]]
    asks = pool(wire)

    assert [asks.get("/slots", 100) for _ in range(3)] == [(200, b"[]")] * 3
    assert (len(wire.requests), wire.plays) == (3, [])
    asks.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", "RemoteProtocolError"),
        (b"SSH-2.0-OpenSSH_9.7\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n[", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\nzz\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", "RemoteProtocolError"),
    ],
    ids=["nothing", "no HTTP", "cut off", "bad chunk", "many headers", "a long header"],
)
def test_what_is_no_whole_answer_is_none(wire: Wire, answer: bytes, kind: str) -> None:
    wire.plays = [[answer, None]]

    with pytest.raises(NoResponse, match=kind):
        pool(wire).get("/slots", 100)


def test_an_answer_without_a_length_ends_with_its_connection(wire: Wire) -> None:
    wire.plays = [[b"HTTP/1.0 200 OK\r\n\r\nnot kept", None], [OK]]
    asks = pool(wire)

    assert asks.get("/", 100) == (200, b"not kept")
    assert asks.get("/", 100) == (200, b"[]")


def test_more_than_the_limit_is_left_unread(wire: Wire) -> None:
    wire.plays = [[b"HTTP/1.1 500 No\r\nContent-Length: 4194304\r\n\r\n" + b" " * 70_000, None]]

    with pytest.raises(ResponseTooLarge, match=r"^/slots answers with more than 0 MiB"):
        pool(wire).get("/slots", 60_000)


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(wire: Wire) -> None:
    wire.plays = [[b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[", b"never asked again"]]

    with pytest.raises(NoResponse, match="ReadTimeout"):
        pool(wire, timeout=0.05).get("/slots", 100)


def test_nobody_there(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(NoResponse, match="ConnectError"):
        ConnectionPool(f"http://127.0.0.1:{port}", {}, 10.0).get("/", 100)


@pytest.mark.parametrize("url", ["http://a:x", "http://[[::1]]:80", "http://\u2028", "http://", "ftp://a", "box:8080"])
def test_an_address_that_is_none_is_said_to_be(url: str) -> None:
    with pytest.raises(ValueError):
        ConnectionPool(url, {}, 1.0)
