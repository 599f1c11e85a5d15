"""Web pages that ask the gateway through its owner's browser: none starts or stops a model without a key.

What a browser sends is written down here by hand, and so is what it must get. A server stands behind the gateway that
says "reached" to everything.
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpubox.gateway.client_keys import ClientKeys
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths
from tests.conftest import until
from tests.gateway_process import Gateway, upstream_profile
from tests.raw_http import Reply, Wire, request_bytes
from tests.sampling import SEED

OWN_NAME = socket.gethostname()
ALLOWED = "access-control-allow-origin"
BODY = json.dumps({"model": "far", "messages": []}).encode()
EXPOSED = ("--host", "0.0.0.0", "--yes")


class Reached(http.server.BaseHTTPRequestHandler):
    """As llama-server, it lets each page read."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "7")
        if origin := self.headers.get("Origin"):
            self.send_header("Access-Control-Allow-Origin", origin)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"reached")

    do_POST = do_HEAD = do_OPTIONS = do_GET

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Reached) as listener:
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield listener.server_port
        listener.shutdown()


@contextlib.contextmanager
def gateway_of(root: Path, server: int, *words: str, key: bool = False) -> Iterator[tuple[Gateway, str]]:
    """A gateway with folders of its own, and the key of its client; empty: it asks for none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            patch.setenv(f"XDG_{name}_HOME", str(root / name.lower()))
        for name in list(os.environ):
            if name.startswith(("GPUBOX_", "LLAMA_")):
                patch.delenv(name)
        paths = Paths.default()
        upstream_profile(paths.config, "far", server)
        paths.config_file.write_text('[gateway]\nnames = ["llm.example"]\n')
        secret = ClientKeys(paths).add("page") if key else ""
        gateway = Gateway(words=words)
        try:
            yield gateway, secret
            assert not gateway.problems()
        finally:
            gateway.stop()


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway to ask."""

    port: int
    key: str

    def ask(self, method: str, host: str, origin: str, site: str, key: str, target: str = "") -> Reply:
        """One request as a browser sends it. ``preflight`` and ``websocket`` are methods, too."""
        headers = {"Host": host.replace("PORT", str(self.port))}
        given = {"Origin": origin.replace("PORT", str(self.port)), "Sec-Fetch-Site": site, "X-Api-Key": key}
        headers |= {name: value for name, value in given.items() if value}
        if method == "preflight":
            headers |= {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        if method == "websocket":
            headers |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        word = {"preflight": "OPTIONS", "websocket": "GET"}.get(method, method)
        path = target or ("/v1/chat/completions" if word in ("POST", "OPTIONS") else "/props?model=far")
        with Wire(self.port, 30) as wire:
            wire.send(request_bytes(word, path, BODY if word == "POST" else None, headers))
            if word == "HEAD":
                return _head(wire)
            return wire.read()


def _head(wire: Wire) -> Reply:
    data = b""
    while b"\r\n\r\n" not in data and (part := wire.sock.recv(65536)):
        data += part
    first, *lines = data.split(b"\r\n\r\n")[0].decode().split("\r\n")
    named = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    return Reply(int(first.split()[1]), named)


@pytest.fixture(scope="module", params=["here", "exposed", "keyed", "exposed and keyed"])
def place(request: pytest.FixtureRequest, server: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    name = str(request.param)
    words = EXPOSED if "exposed" in name else ()
    with gateway_of(tmp_path_factory.mktemp("pages"), server, *words, key="keyed" in name) as (gateway, key):
        yield Place(gateway.port, key)


# Each value of a request: whether a request that has it, and nothing worse, is the owner's own.
METHODS = ("GET", "HEAD", "POST", "preflight", "websocket")
HOSTS = {
    "127.0.0.1:PORT": True, "localhost:PORT": True, "[::1]:PORT": True, "192.168.1.7:PORT": True, OWN_NAME: True,
    f"{OWN_NAME}.local:PORT": True, "llm.example:PORT": True, "rebound.example:PORT": False,
    "127.0.0.1.rebound.example": False, "localhost.rebound.example:PORT": False, "another-box": False,
}  # fmt: skip
ORIGINS = {
    "": True, "http://localhost:3000": True, "http://127.0.0.1:PORT": True, "http://[::1]:1": True,
    "https://evil.example": False, "null": False, "http://localhost.evil.example": False, "file://": False,
    "http://127.0.0.1@evil.example": False, "http://evil.sock": False,
}  # fmt: skip
SITES = {"": True, "none": True, "same-origin": True, "same-site": True, "cross-site": False, "sideways": False}


def expected(place: Place, method: str, host: str, origin: str, site: str, key: str) -> int:
    if place.key:
        return 200 if key == place.key or method == "preflight" else 401
    is_own = HOSTS[host] and ORIGINS[origin] and SITES[site] and not (site == "same-site" and not origin)
    return 200 if is_own else 403


@pytest.mark.parametrize("share", [0.05, pytest.param(1.0, marks=pytest.mark.nightly)])
def test_each_request_of_a_page_is_answered_or_refused_by_this_table(place: Place, share: float) -> None:
    keys = (place.key, "", "wrong") if place.key else ("", "wrong")
    whole = list(itertools.product(METHODS, HOSTS, ORIGINS, SITES, keys))
    for case in random.Random(SEED).sample(whole, int(share * len(whole))):
        reply = place.ask(*case)
        assert reply.status == expected(place, *case), (case, reply.body)
        if reply.status != 200:
            assert not reply.header(ALLOWED), case
        elif case[2]:
            assert reply.header(ALLOWED) == case[2].replace("PORT", str(place.port)), case


LOOPBACK, LAN = "127.0.0.1:PORT", "192.168.1.7:PORT"
BROWSERS: dict[str, tuple[tuple[str, str, str, str], int]] = {
    # what a browser, or a program, sends: method, Host, Origin, Sec-Fetch-Site; and what it gets without a key
    "curl": (("POST", LOOPBACK, "", ""), 200),
    "an agent on the LAN": (("POST", LAN, "", ""), 200),
    "the owner types the address": (("GET", LOOPBACK, "", "none"), 200),
    "the server's own page": (("POST", LOOPBACK, "http://127.0.0.1:PORT", "same-origin"), 200),
    "the server's own page on the LAN": (("POST", LAN, "http://192.168.1.7:PORT", ""), 200),
    "a chat page of this machine": (("POST", "localhost:PORT", "http://localhost:3000", "same-site"), 200),
    "its preflight": (("preflight", "localhost:PORT", "http://localhost:3000", "same-site"), 200),
    "an image of any page": (("GET", LOOPBACK, "", "cross-site"), 403),
    "an image of a page of this machine": (("GET", LOOPBACK, "", "same-site"), 403),
    "a link on any page": (("GET", "localhost:PORT", "", "cross-site"), 403),
    "a form of any page": (("POST", LOOPBACK, "https://evil.example", "cross-site"), 403),
    "a form without an origin": (("POST", LOOPBACK, "null", "cross-site"), 403),
    "fetch without CORS": (("POST", LOOPBACK, "https://evil.example", "cross-site"), 403),
    "fetch with CORS": (("preflight", LOOPBACK, "https://evil.example", "cross-site"), 403),
    "a web socket of any page": (("websocket", LOOPBACK, "https://evil.example", "cross-site"), 403),
    "an old browser": (("POST", LOOPBACK, "https://evil.example", ""), 403),
    "a page whose name now leads here": (("POST", "rebound.example:PORT", "http://rebound.example:PORT", ""), 403),
    "the same, by GET": (("GET", "rebound.example:PORT", "", "same-origin"), 403),
    "the same on the LAN": (("POST", "box.rebound.example:PORT", "http://box.rebound.example:PORT", ""), 403),
}


@pytest.mark.parametrize(("sent", "status"), BROWSERS.values(), ids=BROWSERS)
def test_what_browsers_send(place: Place, sent: tuple[str, str, str, str], status: int) -> None:
    if place.key:
        status = 200 if sent[0] == "preflight" else 401  # a browser asks before it sends the key
    reply = place.ask(*sent, key="")
    assert reply.status == status
    assert bool(reply.header(ALLOWED)) == bool(status == 200 and sent[2])
    assert place.key or status == 200 or "need" in reply.json()["error"]["message"]
    assert not place.key or place.ask(*sent, key=place.key).status == 200


@pytest.mark.parametrize("target", ["/nothing/../there", "/slots/0?action=erase", "/gpubox/status", "/v1/models"])
def test_no_other_page_reads_why_it_is_refused(place: Place, target: str) -> None:
    for host in (LOOPBACK, "rebound.example"):
        reply = place.ask("GET", host, "https://evil.example", "cross-site", "", target)
        assert reply.status in (400, 401, 403)
        assert not reply.header(ALLOWED)


def test_health_is_told_without_a_key_but_not_to_any_page(place: Place) -> None:
    assert place.ask("GET", LOOPBACK, "", "", "", "/health").status == 200
    for sent in ((LOOPBACK, "https://evil.example", "cross-site"), ("rebound.example", "", "same-origin")):
        assert place.ask("GET", *sent, "", "/health").status == (200 if place.key else 403)


def test_a_deleted_key_file_opens_nothing_also_after_a_restart(server: int, tmp_path: Path) -> None:
    def status(gateway: Gateway) -> int:
        return Place(gateway.port, "").ask("POST", LOOPBACK, "", "", "").status

    with gateway_of(tmp_path, server, key=True) as (gateway, _):
        assert status(gateway) == 401
        Paths.default().client_keys.unlink()
        assert status(gateway) == 503
    with gateway_of(tmp_path, server, *EXPOSED) as (gateway, _):
        assert status(gateway) == 503
        assert "client-keys.json is gone" in gateway.status()["problems"][0]
        ClientKeys(Paths.default()).reset()
        assert status(gateway) == 200


def test_no_request_but_post_brings_a_profile_up_or_evicts_one(
    paths: Paths, fake_engine: Path, tiny_gguf: Path, write_profile: Callable[[str, str], Path]
) -> None:
    for name in ("a", "b"):
        write_profile(name, f'model = "{tiny_gguf}"\nport = 0\n')
    paths.config_file.write_text(f'default-engine = "fake"\n[engines]\nfake = "{fake_engine}"\n')
    gateway = Gateway()
    place = Place(gateway.port, "")

    def answers(method: str, target: str) -> tuple[int, str]:
        reply = place.ask(method, LOOPBACK, "", "", "", target)
        return reply.status, "" if method == "HEAD" or reply.status == 200 else reply.json()["error"]["message"]

    def pids() -> list[int]:
        return [identity.pid for identity, _ in find_by_marker(f"{paths.state}|")]

    def post(name: str) -> int:
        with Wire(gateway.port) as wire:
            wire.send(request_bytes("POST", "/completion", json.dumps({"model": name, "prompt": "x"}).encode()))
            return wire.read().status

    refusal = "b is not up, and only a POST request waits for it or brings it up."
    try:
        assert answers("GET", "/props")[0] == 503  # nothing runs
        assert post("a") == 200
        (server,) = pids()
        assert answers("GET", "/props?model=a") == answers("GET", "/props") == (200, "")
        for target in ("/props?model=b", "/slots?model=b", "/?model=b", "/lora-adapters?model=b", "/v1/x?model=b"):
            assert answers("GET", target) == (503, refusal)
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"):
            assert answers(method, "/props?model=b")[0] == 503
        assert gateway.control("pause", post=True).status == 200
        assert answers("GET", "/props?model=a")[0] == 503  # it does not wait, either
        assert gateway.control("resume", post=True).status == 200
        assert [event["profile"] for _, event in gateway.named("switch") if event["step"] == "begin"] == ["a"]
        assert pids() == [server]
        assert post("b") == 200
        until(lambda: server not in pids())
    finally:
        gateway.stop()
        for pid in pids():
            os.kill(pid, signal.SIGKILL)
