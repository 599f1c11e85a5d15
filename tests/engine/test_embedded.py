"""The embedded engine with a real model: it serves, refuses arguments and exits as llama-server does."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.config import Config
from gpubox.engines.find import choose_engine
from gpubox.engines.query import check_arguments, list_devices, read_capabilities
from gpubox.paths import Paths

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.engine

ENGINE = choose_engine(Config(), "embedded")
KEY = "a-key-of-this-test"


class Running:
    """One launched engine; its stderr is read to the end, so that it never blocks on a full pipe."""

    def __init__(self, *argv: str, **env: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_")}
        self.process = subprocess.Popen(
            [*ENGINE.command, *argv], stderr=subprocess.PIPE, text=True, env={**clean, **env}
        )
        self.lines: list[str] = []
        self.port = 0
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.rstrip())
                if match := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                    self.port = int(match[1])
                self.changed.notify_all()
        with self.changed:
            self.port = self.port or -1
            self.changed.notify_all()

    def wait(self) -> Running:
        with self.changed:
            assert self.changed.wait_for(lambda: self.port, timeout=60)
        assert self.port > 0, self.lines
        return self

    def call(self, path: str, body: Any = None, key: str = KEY) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture
def launch() -> Iterator[Callable[..., Running]]:
    servers: list[Running] = []

    def start(*argv: str, **env: str) -> Running:
        servers.append(Running(*argv, **env))
        return servers[-1]

    yield start
    for running in servers:
        running.process.kill()
        running.process.wait()


def test_it_answers_guards_its_key_and_leaves_gracefully(launch: Callable[..., Running], demo_model: Path) -> None:
    running = launch(
        "--model", str(demo_model), "--port", "0", "-c", "512", "-np", "2", "--metrics", "--alias", "demo",
        "--temp", "0.5", "-t", "1", "-ctk", "q8_0", "-lv", "4", LLAMA_API_KEY=KEY,
    ).wait()  # fmt: skip
    answer = running.call(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    )
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["timings"]["predicted_n"] > 0
    assert answer["model"] == "demo"
    props = running.call("/props")
    assert props["model_path"] == str(demo_model)
    assert props["default_generation_settings"]["params"]["temperature"] == 0.5
    assert len(running.call("/slots")) == 2
    assert "llamacpp:tokens_predicted_total" in running.call("/metrics")
    for path, body in (("/props", None), ("/slots", None), ("/completion", {})):
        with pytest.raises(urllib.error.HTTPError) as error:
            running.call(path, body, key="wrong")
        assert error.value.code == 401
    log = "\n".join(running.lines)
    assert re.search(r"K \(q8_0\): +[\d.]+ MiB", log)
    assert "CPU KV buffer size" in log
    assert "\x1b" not in log
    assert running.stop() == 0


def test_a_stop_does_not_wait_for_a_running_answer(launch: Callable[..., Running], demo_model: Path) -> None:
    running = launch("-m", str(demo_model), "--port", "0", "-c", "4096", "-np", "1", "-t", "1", "--metrics").wait()
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        body = json.dumps({"prompt": "Once", "n_predict": 4000, "ignore_eos": True, "stream": True}).encode()
        client.sendall(
            b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        while b"data: " not in client.recv(65536):
            pass
        assert running.stop() == 0


def test_a_port_in_use_and_a_missing_model_end_with_code_1(launch: Callable[..., Running], demo_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        running = launch("-m", str(demo_model), "--port", str(port))
        assert running.process.wait(timeout=60) == 1
    missing = launch("-m", "/no/such/model.gguf", "--port", "0")
    assert missing.process.wait(timeout=60) == 1
    for server, message in ((running, "couldn't bind HTTP server socket"), (missing, "failed to open GGUF file")):
        with server.changed:
            assert server.changed.wait_for(lambda server=server: server.port, timeout=60)  # type: ignore[misc]
        assert any(message in line for line in server.lines)
        assert not any("Traceback" in line for line in server.lines)


def test_it_is_probed_and_questioned_like_any_engine(tmp_path: Path) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path)
    capabilities = read_capabilities(ENGINE, paths)
    assert capabilities.version.startswith("xllamacpp ")
    assert capabilities.option("n-cpu-moe")
    assert capabilities.option("device") is None
    assert read_capabilities(ENGINE, paths) == capabilities
    assert check_arguments(ENGINE, ["--ctx-size", "512", "--flash-attn", "on"], {}) is None
    assert check_arguments(ENGINE, ["--spec-type", "mtp"], {}) == (
        'error while handling argument "--spec-type": unknown speculative type: mtp'
    )
    assert all("MiB free)" in line for line in list_devices(ENGINE) or ())
