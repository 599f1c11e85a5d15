"""Whatever stands in a file, or comes from a server: each verb that reads it, and the screen, answer with a sentence.

A table: readers times contents. Each case runs in a process of its own (``reader_server``), with limits of CPU time and
memory. The quick run tries a few, the nightly run all.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpubox.paths import Paths
from tests.bench_runs import speed_run
from tests.hostile.reader_server import SCREEN
from tests.hostile_text import ATTACKS
from tests.sampling import sampled

CPU_SECONDS, WALL_SECONDS, MEMORY = 2.0, 30.0, 300 << 20
ROOT = Path(__file__).parent.parent.parent
RECORDING = ROOT / "assets" / "dashboard.jsonl"
Make = Callable[[Path], None]


def _bytes(data: bytes) -> Make:
    return lambda path: path.write_bytes(data) and None


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


N = 100_000
ODD_FILES: dict[str, Make] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "folder": lambda path: path.mkdir(),
    "dev-zero": lambda path: path.symlink_to("/dev/zero"),
    "dev-tty": lambda path: path.symlink_to("/dev/tty"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "cycle": lambda path: path.symlink_to("."),
    "sparse": _sparse,
    "unreadable": lambda path: path.write_text("{}") and path.chmod(0),
}
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "NUL": b"\0" * N,
    "binary": bytes(range(256)) * 500,
    "no UTF-8": b"\xff\xfe\xfd" * N,
    "UTF-16": '{"a": "b"}'.encode("utf-16"),
    "BOM": b'\xef\xbb\xbf{"a": 1}\n',
    "lists": b"[" * N,
    "objects": b'{"a":' * N,
    "closed lists": b"[" * 900 + b"]" * 900,
    "YAML lists": b"- " * N,
    "YAML flow": b"a: " + b"{a: " * 20_000,
    "YAML aliases": b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)),
    "YAML cycle": b"services: &a {b: *a}\n",
    "dots": b"a." * N + b"a = 1\n",
    "table": b"[" + b"a." * 20_000 + b"a]\n",
    "inline": b"a = " + b"{a = " * N,
    "digits": b'{"schema_version": ' + b"9" * N + b"}",
    "TOML digits": b"port = " + b"9" * N,
    "infinite": b'{"schema_version": 1e999, "a": NaN, "b": -Infinity}',
    "surrogates": b'{"\\ud800": "\\udfff", "a": ["\\udc80"]}',
    "raw surrogates": b'{"a": "\xed\xa0\x80"}',
    "twice": b'{"a": 1, "a": 2}\na = 1\na = 2\n',
    "null": b"null",
    "list": b"[]",
    "number": b"1",
    "text": b'"x"',
    "list of lists": b"[[], {}, null, 1, true]",
    "a long line": b"x" * (8 << 20),
    "many lines": b"{}\n" * (2 << 20),
    "many words": b"llama-server " * 20_000,
    "backslashes": b"\\" * N,
    "quotes": b'"' * N,
    "continued": b"llama-server \\\n" * 10_000,
    "substitutions": b"$(" * N,
    "braces": b"${A:-" * 20_000,
    "brackets": b"[Service]\nExecStart=" + b"(" * N,
    "control": "\n".join(ATTACKS).encode("utf-8", "surrogateescape"),
    "markup": b'{"a": "[/foo] [b]x[/b] [@click=app.quit]x[/]"}\n[/foo]\n',
    "carriage returns": b"\r" * N,
}  # fmt: skip
"""``dev-tty`` is no terminal here, but a device that a reader must not open."""


@dataclass(frozen=True)
class Reader:
    """Where a text stands below the folder of the test, and who reads it."""

    place: str
    verbs: tuple[tuple[str, ...], ...]
    only: tuple[str, ...] = ()
    """The only contents that can be in this place; empty: all of them."""
    valid: Callable[[Path], object] | None = field(default=None, repr=False)


def _import(suffix: str) -> Reader:
    return Reader(f"files/launch{suffix}", (("import", "{path}", "--print"),))


RUN = "state/gpubox/runs/{run}"
READERS: dict[str, Reader] = {
    "config": Reader("config/gpubox/config.toml", (("ls",), ("status",), ("engines", "use", "fake"), (SCREEN,))),
    "profile": Reader(
        "config/gpubox/profiles/bad.toml",
        (("ls",), ("show", "bad"), ("fit", "bad"), ("edit", "bad", "--set", "port=1", "--print"), ("diff", "bad", "good"),
         ("export", "bad", "--as", "sh"), ("start", "bad"), (SCREEN,)),
    ),
    "api key": Reader("config/gpubox/api-key", (("status",), ("show", "good"), ("doctor",))),
    "client keys": Reader("config/gpubox/client-keys.json", (("keys", "list"), ("keys", "add", "x"), ("connect",))),
    "state": Reader(
        "state/gpubox/servers/main.json",
        (("status",), ("ps",), ("logs", "-n", "1"), ("stop",), ("history",), ("status", "--json"), (SCREEN,)),
    ),
    "log": Reader("state/gpubox/logs/main.log", (("logs", "-n", "5"), ("requests",), ("status",), (SCREEN,))),
    "failed log": Reader("state/gpubox/logs/main.log.failed", (("logs", "--failed"), (SCREEN,))),
    "launch record": Reader("state/gpubox/logs/main.log.launch", (("history",), ("requests",))),
    "trial": Reader("state/gpubox/trial.json", (("status",), ("try",), (SCREEN,))),
    "dismissed": Reader("state/gpubox/dismissed-advice.json", (("advice", "good"),)),
    "chat": Reader(
        "state/gpubox/chats/odd.jsonl",
        (("chat", "ls"), ("chat", "show", "odd"), ("chat", "search", "x"), ("chat", "branch", "odd", "new"), (SCREEN,)),
    ),
    "run": Reader(f"{RUN}/run.json", (("bench", "ls"), ("bench", "show"), ("bench", "leaderboard"), (SCREEN,))),
    "items": Reader(f"{RUN}/items.json", (("bench", "ls"), ("bench", "show"), ("bench", "rescore"))),
    "results": Reader(f"{RUN}/results.jsonl", (("bench", "ls"), ("bench", "show"), ("bench", "export", "last", "--csv"))),
    "raw": Reader(f"{RUN}/raw.jsonl", (("bench", "rescore"), ("bench", "show"))),
    "summary": Reader(f"{RUN}/summary.json", (("bench", "ls"), ("bench", "leaderboard"))),
    "recording": Reader("files/recording.jsonl", ((SCREEN, "{path}"),)),
    "history": Reader("state/gpubox/history.sqlite", (("history",), ("history", "--requests"), ("requests",), (SCREEN,))),
    "gateway record": Reader("state/gpubox/gateway/gateway.json", (("clients",), ("serve", "--stop"), ("status",))),
    "ledger": Reader("state/gpubox/gateway/ledger/2026-11-20.jsonl", (("clients",), ("clients", "--requests"))),
    "model": Reader("models/odd.gguf", (("find", "", "--disk"), ("fit", "odd"), ("show", "odd"), ("import", "{path}", "--print"))),
    "ollama": Reader(
        "home/.ollama/models/manifests/registry.ollama.ai/library/m/latest", (("find", "", "--disk"),)
    ),
    "engine's help": Reader("files/help", (("engines",), ("ls",), ("show", "good"), ("start", "good"))),
    "server": Reader("files/served", (("status", "--url", "{url}"), ("chat", "-p", "hi", "--url", "{url}"), ("ps",))),
    "hub": Reader("files/served", (("find", "word"),)),
    **{f"import {suffix}": _import(suffix) for suffix in (
        ".sh", ".bat", ".ps1", ".service", ".container", ".yaml", ".ini", ".json", ".kcpps", ".args", ".modelfile", "",
    )},
}  # fmt: skip
CASES = [(reader, name) for reader in READERS for name in (*CONTENTS, *ODD_FILES)]


class Served(BaseHTTPRequestHandler):
    """Answers everything with the bytes of one file."""

    server: Any

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = self.server.body
        kind = "text/event-stream" if self.command == "POST" else "application/json"
        body = b"data: " + body.replace(b"\n", b"\ndata: ") + b"\n\n" if self.command == "POST" else body
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        pass


class Box:
    """The child that runs the verbs, and the folders they see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.reader_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT,
        )  # fmt: skip
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Served)
        self.http.daemon_threads = True
        threading.Thread(target=lambda: self.http.serve_forever(0.02), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.run_name = self.furnish(folder / "template")

    @staticmethod
    def env_of(folder: Path) -> dict[str, str]:
        return {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "STATE", "CACHE", "DATA")} | {
            "HOME": str(folder / "home"), "GPUBOX_WATCHER": "0", "COLUMNS": "100"
        }  # fmt: skip

    def furnish(self, root: Path) -> str:
        """The world of each test: an engine, models, profiles, a run. Returns the run's name."""
        paths = Paths(*(root / name / "gpubox" for name in ("config", "state", "cache")))
        for folder in ("home", "files", "models", "config/gpubox/profiles", "state/gpubox"):
            (root / folder).mkdir(parents=True)
        run_ = speed_run(paths)
        with sqlite3.connect(root / "empty"):
            pass
        return run_.folder.name

    def world(self, name: str) -> Path:
        """A fresh copy."""
        root = self.folder / name
        shutil.copytree(self.folder / "template", root)
        engine = root / "llama-server"
        help_text = ROOT / "gpubox/engines/embedded_help.txt"
        engine.write_text(
            f'#!/bin/sh\ncase "$*" in\n  *--help) if [ -f "{root}/files/help" ]; then head -c 20000000 "{root}/files/help"; '
            f'else cat "{help_text}"; fi ;;\n  *--version) echo "version: 1 (build 2)" >&2 ;;\n  *) exit 1 ;;\nesac\n'
        )
        engine.chmod(0o755)
        gguf = struct.pack("<4sIQQ", b"GGUF", 3, 0, 0)
        (root / "models/tiny.gguf").write_bytes(gguf)
        (root / "config/gpubox/config.toml").write_text(
            f'default-engine = "fake"\nmodel-dirs = ["{root}/models"]\n[engines]\nfake = "{engine}"\n'
        )
        for profile, model in (("good", "tiny"), ("odd", "odd")):
            (root / f"config/gpubox/profiles/{profile}.toml").write_text(f'model = "{root}/models/{model}.gguf"\n')
        return root

    def run(self, root: Path, words: list[str], **more: str) -> dict[str, Any]:
        """What one verb did."""
        request = {"env": self.env_of(root) | more, "words": words, "seconds": WALL_SECONDS}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(20)
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    box = Box(tmp_path_factory.mktemp("box"))
    yield box
    box.close()


