# ruff: noqa: E501 - a row of a table is one line
"""Whatever stands in a file, or comes from a server: each verb that reads it, and the screen, answer with a sentence.

A table: readers times contents. Each case runs in a process of its own (``reader_server``), with limits of CPU time and
memory. The quick run tries a few, the nightly run all.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.chat_log import TurnHeader
from gpubox.agent.events import Message, MessageAdded, TurnFinished, TurnTotals
from gpubox.agent.journal import ChatJournal
from gpubox.agent.tools import ToolCall
from gpubox.clock import utc_now
from gpubox.gateway.client_keys import ClientKeys
from gpubox.gateway.gateway_status import FinishedRequest
from gpubox.gateway.ledger import Ledger
from gpubox.hardware.process import ProcessIdentity
from gpubox.paths import Paths
from gpubox.server.state import InstanceState, Launch, Operation, RunningServer, save_state
from gpubox.telemetry.history.file import connect_writer
from tests.bench_runs import speed_run
from tests.hostile.reader_server import SCREEN
from tests.hostile_text import ATTACKS
from tests.sampling import sampled

CPU_SECONDS, WALL_SECONDS, MEMORY = 2.0, 30.0, 300 << 20
ROOT = Path(__file__).parent.parent.parent
RECORDING = ROOT / "assets" / "dashboard.jsonl"
Make = Callable[[Path], object]


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
    "unreadable": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0)),
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
    "client keys": Reader("config/gpubox/client-keys.json", (("clients",), ("clients", "add", "x"), ("connect",))),
    "state": Reader(
        "state/gpubox/servers/main.json",
        (("status",), ("status", "--all"), ("logs", "-n", "1"), ("stop",), ("history",), ("status", "--json"), (SCREEN,)),
    ),
    "log": Reader("state/gpubox/logs/main.log", (("logs", "-n", "5"), ("status",), (SCREEN,))),
    "failed log": Reader("state/gpubox/logs/main.log.failed", (("logs", "--failed"), (SCREEN,))),
    "launch record": Reader("state/gpubox/logs/main.log.launch", (("history",), ("history", "--requests"))),
    "trial": Reader("state/gpubox/trial.json", (("status",), ("try",), (SCREEN,))),
    "dismissed": Reader("state/gpubox/dismissed-advice.json", (("advice", "good"),)),
    "chat": Reader(
        "state/gpubox/chats/odd.jsonl",
        (("chat", "ls"), ("chat", "show", "odd"), ("chat", "search", "x"), ("chat", "branch", "odd", "new"), (SCREEN,)),
    ),
    "run": Reader(f"{RUN}/run.json", (("bench", "ls"), ("bench", "show"), ("bench", "show", "--as", "leaderboard"), (SCREEN,))),
    "items": Reader(f"{RUN}/items.jsonl", (("bench", "ls"), ("bench", "show"), ("bench", "resume", "--rescore"))),
    "results": Reader(f"{RUN}/results.jsonl", (("bench", "ls"), ("bench", "show"), ("bench", "show", "--as", "csv"))),
    "raw": Reader(f"{RUN}/raw.jsonl", (("bench", "resume", "--rescore"), ("bench", "show"))),
    "summary": Reader(f"{RUN}/summary.json", (("bench", "ls"), ("bench", "show", "--as", "leaderboard"))),
    "recording": Reader("files/recording.jsonl", ((SCREEN, "{path}"),)),
    "history": Reader("state/gpubox/history.sqlite", (("history",), ("history", "--requests"), (SCREEN,))),
    "gateway record": Reader("state/gpubox/gateway/gateway.json", (("clients",), ("serve", "--stop"), ("status",))),
    "ledger": Reader("state/gpubox/gateway/ledger/{day}.jsonl", (("clients",), ("clients", "--requests"))),
    "model": Reader("models/odd.gguf", (("find", "", "--disk"), ("fit", "odd"), ("show", "odd"), ("import", "{path}", "--print"))),
    "ollama": Reader(
        "home/.ollama/models/manifests/registry.ollama.ai/library/m/latest", (("find", "", "--disk"),)
    ),
    "engine's help": Reader("files/help", (("engines",), ("ls",), ("show", "good"), ("start", "good"))),
    "server": Reader("files/served", (("status", "--url", "{url}"), ("chat", "-p", "hi", "--url", "{url}"), ("status", "--all"))),
    "hub": Reader("files/served", (("find", "word"),)),
    **{f"import {suffix}": _import(suffix) for suffix in (
        ".sh", ".bat", ".ps1", ".service", ".container", ".yaml", ".ini", ".json", ".kcpps", ".modelfile", "",
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
        process = ProcessIdentity(2**22 + 1, 99, "boot")
        launch = Launch("good", ("/opt/llama-server", "--port", "8080"), "127.0.0.1", 8080, {}, model_path="/m/x.gguf")
        running = RunningServer(
            launch, "f00d", "2026-01-01T00:00:00.000Z", process, None, 3.25, ((0, 12),), (1, 1), True, (0,)
        )
        save_state(
            paths.instance_state("main"),
            InstanceState(running, Operation("switch", "good", "load", process, "x"), launch),
        )
        with contextlib.closing(ChatJournal(paths.chats / "odd.jsonl")) as journal:
            journal.add(TurnHeader("t1", "", "2026-01-01T00:00:00Z", "What is 2 + 2?", "good", "b1"))
            journal.add_event(MessageAdded(Message("assistant", "It is *4*.", "hm", (ToolCall("1", "f", {"x": [1]}),))))
            journal.add_event(TurnFinished(TurnTotals(), "answered", "It is 4."))
        Ledger(paths.ledger).add(
            FinishedRequest(
                utc_now(),
                "laptop",
                "good",
                "/v1/chat/completions",
                200,
                "done",
                stream=True,
                prompt_tokens=9,
                cached_tokens=4,
                generated_tokens=7,
                seconds=2.0,
                ttft_seconds=0.5,
            )
        )
        ClientKeys(paths).add("laptop")
        lines = RECORDING.read_bytes().split(b"\n")
        (root / "files/recording.jsonl").write_bytes(b"\n".join((*lines[:2], lines[-2], b"")))
        with contextlib.closing(connect_writer(paths.history)):
            pass
        return speed_run(paths).folder.name

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


HOSTILE_VALUES: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, 1e308, -1e308, 1e-300, "", "x" * N, "\ud800", "\udc80", "\0", *ATTACKS[:4], "[/foo]",
    [], {}, [[[]]], {"a": {"a": 1}}, "9" * 5000, "2026-99-99T00:00:00Z", "0001-01-01T00:00:00+14:00", "../../x", [None],
    ["x"] * 1000,
]  # fmt: skip
MUTATED = {
    "state": "state/gpubox/servers/main.json", "chat": "state/gpubox/chats/odd.jsonl", "run": f"{RUN}/run.json",
    "items": f"{RUN}/items.jsonl", "results": f"{RUN}/results.jsonl", "recording": "files/recording.jsonl",
    "ledger": "state/gpubox/gateway/ledger/*.jsonl", "client keys": "config/gpubox/client-keys.json",
}  # fmt: skip


def mutated(value: Any, dice: random.Random) -> Any:
    """``value`` with one thing in it replaced."""
    if isinstance(value, dict) and value and dice.random() < 0.95:
        key = dice.choice(list(value))
        return {**value, key: mutated(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        index = dice.randrange(len(value))
        return [*value[:index], mutated(value[index], dice), *value[index + 1 :]]
    return dice.choice(HOSTILE_VALUES)


@pytest.mark.parametrize(
    ("name", "seed"), sampled([(name, seed) for name in MUTATED for seed in range(25)], share=0.01)
)
def test_no_value_in_a_valid_file_ends_a_reader(box: Box, name: str, seed: int) -> None:
    root, dice = box.world(f"{name} {seed}"), random.Random(seed)
    (path,) = root.glob(MUTATED[name].format(run=box.run_name))
    lines = (
        path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text(encoding="utf-8")]
    )
    for _ in range(3):
        index = dice.randrange(len(lines))
        lines[index] = json.dumps(mutated(json.loads(lines[index]), dice))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        assert faults(box, root, READERS[name], path) == []
    finally:
        shutil.rmtree(root, ignore_errors=True)


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
        elif done["code"] and not output.strip() and verb[:2] != ("chat", "search"):  # which ends as grep does
            wrong.append(f"{name}: it says nothing ({done['code']})")
        if done["cpu"] > CPU_SECONDS:
            wrong.append(f"{name}: {done['cpu']:.1f} s")
        if done["memory"] > MEMORY:
            wrong.append(f"{name}: {done['memory'] >> 20} MiB")
        if verb[0] not in ("logs", "chat") and max(map(len, output.split("\n"))) > 50_000:
            wrong.append(f"{name}: a line of {max(map(len, output.split(chr(10))))} characters")
    return wrong


@pytest.mark.parametrize(("name", "content"), sampled(CASES, share=0.003))
def test_no_content_ends_a_reader(box: Box, name: str, content: str, tmp_path: Path) -> None:
    reader = READERS[name]
    root = box.world(f"{name} {content}".replace("/", "_"))
    path = root / reader.place.format(run=box.run_name, day=datetime.now().astimezone().date())
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
