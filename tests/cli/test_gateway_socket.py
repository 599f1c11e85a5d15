"""A socket that somebody else keeps open, as systemd does: no client is refused while the gateway dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gpubox.errors import ExitCode
from gpubox.paths import Paths
from tests.conftest import until
from tests.raw_http import ask

ACTIVATE = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid()); "
ACTIVATE += "os.execv(sys.executable, [sys.executable, '-m', 'gpubox', 'serve', '--quiet', '--port', '1'])"
"""What systemd does before it runs the gateway. The socket's port counts, and not that of the command line."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


class Manager:
    """systemd in small: a listening socket, a gateway that is started again when it ends, and what it tells."""

    def __init__(self, listening: socket.socket, heard: socket.socket) -> None:
        self._listening, self._heard = listening, heard
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        number = self._listening.fileno()
        env = {**os.environ, "LISTEN_FDS": "1", "NOTIFY_SOCKET": str(self._heard.getsockname())}
        return subprocess.Popen([sys.executable, "-c", ACTIVATE, str(number)], pass_fds=(number,), env=env)

    def says(self) -> str:
        return self._heard.recv(100).decode()

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


@contextmanager
def asking(port: int) -> Iterator[Counter[str]]:
    """How the requests of four clients ended that come one after the other, each over a connection of its own."""
    ended, outcomes = threading.Event(), Counter[str]()

    def ask() -> None:
        while not ended.is_set():
            outcomes[_outcome(port)] += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _outcome(port: int) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return "answered" if client.recv(100).startswith(b"HTTP/1.1 200") else "cut"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:  # it was accepted, and the gateway killed
        return "cut" if isinstance(error, ConnectionResetError) else str(error)


@pytest.mark.parametrize("rounds", [1, pytest.param(15, marks=pytest.mark.nightly)])
def test_no_connection_is_refused_while_gateways_are_killed_and_restarted(paths: Paths, rounds: int) -> None:
    address = paths.state / "notify"
    address.parent.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(address))
        heard.settimeout(30)
        port = listening.getsockname()[1]
        manager = Manager(listening, heard)
        try:
            with asking(port) as outcomes:
                for number in SIGNALS * rounds:
                    assert manager.says() == "READY=1"
                    before = outcomes["answered"]
                    until(lambda before=before: outcomes["answered"] > before + 20)  # type: ignore[misc]
                    manager.end(number)
                    assert number == signal.SIGKILL or manager.says() == "STOPPING=1"
                    manager.process = manager.start()
                assert manager.says() == "READY=1"
        finally:
            manager.end(signal.SIGTERM)

    assert set(outcomes) <= {"answered", "cut"} and outcomes["cut"] <= 4 * len(SIGNALS) * rounds, outcomes


def test_who_waits_for_a_gateway_that_cannot_start_hears_it_and_leaves_the_queue_empty(paths: Paths) -> None:
    """Else systemd starts it again and again for a client that has long gone."""
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text("no-such-key = 1\n")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        port = listening.getsockname()[1]
        gone = socket.create_connection(("127.0.0.1", port))
        gone.close()
        with ThreadPoolExecutor() as pool:
            replies = [pool.submit(ask, port, "/v1/chat/completions", {"model": "one"}) for _ in range(3)]
            process = Manager(listening, heard).process
            assert process.wait(30) == ExitCode.USAGE
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.accept()
    for reply in (each.result() for each in replies):
        assert reply.status == 503 and "journalctl" in reply.json()["error"]["message"]
