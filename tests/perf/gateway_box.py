"""What the scripts about the gateway share: its settings, and chat completions whose answers are always the same."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from box import own_folders

from tests.gateway_process import empty_model, paced_engine
from tests.ports import free_port
from tests.raw_http import Reply, ask


def gateway_config(folder: Path, engines: Mapping[str, object] | None = None, **values: object) -> None:
    """Adds the table [gateway] to config.toml, and engines."""
    path = folder / "config.toml"
    config = tomllib.loads(path.read_text())
    config.setdefault("engines", {}).update({name: str(program) for name, program in (engines or {}).items()})
    config["gateway"] = {name.replace("_", "-"): value for name, value in values.items()}
    path.write_text(tomli_w.dumps(config))


def chat(port: int, model: str, prompt: str, tokens: int, *, stream: bool, **more: Any) -> Reply:
    """One chat completion at temperature 0; ``more``: fields of the body, or arguments of ``ask``."""
    asked = {key: more.pop(key) for key in ("leave", "leave_seconds", "timeout", "headers") if key in more}
    return ask(port, "/v1/chat/completions", chat_body(model, prompt, tokens, stream=stream, **more), **asked)


def chat_body(model: str, prompt: str, tokens: int, *, stream: bool, **more: Any) -> dict[str, Any]:
    """The body of a chat completion whose answer is always the same."""
    fixed = {"temperature": 0, "seed": 1, "cache_prompt": False}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "stream": stream} | fixed | options | more


@contextmanager
def counting_engines(llama_server: str, names: Iterable[str]) -> Iterator[Path]:
    """For each profile an engine of its own, which also logs to a file of its own: the servers' side of the count.

    Returns the folder with the scripts ``NAME`` and the logs ``NAME@PID.log``.
    """
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            script = Path(root) / name
            script.write_text(f'#!/bin/sh\nexec "{llama_server}" "$@" --log-file "{root}/{name}@$$.log"\n')
            script.chmod(0o755)
        yield Path(root)


@contextmanager
def chosen_engines(
    arguments: argparse.Namespace, names: Sequence[str]
) -> Iterator[tuple[Path, Path, dict[str, Any], dict[str, str]]]:
    """For each name an engine that counts: of the real server that the command line names, or of the synthetic one.

    Returns the folder of config.toml, that of the engines, the flags of the one device, and the models by kind.
    """
    with contextlib.ExitStack() as stack:
        engine, device = arguments.engine, dict[str, Any]()
        folder = stack.enter_context(own_folders(engine or "/bin/false"))
        models = {"dense": arguments.dense, "hybrid": arguments.hybrid}
        if engine:
            device = stack.enter_context(one_device(engine))
        else:
            engine, models = str(paced_engine(folder)), dict.fromkeys(models, empty_model(folder))
            os.environ |= {"PACED_PACE": "50", "PACED_LOAD_SECONDS": "0.3"}
        engines = stack.enter_context(counting_engines(engine, names))
        yield folder, engines, device, models


_DONE = re.compile(
    r"print_timing: id +(\d+) \| task (\d+) \| (prompt eval|      +eval) time = +[\d.]+ ms / +(\d+) tokens"
)


def generations(folder: Path, name: str) -> Counter[tuple[int, int]]:
    """How often the servers of one profile answered with so many ``(prompt tokens, generated tokens)``."""
    counts: Counter[tuple[int, int]] = Counter()
    for log in folder.glob(f"{name}@*.log"):
        prompts: dict[str, int] = {}
        for line in log.read_text(errors="replace").splitlines():
            if matched := _DONE.search(line):
                slot, task, kind, tokens = matched.groups()
                if kind.startswith("prompt"):
                    prompts[slot + task] = int(tokens)
                else:
                    counts[prompts.get(slot + task, 0), int(tokens)] += 1
    return counts


_CHANGING = (
    (re.compile(rb'"id":"[^"]*"'), b'"id":""'),
    (re.compile(rb'"created":\d+'), b'"created":0'),
    (re.compile(rb'"timings":\{[^}]*\}'), b'"timings":{}'),
    (re.compile(rb"^:[^\n]*\n\n?", re.MULTILINE), b""),
)
"""What differs between two direct answers to one request, and the comments that keep a waiting client."""


def masked(body: bytes) -> bytes:
    """An answer without what differs between two direct ones."""
    for pattern, replacement in _CHANGING:
        body = pattern.sub(replacement, body)
    return body


def base_port(status: dict[str, Any], profile: str) -> int:
    """The port of a profile's server, from the gateway's status; 0: it has none now."""
    urls = [values["base_url"] for values in status["profiles"] if values["name"] == profile]
    return int(urls[0].rsplit(":", 1)[1]) if urls and urls[0] else 0


def launch_profile(folder: Path, name: str, model: str, engine: str, flags: dict[str, Any], **more: object) -> None:
    """Writes a profile with an engine of its own, which config.toml must name."""
    values = {"model": model, "engine": engine, "flags": flags, **more}
    (folder / "profiles" / f"{name}.toml").write_text(tomli_w.dumps(values))


def counters(port: int) -> dict[str, int]:
    """A llama-server's own sums, from /metrics."""
    text = ask(port, "/metrics").body.decode()
    return {name: int(float(value)) for name, value in re.findall(r"^llamacpp:(\w+) ([\d.e+]+)$", text, re.MULTILINE)}


def llama_servers() -> dict[int, str]:
    """The llama-servers of this script's own folders by pid, each with its port. Dry runs are left out."""
    own = f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}\0".encode()
    servers = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, StopIteration):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            is_server = any(word.endswith((b"llama-server", b"paced_server.py")) for word in words[:2])
            if own in (folder / "environ").read_bytes() and is_server and b"--port" in words:
                servers[int(folder.name)] = words[words.index(b"--port") + 1].decode()
    return servers


def operations() -> list[int]:
    """The processes of the gateway in this script's own folders that start and stop servers."""
    own = f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}\0".encode()
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if b"gpubox.gateway.operation" in (folder / "cmdline").read_bytes():
                found += [int(folder.name)] * (own in (folder / "environ").read_bytes())
    return found


def ledger_lines() -> list[dict[str, Any]]:
    """All lines of the ledger, as JSON; one that is broken has only the key ``broken``."""
    lines: list[dict[str, Any]] = []
    for path in sorted((Path(os.environ["XDG_STATE_HOME"]) / "gpubox/gateway/ledger").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"broken": line})
    return lines


@contextmanager
def one_device(llama_server: str) -> Iterator[dict[str, Any]]:
    """A device that serves one server at a time, as a card whose memory only one model fits in; the flags that use it.

    It is the ggml-rpc-server beside ``llama_server``, which dies of SIGPIPE with a client that is killed (b11434) and
    is started again here.
    """
    port, ended = free_port(), threading.Event()
    words = [str(Path(llama_server).with_name("ggml-rpc-server")), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]

    def keep() -> None:
        while not ended.is_set():
            with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                while process.poll() is None and not ended.wait(0.05):
                    pass
                process.kill()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield {"rpc": f"127.0.0.1:{port}", "n-gpu-layers": 99}
    finally:
        ended.set()
        thread.join()
