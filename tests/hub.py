"""A Hugging Face Hub on loopback for tests: it serves models of any size by range, and misbehaves on request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.gguf_bytes import header, pair, tensor

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GB = 1_000_000_000


@dataclass
class Stored:
    """A file of the hub: its first bytes, and zeros up to its size."""

    head: bytes
    size: int
    sha256: str = ""
    listed_size: int | None = None
    """What the list of files says, if that is another size."""

    @classmethod
    def of(cls, data: bytes) -> Stored:
        return cls(data, len(data), hashlib.sha256(data).hexdigest())

    def read(self, start: int, end: int) -> bytes:
        part = self.head[start:end]
        return part + bytes(end - start - len(part))


@dataclass
class Hub:
    """What the hub holds and does. ``sent`` counts the bytes of files, ``paths`` what was asked for."""

    url: str = ""
    repositories: dict[str, dict[str, Stored]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    """Part of a path -> HTTP status instead of an answer."""
    busy: list[int] = field(default_factory=list)
    """Statuses of the next answers; each is used once."""
    retry_after: str = "7"
    gated: str = ""
    """Part of the paths of a repository whose owner must grant access."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    """Part of a path -> body instead of the answer."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes the next answers with a file break off; each is used once."""
    redirects: dict[str, str] = field(default_factory=dict)
    """Part of a path -> where it leads, as ``Location``."""
    ranges: bool = True
    sent: int = 0
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gate: threading.Event | None = None
    """Without it set, the second half of a file is not sent."""

    def model_info(self, name: str) -> dict[str, Any]:
        siblings = [
            {
                "rfilename": path,
                "size": file.size if file.listed_size is None else file.listed_size,
                **({"lfs": {"sha256": file.sha256, "size": file.size}} if file.sha256 else {}),
            }
            for path, file in self.repositories[name].items()
        ]
        return {
            "id": name, "sha": COMMIT, "downloads": 1234, "gated": False, "lastModified": "2026-11-20T10:00:00.000Z",
            "siblings": siblings,
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        path = unquote(parts.path)
        hub.paths.append(path)
        hub.headers.append(dict(self.headers))
        if hub.gated and hub.gated in path:
            return self.reply(403, b"{}", X_Error_Code="GatedRepo")
        for part, status in hub.statuses.items():
            if part in path:
                return self.reply(status, b"{}", Retry_After=hub.retry_after)
        if hub.busy:
            return self.reply(hub.busy.pop(0), b"{}", Retry_After=hub.retry_after)
        for part, body in hub.bodies.items():
            if part in path:
                return self.reply(200, body)
        for part, location in hub.redirects.items():
            if part in path:
                return self.reply(302, b"", Location=location)
        if path == "/api/models":
            words = parse_qs(parts.query).get("search", [""])[0].lower().split()
            names = [name for name in hub.repositories if all(word in name.lower() for word in words)]
            return self.reply(200, json.dumps([{"id": name} for name in names]).encode())
        name = path.removeprefix("/api/models/")
        if path.startswith("/api/models/") and name in hub.repositories:
            return self.reply(200, json.dumps(hub.model_info(name)).encode())
        repository, _, rest = path.removeprefix("/cdn").removeprefix("/").partition("/resolve/")
        file = hub.repositories.get(repository, {}).get(rest.partition("/")[2])
        if file is None:
            return self.reply(401, b"{}", X_Error_Code="RepoNotFound")
        return self.send_file(file)

    def send_file(self, file: Stored) -> None:
        start, end, status = 0, file.size, 200
        if (wanted := self.headers.get("Range")) and self.hub.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(int(last) + 1 if last else file.size, file.size), 206
            if start >= file.size:
                return self.reply(416, b"")
        self.send_response(status)
        self.send_header("Content-Length", str(end - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{file.size}")
        self.end_headers()
        stop = min(end, start + self.hub.cuts.pop(0)) if self.hub.cuts else end
        middle = (start + stop) // 2
        for begin in range(start, stop, 1 << 16):
            if self.hub.gate and begin >= middle:
                self.hub.gate.wait(60)
            data = file.read(begin, min(begin + (1 << 16), stop))
            try:
                self.wfile.write(data)
            except OSError:
                self.close_connection = True
                return None
            self.hub.sent += len(data)
        if stop < end:
            self.close_connection = True
        return None


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers until the end of the block. HF_ENDPOINT is the caller's to set."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that leaves is no error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        if hub.gate:
            hub.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


LAYERS, EMBEDDING, EXPERTS = 48, 2048, 128
"""Of the models below: a mixture of experts of the size of Qwen3-30B-A3B."""
_Q4_K, _F32 = 12, 0
METADATA: dict[str, Any] = {
    "general.architecture": "qwen3moe", "general.name": "Large MoE", "qwen3moe.block_count": LAYERS,
    "qwen3moe.context_length": 262144, "qwen3moe.embedding_length": EMBEDDING,
    "qwen3moe.attention.head_count": 32, "qwen3moe.attention.head_count_kv": 4,
    "qwen3moe.attention.key_length": 128, "qwen3moe.attention.value_length": 128,
    "qwen3moe.expert_count": EXPERTS, "qwen3moe.expert_used_count": 8,
}  # fmt: skip


def tensor_table() -> list[tuple[str, list[int], int]]:
    """Name, dimensions and type of each tensor of a mixture of experts, about 17 GB in Q4_K."""
    rows: list[tuple[str, list[int], int]] = [
        ("token_embd.weight", [EMBEDDING, 151936], _Q4_K), ("output.weight", [EMBEDDING, 151936], _Q4_K),
        ("output_norm.weight", [EMBEDDING], _F32),
    ]  # fmt: skip
    for layer in range(LAYERS):
        rows += [
            (f"blk.{layer}.attn_norm.weight", [EMBEDDING], _F32),
            (f"blk.{layer}.attn_q.weight", [EMBEDDING, 4096], _Q4_K),
            (f"blk.{layer}.attn_k.weight", [EMBEDDING, 512], _Q4_K),
            (f"blk.{layer}.attn_v.weight", [EMBEDDING, 512], _Q4_K),
            (f"blk.{layer}.attn_output.weight", [4096, EMBEDDING], _Q4_K),
            (f"blk.{layer}.ffn_norm.weight", [EMBEDDING], _F32),
            (f"blk.{layer}.ffn_gate_inp.weight", [EMBEDDING, EXPERTS], _F32),
            (f"blk.{layer}.ffn_gate_exps.weight", [EMBEDDING, 768, EXPERTS], _Q4_K),
            (f"blk.{layer}.ffn_up_exps.weight", [EMBEDDING, 768, EXPERTS], _Q4_K),
            (f"blk.{layer}.ffn_down_exps.weight", [768, EMBEDDING, EXPERTS], _Q4_K),
        ]
    return rows


def _bytes_of(dimensions: Sequence[int], kind: int) -> int:
    elements = 1
    for dimension in dimensions:
        elements *= dimension
    return elements * 4 if kind == _F32 else elements // 256 * 144


def shard(rows: Sequence[tuple[str, list[int], int]], number: int, count: int, vocabulary: int = 0) -> Stored:
    """One shard of a model; the first has the metadata and a vocabulary of so many words."""
    split = {"split.no": number, "split.count": count} if count > 1 else {}
    values: dict[str, Any] = {**(METADATA if number == 0 else {}), **split}
    if number == 0 and vocabulary:
        values["tokenizer.ggml.tokens"] = [f"word{index:06d}" for index in range(vocabulary)]
        values["tokenizer.ggml.merges"] = [f"wor d{index:06d}" for index in range(vocabulary)]
    tensors, offset = [], 0
    for name, dimensions, kind in rows:
        tensors.append(tensor(name, dimensions, kind, offset))
        offset += -(-_bytes_of(dimensions, kind) // 32) * 32
    head = header([pair(key, value) for key, value in values.items()], tensors)
    head += bytes(-len(head) % 32)
    return Stored(head, len(head) + offset, hashlib.sha256(head).hexdigest())


def split_model(stem: str, count: int = 4, vocabulary: int = 0) -> dict[str, Stored]:
    """The files of a model in ``count`` shards; in one file without the suffix if ``count`` is 1."""
    return {name: replace(file) for name, file in _split_model(stem, count, vocabulary).items()}


@cache
def _split_model(stem: str, count: int, vocabulary: int) -> dict[str, Stored]:
    rows = tensor_table()
    size = -(-len(rows) // count)
    if count == 1:
        return {f"{stem}.gguf": shard(rows, 0, 1, vocabulary)}
    return {
        f"{stem}-{number + 1:05d}-of-{count:05d}.gguf": shard(
            rows[number * size : (number + 1) * size], number, count, vocabulary
        )
        for number in range(count)
    }
