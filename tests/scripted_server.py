"""A llama-server that plays a script: real HTTP on a loopback port, the wire format recorded from b11434.

It stands where a real model cannot be made to misbehave on demand. Each chat completion takes the next Play; the
requests' bodies are kept. What the client closes early is seen (``left``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

NATIVE = {"supports_tools": True, "supports_tool_calls": True, "supports_parallel_tool_calls": True}
FENCED = {"supports_tools": False, "supports_tool_calls": False, "supports_system_role": True}


@dataclass(slots=True)
class Play:
    """One answer: a status with a body, or lines of a stream and how it ends."""

    lines: list[bytes] = field(default_factory=list)
    status: int = 200
    body: dict[str, Any] | bytes = field(default_factory=dict)
    retry_after: str = ""
    hang: bool = False
    """After the lines nothing comes, until the client leaves."""
    drop: bool = False
    """After the lines the connection is cut."""
    raw: list[bytes] = field(default_factory=list)
    """The whole answer as bytes on the wire, instead of all else; then the connection is closed."""


def chunk(delta: dict[str, Any] | None, **more: Any) -> bytes:
    """One ``data:`` line as llama-server writes it."""
    choices = [] if delta is None else [{"finish_reason": more.pop("finish", None), "index": 0, "delta": delta}]
    values = {"choices": choices, "created": 1795294603, "id": "chatcmpl-x", "model": "m", **more}
    return b"data: " + json.dumps(values).encode() + b"\n\n"


def timings(prompt: int, cached: int, generated: int) -> dict[str, Any]:
    """``timings`` of so many tokens, 1 ms each."""
    return {"cache_n": cached, "prompt_n": prompt, "prompt_ms": prompt * 0.01, "prompt_per_second": 1e5} | {
        "predicted_n": generated,
        "predicted_ms": generated * 0.01,
        "predicted_per_second": 1e5,
    }


def says(
    text: str | Sequence[str] = (),
    *,
    reasoning: str | Sequence[str] = (),
    calls: Sequence[dict[str, Any]] = (),
    finish: str = "stop",
    prompt: int = 20,
    cached: int = 0,
    **how: Any,
) -> Play:
    """A whole answer in its pieces: thinking, text, tool calls. ``how``: Play's other fields."""
    lines = [
        chunk({"role": "assistant", "content": None}, prompt_progress=_progress(prompt, cached, 0)),
        chunk({"role": "assistant", "content": None}, prompt_progress=_progress(prompt, cached, prompt)),
    ]
    deltas: list[dict[str, Any]] = [{"reasoning_content": piece} for piece in _pieces(reasoning)]
    deltas += [{"content": piece} for piece in _pieces(text)]
    deltas += [{"tool_calls": [call]} for call in calls]
    for count, delta in enumerate(deltas, 1):
        lines.append(chunk(delta, timings=timings(prompt, cached, count)))
    if not (how.get("hang") or how.get("drop")):
        usage = {"completion_tokens": len(deltas), "prompt_tokens": prompt + cached, "total_tokens": 0}
        lines += [
            chunk({}, finish=finish),
            chunk(None, usage=usage, timings=timings(prompt, cached, len(deltas))),
            b"data: [DONE]\n\n",
        ]
    return Play(lines, **how)


def call(name: str, arguments: str, index: int = 0, identity: str = "") -> dict[str, Any]:
    """One native tool call, its arguments as the model wrote them."""
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": identity or f"id{index}", "type": "function", "function": function}


def runs(code: str, index: int = 0, identity: str = "") -> dict[str, Any]:
    """A good native call of run."""
    return call("run", json.dumps({"code": code}), index, identity)


def refuses(status: int, message: str, **more: Any) -> Play:
    """An error as llama-server answers it."""
    return Play(status=status, body={"error": {"code": status, "message": message, "type": "server_error", **more}})


def _pieces(text: str | Sequence[str]) -> Iterable[str]:
    return [text[i : i + 7] for i in range(0, len(text), 7)] if isinstance(text, str) else text


def _progress(prompt: int, cached: int, done: int) -> dict[str, int]:
    return {"total": prompt + cached, "cache": cached, "processed": cached + done, "time_ms": 1}


class ScriptedServer:
    """Plays one Play for each chat completion."""

    def __init__(self, *plays: Play, caps: dict[str, bool] | None = None, context: int = 4096) -> None:
        self.plays = list(plays)
        self.bodies: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        """A client closed its stream before the end."""
        self.streaming = asyncio.Event()
        """The lines of an answer that hangs are out."""
        self.url = ""
        self.stale = False
        """Connections are kept after a stream, and closed when something is sent on them."""
        self._props = {
            "chat_template_caps": NATIVE if caps is None else caps,
            "default_generation_settings": {"n_ctx": context},
            "model_alias": "m",
            "build_info": "b11434-abc",
        }

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(s.split(":")[1]) for s in head.lower().splitlines() if s.startswith("content-len")), 0)
            body = await reader.readexactly(length)
            if head.startswith("GET /health"):
                await _answer(writer, 200, {"status": "ok"})
            elif head.startswith("GET /props"):
                await _answer(writer, 200, self._props)
            elif head.startswith("GET "):
                await _answer(writer, 404, {})
            elif head.startswith("POST /tokenize"):
                await _answer(writer, 200, {"tokens": list(json.loads(body)["content"].encode())})
            else:
                self.bodies.append(json.loads(body))
                await self._play(reader, writer)
                if self.stale:
                    await reader.read(1)
        writer.close()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        play = self.plays.pop(0) if self.plays else refuses(500, "the script is over")
        if play.raw:
            for piece in play.raw:
                writer.write(piece)
                await writer.drain()
            return
        if play.status != 200:
            await _answer(
                writer, play.status, play.body, f"Retry-After: {play.retry_after}\r\n" * bool(play.retry_after)
            )
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for line in play.lines:
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                await writer.drain()
            if play.hang:
                self.streaming.set()
                await reader.read()  # ends when the client closes
        finally:
            if play.hang:
                self.left.set()
        if not (play.drop or play.hang):
            writer.write(b"0\r\n\r\n")
            await writer.drain()


async def _answer(writer: asyncio.StreamWriter, status: int, values: Any, headers: str = "") -> None:
    body = values if isinstance(values, bytes) else json.dumps(values).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
