"""--url as people write it, and which servers get an API key."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpubox.address import origin, server_root
from gpubox.cli.main import run
from gpubox.config import Config, load_config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from gpubox.server.status import api_key_for
from tests.unit.llama_box import LlamaBox


@pytest.mark.parametrize(
    "text",
    [
        "http://box:8080", "http://box:8080/", "http://box:8080/v1", "http://box:8080/v1/", "http://BOX:8080//v1//",
        "http://box:8080/v1/chat/completions", "http://box:8080/v1/completions", "http://box:8080/v1/models",
        "http://box:8080/health", "http://box:8080/api", "http://box:8080/api/chat", "http://box:8080/api/v0/models",
        "box:8080", "box:8080/v1", " http://box:8080/v1/embeddings ",
    ],
)  # fmt: skip
def test_what_client_configurations_hold_is_one_address(text: str) -> None:
    assert server_root(text) == "http://box:8080"


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("https://host.example/llama/v1", "https://host.example/llama"),
        ("http://[::1]:8080/v1", "http://[::1]:8080"),
        ("localhost:11434", "http://localhost:11434"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("http://box/v1beta", "http://box/v1beta"),
    ],
)
def test_server_roots(text: str, root: str) -> None:
    assert server_root(text) == root


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "ftp://box",
        "http://box:99999",
        "http://[::1",
        "http://b ox",
        "http://b\x1b[31mox",
        "http://box:0",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="is not the address"):
        server_root(text)


@pytest.mark.parametrize("text", ["http://me:sesame@box", "http://box/v1?key=sesame", "http://box/#sesame"])
def test_a_secret_in_an_address_is_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        server_root(text)
    assert "sesame" not in str(caught.value) and "GPUBOX_URL_KEY" in caught.value.hint


def test_origins() -> None:
    assert origin("http://localhost:80/x") == origin("http://127.0.0.1/v1") == origin("http://[::1]:80")
    assert origin("https://box") == "https://box:443" and origin("nothing") == ""


class Listener:
    """Stores the Authorization headers that it receives; ``to``: where it redirects every request."""

    def __init__(self, to: str = "") -> None:
        self.sent: list[str | None] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.sent.append(self.headers.get("Authorization"))
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(307 if to else 200)
                if to:
                    self.send_header("Location", to + self.path)
                self.end_headers()
                self.wfile.write(b"" if to else b'{"data": [{"id": "m"}], "status": "ok"}')

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=lambda: self.http.serve_forever(0.02), daemon=True).start()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.http.shutdown()
    listener.http.server_close()


@pytest.fixture
def box_key(paths: Paths) -> None:
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.api_key_file.write_text("the-box-key")
    paths.api_key_file.chmod(0o600)


VERBS = [
    ("status", "--url", "URL"),
    ("status", "--url", "URL", "--json"),
    ("chat", "-p", "hi", "--no-tools", "--url", "URL"),
    ("bench", "speed", "--url", "URL", "--prompts", "short", "--depths", "0", "--repeats", "1"),
    ("record", "/dev/null/x", "--seconds", "0.01", "--url", "URL"),
]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0] + words[-1][:6])
def test_the_box_s_key_is_sent_to_no_server_by_its_url(
    words: tuple[str, ...], listener: Listener, box_key: None
) -> None:
    run([listener.url if word == "URL" else word for word in words])
    assert set(listener.sent) <= {None}
    assert listener.sent or words[0] == "record"


def test_a_redirect_takes_no_key_elsewhere(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, own_home: object
) -> None:
    first = Listener(to=listener.url)
    monkeypatch.setenv("GPUBOX_URL_KEY", "for-the-first")
    for words in VERBS[:4]:
        run([first.url if word == "URL" else word for word in words])
    first.http.shutdown()
    first.http.server_close()
    assert set(first.sent) == {"Bearer for-the-first"}
    assert listener.sent == []


def test_the_owner_names_keys(paths: Paths, box_key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    file = paths.config / "vllm-key"
    file.write_text("of-vllm\n")
    file.chmod(0o600)
    paths.config_file.write_text(f'[keys]\n"box:8000/v1" = "{file}"\n')
    config = load_config(paths)
    assert api_key_for(paths, config, "http://box:8000") == "of-vllm"
    assert api_key_for(paths, config, "http://box:8001") is None
    assert api_key_for(paths, config, "https://box:8000") is None
    monkeypatch.setenv("GPUBOX_URL_KEY", "given")
    assert api_key_for(paths, config, "http://box:8001") == "given"
    monkeypatch.delenv("GPUBOX_URL_KEY")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by other users"):
        api_key_for(paths, config, "http://box:8000")


@pytest.mark.parametrize("name", ["GPUBOX_API_KEY", "LLAMA_API_KEY"])
def test_the_box_s_key_in_the_environment_is_the_box_s_alone(
    name: str, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "the-box-key")
    assert api_key_for(paths, Config(), "http://127.0.0.1:1") is None


def test_a_server_that_gpubox_started_gets_the_box_s_key_as_long_as_it_lives(
    box: LlamaBox, paths: Paths, box_key: None
) -> None:
    assert api_key_for(paths, Config(), box.url) is None
    box.start()
    assert api_key_for(paths, Config(), box.url) == "the-box-key"
    assert api_key_for(paths, Config(), box.url.replace("127.0.0.1", "localhost")) == "the-box-key"
    assert api_key_for(paths, Config(), "http://127.0.0.1:1") is None
    box.signal(signal.SIGKILL)
    assert api_key_for(paths, Config(), box.url) is None