def faults(box: Box, root: Path, reader: Reader, path: Path) -> list[str]:
    """What a reader did wrong: a sentence each."""
    wrong = []
    for verb in reader.verbs:
        words = [word.format(path=path, url=box.url) for word in verb]
        more = {"HF_ENDPOINT": box.url} if verb[0] == "find" and "--disk" not in verb else {}
        done = box.run(root, words, **more)
        output, name = done["output"], " ".join(verb)
        if not done["ended"]:
            wrong.append(f"{name}: it never ended")
        elif "Traceback" in output or "internal error" in output or done["code"] not in (0, 1, 2, 3, 4, 5):
            wrong.append(f"{name}: {done['code']} {output[-1500:]}")
        elif done["code"] and not output.strip():
            wrong.append(f"{name}: it says nothing ({done['code']})")
        if done["cpu"] > CPU_SECONDS:
            wrong.append(f"{name}: {done['cpu']:.1f} s")
        if done["memory"] > MEMORY:
            wrong.append(f"{name}: {done['memory'] >> 20} MiB")
        if max(map(len, output.split("\n"))) > 50_000:
            wrong.append(f"{name}: a line of {max(map(len, output.split(chr(10))))} characters")
    return wrong


@pytest.mark.parametrize(("name", "content"), sampled(CASES, share=0.006))
def test_no_content_ends_a_reader(box: Box, name: str, content: str, tmp_path: Path) -> None:
    reader = READERS[name]
    root = box.world(f"{name} {content}".replace("/", "_"))
    path = root / reader.place.format(run=box.run_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.unlink()
    if content in CONTENTS:
        path.write_bytes(CONTENTS[content])
    else:
        ODD_FILES[content](path)
    if path.name == "client-keys.json" and path.is_file():
        path.chmod(0o600)
    box.http.body = CONTENTS.get(content, b"")  # type: ignore[attr-defined]
    try:
        assert faults(box, root, reader, path) == []
    finally:
        shutil.rmtree(root, ignore_errors=True)
