"""Broken HTTP, wrong keys, clients and servers that misbehave: a clear answer, and a neighbour notices nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpubox.gateway.client_keys import ClientKeys
from gpubox.paths import Paths
from tests.gateway_process import Gateway, descriptors, paced_server, resident_mib, upstream_profile
from tests.hostile.raw_cases import BODY, MIB, NAME, head, post
from tests.raw_http import Reply, Wire, ask, request_bytes

LIMITS = {"HEAD_SECONDS": 4.0, "BODY_SILENCE_SECONDS": 4.0, "STALL_SECONDS": 2.0, "LINGER_SECONDS": 1.0}
BODY_MIB = 4
SLOW = 40
PATIENCE = 60.0


class Neighbour:
    """A client with one stream that never ends."""

    def __init__(self, port: int, key: str = "") -> None:
        self.tokens = 0
        self.reply: Reply | None = None
        self._stop = threading.Event()
        headers = {"Authorization": f"Bearer {key}", "User-Agent": "neighbour/1"}
        body = {
            "model": NAME,
            "messages": [],
            "max_tokens": 10_000_000,
            "pace": 200,
            "stream": True,
            "user": "neighbour",
        }
        self._thread = threading.Thread(target=self._read, args=(port, body, headers), daemon=True)
        self._thread.start()

    def _read(self, port: int, body: dict[str, object], headers: dict[str, str]) -> None:
        def leave(reply: Reply) -> bool:
            self.tokens = len(reply.token_times)
            reply.body = reply.body[-4096:]
            return self._stop.is_set()

        self.reply = ask(port, "/v1/chat/completions", body, headers=headers, leave=leave, timeout=PATIENCE)

    def goes_on(self) -> bool:
        """Whether one more token comes."""
        before, end = self.tokens, time.monotonic() + PATIENCE
        while self._thread.is_alive() and time.monotonic() < end:
            if self.tokens > before:
                return True
            time.sleep(0.002)
        return False

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)


class Scene:
    """One gateway before a paced server, with a neighbour that streams."""

    def __init__(self, gateway: Gateway, server: int) -> None:
        self.gateway, self.port, self.server = gateway, gateway.port, server
        self.neighbour = Neighbour(self.port)
        assert self.neighbour.goes_on()

    def seen(self, user: str, what: str = "seen") -> int:
        """How often the server was asked by this user."""
        values = ask(self.server, "/seen").json()
        return int(values[what].get(user, 0))

    def chat(self, **more: object) -> Reply:
        """A well-behaved request of another client."""
        return ask(self.port, "/v1/chat/completions", {"model": NAME, "messages": [], "max_tokens": 2, **more})


def eventually(true: Callable[[], object]) -> bool:
    end = time.monotonic() + PATIENCE
    while not (reached := true()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(reached)


@contextlib.contextmanager
def folders(root: Path) -> Iterator[Path]:
    """Folders of its own, for a gateway of this module. Yields that of config.toml."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            patch.setenv(f"XDG_{name}_HOME", str(root / name.lower()))
        for name in list(os.environ):
            if name.startswith(("GPUBOX_", "LLAMA_")):
                patch.delenv(name)
        folder = Paths.default().config
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(f"[gateway]\nmax-body-mib = {BODY_MIB}\nwait-seconds = 5\n")
        yield folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of config.toml of the gateway that lets in everybody."""
    with folders(tmp_path_factory.mktemp("gateway")) as folder:
        yield folder


@pytest.fixture(scope="module")
def scene(home: Path) -> Iterator[Scene]:
    """One for all attacks; at its end nothing may be left of them."""
    with paced_server() as (server, _):
        upstream_profile(home, NAME, server)
        gateway = Gateway(limits=LIMITS)
        try:
            yield Scene(gateway, server)
        finally:
            gateway.stop()


@pytest.fixture(scope="module", autouse=True)
def nothing_left(scene: Scene) -> Iterator[None]:
    """Memory, descriptors and the log before and after all attacks. Slow clients are there the whole time."""
    assert scene.chat().status == 200
    memory = resident_mib(scene.gateway.pid)
    slow = [Wire(scene.port, PATIENCE) for _ in range(SLOW)]
    for number, wire in enumerate(slow):
        whole = post(BODY)
        wire.send(whole[: len(whole) - 5 if number % 2 else 60])
    yield
    for wire in slow:  # those with half a head, and those with half a body
        with wire:
            reply = wire.read()
            assert (reply.status == 408 and reply.whole) or reply.error.startswith("Connection"), reply
    after = descriptors(scene.gateway.pid)
    scene.neighbour.close()
    assert eventually(lambda: descriptors(scene.gateway.pid) <= 24), after
    assert eventually(lambda: ask(scene.server, "/seen").json()["running"] == 0)
    assert resident_mib(scene.gateway.pid) < memory + 24
    assert not scene.gateway.problems()
    assert scene.chat().status == 200


def clean(reply: Reply) -> bool:
    """Whether an error is one sentence in JSON, without anything that a terminal or an owner should not see."""
    message = reply.json()["error"]["message"]
    return bool(message) and len(message) < 1000 and message.isprintable() and "Traceback" not in message


def test_body_over_the_limit(scene: Scene) -> None:
    """A gibibyte in chunks is refused at the limit, and memory stays, however much the client sends on."""
    before = resident_mib(scene.gateway.pid)
    with Wire(scene.port, PATIENCE) as wire:
        wire.send(head("Content-Type: application/json", "Transfer-Encoding: chunked"))
        piece = b"%x\r\n%b\r\n" % (MIB, b"a" * MIB)
        with contextlib.suppress(ConnectionError):
            for _ in range(1024):
                wire.send(piece)
        reply = wire.read()
    assert reply.status == 413 or reply.error.startswith("Connection")
    assert resident_mib(scene.gateway.pid) < before + 4 * BODY_MIB + 16
    assert scene.neighbour.goes_on()


def test_many_large_bodies_at_once(scene: Scene) -> None:
    """Twelve clients send a body just below the limit and wait; memory returns when they have gone."""
    body = b'{"model": "paced", "max_tokens": 1, "silent": true, "pad": "' + b"a" * (BODY_MIB * MIB - 100) + b'"}'
    before = resident_mib(scene.gateway.pid)
    wires = [Wire(scene.port, PATIENCE) for _ in range(12)]
    for wire in wires:
        wire.send(post(body)[:-2])
    assert scene.neighbour.goes_on()
    assert resident_mib(scene.gateway.pid) < before + 3 * 12 * BODY_MIB
    for wire in wires:
        wire.sock.close()
    assert eventually(lambda: resident_mib(scene.gateway.pid) < before + 20)


def test_bodies_that_were_sent_on_take_no_memory(scene: Scene) -> None:
    """Twelve clients wait for a server that never answers."""
    body = b'{"model": "paced", "silent": true, "user": "patient", "pad": "' + b"a" * (BODY_MIB * MIB - 100) + b'"}'
    before = resident_mib(scene.gateway.pid)
    wires = [Wire(scene.port, PATIENCE) for _ in range(12)]
    for wire in wires:
        wire.send(post(body))
    assert eventually(lambda: scene.seen("patient") == len(wires))
    assert eventually(lambda: resident_mib(scene.gateway.pid) < before + 3 * BODY_MIB)
    for wire in wires:
        wire.sock.close()


def test_pipelined_requests_are_answered_in_order(scene: Scene) -> None:
    requests = [
        post(json.dumps({"model": NAME, "messages": [], "max_tokens": n, "user": f"pipe{n}"}).encode())
        for n in (1, 2, 3)
    ]
    with Wire(scene.port, PATIENCE) as wire:
        wire.send(b"".join(requests))
        replies = [wire.read() for _ in requests]
    assert [len(reply.text.split()) for reply in replies] == [1, 2, 3]
    assert [scene.seen(f"pipe{n}") for n in (1, 2, 3)] == [1, 1, 1]


def test_pipelined_requests_of_a_client_that_leaves_are_not_begun(scene: Scene) -> None:
    """A hundred requests at once, of which the first never ends: none of the others reaches the server."""
    first = post(json.dumps({"model": NAME, "silent": True, "user": "first"}).encode())
    other = post(json.dumps({"model": NAME, "user": "other", "pad": "a" * 2000}).encode())
    with Wire(scene.port, PATIENCE) as wire:
        wire.send(first + other * 99)
        assert eventually(lambda: scene.seen("first") == 1)
    assert eventually(lambda: scene.seen("first", "left") == 1)
    assert scene.seen("other") == 0


def test_expect_continue_is_answered(scene: Scene) -> None:
    with Wire(scene.port, PATIENCE) as wire:
        wire.send(head("Content-Type: application/json", f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
        assert wire.read().status == 100
        wire.send(BODY)
        assert wire.read().status == 200


def test_byte_by_byte_request_is_answered(scene: Scene) -> None:
    """A slow client that is not hostile is served."""
    with Wire(scene.port, PATIENCE) as wire:
        for byte in post(BODY):
            wire.send(bytes([byte]))
        assert wire.read().status == 200


def test_connection_is_kept_and_reused(scene: Scene) -> None:
    with Wire(scene.port, PATIENCE) as wire:
        for _ in range(5):
            wire.send(post(BODY))
            assert wire.read().status == 200
        wire.send(post(b"{broken"))
        assert wire.read().status == 400


def test_client_leaves_in_the_prompt(scene: Scene) -> None:
    """Closed while the server reads the prompt, by FIN or by RST: the server hears of it."""
    for name, reset in (("fin", False), ("rst", True)):
        with Wire(scene.port, PATIENCE) as wire:
            wire.send(post(json.dumps({"model": NAME, "silent": True, "stream": True, "user": name}).encode()))
            assert eventually(lambda name=name: scene.seen(name) == 1)  # type: ignore[misc]
            if reset:
                wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert eventually(lambda name=name: scene.seen(name, "left") == 1)  # type: ignore[misc]


def test_client_leaves_in_the_stream(scene: Scene) -> None:
    left = ask(
        scene.port,
        "/v1/chat/completions",
        {"model": NAME, "stream": True, "max_tokens": 1_000_000, "user": "quitter"},
        leave=lambda reply: len(reply.token_times) > 3,
    )
    assert left.left
    assert eventually(lambda: scene.seen("quitter", "left") == 1)


def test_clients_that_never_read(scene: Scene) -> None:
    """Their servers wait, memory stays bounded, and after a while they are dropped."""
    before = resident_mib(scene.gateway.pid)
    body = {"model": NAME, "stream": True, "max_tokens": 10_000_000, "pace": 1e9, "user": "deaf"}
    wires = [Wire(scene.port, PATIENCE) for _ in range(6)]
    for wire in wires:
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(request_bytes("POST", "/v1/chat/completions", json.dumps(body).encode()))
    assert eventually(lambda: scene.seen("deaf") == 6)
    assert scene.neighbour.goes_on()
    assert eventually(lambda: scene.seen("deaf", "left") == 6), "the server's slots wait for them for ever"
    assert resident_mib(scene.gateway.pid) < before + 24
    for wire in wires:
        wire.sock.close()


def test_many_connections_that_say_nothing(scene: Scene) -> None:
    """A client that speaks is served beside them, and nothing of them stays."""
    wires = []
    with contextlib.suppress(OSError):
        for _ in range(300):
            wires.append(Wire(scene.port, PATIENCE))
    assert scene.neighbour.goes_on()
    assert scene.chat().status == 200
    for wire in wires:
        wire.sock.close()
    assert eventually(lambda: descriptors(scene.gateway.pid) < 100)


def test_what_reaches_the_server_is_one_plain_request(scene: Scene) -> None:
    """Hop-by-hop headers, cookies and other framings of the client stay with the gateway."""
    lines = ("Connection: x-private", "X-Private: 1", "TE: trailers", "Cookie: a=b", "Keep-Alive: timeout=9",
             "Proxy-Authorization: Basic x", "X-Kept: yes", "User-Agent: plain-test")  # fmt: skip
    with Wire(scene.port, PATIENCE) as wire:
        data = b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(BODY), BODY)
        wire.send(head("Content-Type: application/json", "Transfer-Encoding: chunked", *lines) + data)
        assert wire.read().status == 200
    heads = [
        text.lower() for text in ask(scene.server, "/seen").json()["heads"] if "X-Kept" in text or "x-kept" in text
    ]
    (text,) = heads
    assert text.count("content-length:") == 1 and "transfer-encoding" not in text and "x-trailer" not in text
    assert "x-private" not in text and "cookie" not in text and "proxy-authorization" not in text


# -- keys ----------------------------------------------------


class Locked(Scene):
    """A gateway whose clients have got keys while it ran."""

    def __init__(self, gateway: Gateway, server: int, keys: ClientKeys) -> None:
        super().__init__(gateway, server)
        self.keys = keys
        self.secrets = {name: keys.add(name) for name in ("laptop", "revoked", "midway")}
        keys.remove("revoked")
        assert eventually(lambda: self.chat().status == 401)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    with paced_server() as (server, _):
        with folders(tmp_path_factory.mktemp("locked")) as folder:
            upstream_profile(folder, NAME, server)
            gateway, keys = Gateway(limits=LIMITS), ClientKeys(Paths.default())
        try:
            scene = Locked(gateway, server, keys)
            yield scene
            scene.neighbour.close()
        finally:
            gateway.stop()


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


WRONG: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "none": lambda _: {},
    "empty": lambda _: bearer(""),
    "only Bearer": lambda _: {"Authorization": "Bearer"},
    "wrong": lambda _: bearer("gb-" + "A" * 43),
    "revoked": lambda s: bearer(s["revoked"]),
    "cut": lambda s: bearer(s["laptop"][:-1]),
    "longer": lambda s: bearer(s["laptop"] + "A"),
    "other case": lambda s: bearer(s["laptop"].swapcase()),
    "Basic": lambda s: {"Authorization": "Basic " + s["laptop"]},
    "32 KiB": lambda _: bearer("gb-" + "A" * 32768),
    "not ASCII": lambda _: bearer("gb-é"),
    "Basic, encoded": lambda s: {"Authorization": "Basic " + base64.b64encode(f"user:{s['laptop']}".encode()).decode()},
    "another scheme": lambda s: {"Authorization": "Token " + s["laptop"]},
    "no scheme": lambda s: {"Authorization": s["laptop"]},
    "a list": lambda s: bearer(f"wrong, Bearer {s['laptop']}"),
    "behind a wrong one": lambda s: bearer("wrong") | {"x-api-key": s["laptop"]},
    "in quotes": lambda s: bearer(f'"{s["laptop"]}"'),
    "a pattern": lambda _: bearer("*"),
    "its name": lambda _: bearer("laptop"),
    "None": lambda _: bearer("None"),
    "in a cookie": lambda s: {"Cookie": f"api_key={s['laptop']}; Authorization=Bearer {s['laptop']}"},
    "for a proxy": lambda s: {"Proxy-Authorization": f"Bearer {s['laptop']}"},
    "as the host": lambda s: {"Host": f"user:{s['laptop']}@127.0.0.1"},
    "as Google's": lambda s: {"x-goog-api-key": s["laptop"]},
    "the other name's letters": lambda s: {"x_api_key": s["laptop"]},
    "the page's": lambda _: {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
    "forwarded from here": lambda _: {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1"},
    "its hash": lambda s: bearer(hashlib.sha256(s["laptop"].encode()).hexdigest()),
    "in the query": lambda _: {},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_keys(locked: Locked, name: str) -> None:
    port, secrets = locked.port, locked.secrets
    body = {"model": NAME, "messages": [], "max_tokens": 1, "user": "keyless"}
    query = f"?api_key={secrets['laptop']}" if name == "in the query" else ""
    reply = ask(port, "/v1/chat/completions" + query, body, headers=WRONG[name](secrets))
    assert reply.status == 401 and clean(reply), reply
    assert reply.header("www-authenticate") == "Bearer"
    for path in ("/v1/models", "/metrics", "/props", "/slots"):
        assert ask(port, path, headers=WRONG[name](secrets)).status == 401
    assert ask(port, "/gpubox/status", headers=bearer(secrets["laptop"])).status in (401, 403, 404)
    assert locked.seen("keyless") == 0
    assert locked.neighbour.goes_on()


def test_right_key_is_not_passed_on(locked: Locked) -> None:
    port, secrets = locked.port, locked.secrets
    body = {"model": NAME, "messages": [], "max_tokens": 1, "user": "keyed"}
    for headers in (bearer(secrets["laptop"]), {"x-api-key": secrets["laptop"]}):
        assert ask(port, "/v1/chat/completions", body, headers=headers).status == 200
    assert locked.seen("keyed") == 2
    assert secrets["laptop"] not in ask(locked.server, "/seen").body.decode()
    assert ask(port, "/health").status == 200


def test_key_revoked_in_mid_stream(locked: Locked) -> None:
    """The stream ends, whole or with an error, and the next request is refused."""
    port, secrets = locked.port, locked.secrets
    body = {"model": NAME, "messages": [], "max_tokens": 60, "pace": 100, "stream": True}
    done: list[Reply] = []

    def revoke(reply: Reply) -> bool:
        if len(reply.token_times) >= 3 and "midway" in locked.keys.clients:  # several may come in one piece
            locked.keys.remove("midway")
        return False

    done.append(ask(port, "/v1/chat/completions", body, headers=bearer(secrets["midway"]), leave=revoke))
    assert done[0].whole and (b"[DONE]" in done[0].body or b'"error"' in done[0].body)
    assert eventually(lambda: ask(port, "/v1/chat/completions", body, headers=bearer(secrets["midway"])).status == 401)
    assert locked.neighbour.goes_on()
