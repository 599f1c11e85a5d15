"""A llama-server that speaks at an exact pace, a process of its own: ``paced_server.py PORT [TOKENS_PER_SECOND]``.

Or with llama-server's own options, of which it reads ``--port``, ``--host``, ``--parallel`` and ``--log-file`` (a line
for each answer); then its pace is PACED_PACE, and PACED_LOAD_SECONDS pass before it listens. So many requests as it has
slots (64) are answered at once, and more wait in their order, as llama-server has it.

The bytes are those of b11434 (recorded): framing, headers, one chunk an event, the first token in one chunk with the
role. Each token's text is the CLOCK_MONOTONIC nanosecond at which it was written, the same clock in every process, so
a client knows how long the way took. A request may say ``pace`` (tokens/s), ``max_tokens``, ``stream``, ``user`` (a
name under which GET /seen counts it and its tokens), ``delay`` (seconds before the first token), ``die`` (cut after so
many tokens, ``dies``: only the first so many requests of its user), ``silent`` (never answered),
``prompt_tokens`` (so many it has).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

_SAME = (
    b'"created":1795361884,"id":"chatcmpl-4ObxrP4DH4taX4LUPdZXP1Z2VBhbc0PN","model":"SmolLM2-135M-Instruct.Q4_1.gguf",'
)
_SAME += b'"system_fingerprint":"b0-unknown","object":"chat.completion.chunk"'
_ROLE = b'{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],%b}' % _SAME
_TOKEN = b'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" %%d"}}],%b}' % _SAME
_FINISH = b'{"choices":[{"finish_reason":"length","index":0,"delta":{}}],%b}' % _SAME
_HEAD = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nX-Accel-Buffering: no\r\n"
_HEAD += b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
PROMPT_TOKENS = 32
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "model_alias": "paced"}


class PacedServer:
    """Counts what it is asked."""

    def __init__(self, pace: float, slots: int, log_file: str = "") -> None:
        self.pace, self.slots, self.log_file = pace, slots, log_file
        self.answers = 0
        self.free = asyncio.Semaphore(slots)
        self.busy = 0
        self.seen: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.running = 0
        self.most_running = 0
        """The most requests that were here at one time, those that wait for a slot among them."""
        self.tokens = 0
        self.tokens_of: Counter[str] = Counter()
        self.heads: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with as many requests as the other side likes."""
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                lines = head.lower().split("\r\n")
                length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
                body = await _chunks(reader) if "transfer-encoding: chunked" in lines else b""
                body = body or await reader.readexactly(length)
                self.heads = [*self.heads[-99:], head]
                if head.startswith("POST "):
                    await self._generate(head.split(" ")[1], _json(body), reader, writer)
                else:
                    await self._report(head.split(" ")[1].split("?")[0], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _report(self, path: str, writer: asyncio.StreamWriter) -> None:
        counters: dict[str, Any] = {"seen": self.seen, "finished": self.finished, "left": self.left}
        counters |= {"tokens": self.tokens_of, "running": self.running, "most_running": self.most_running}
        values: Any = {
            "/health": {"status": "ok"},
            "/seen": {**counters, "heads": self.heads},
            "/v1/models": {"object": "list", "data": [{"id": "paced", "object": "model"}]},
            "/props": {**PROPS, "total_slots": self.slots},
            "/slots": [{"id": slot, "is_processing": slot < self.busy} for slot in range(self.slots)],
        }.get(path, {})
        text = json.dumps(values).encode()
        if path == "/metrics":
            names = (b"tokens_predicted_total", b"requests_processing", b"requests_deferred")
            sums = (self.tokens, self.busy, self.running - self.busy)
            text = b"".join(b"llamacpp:%b %d\n" % pair for pair in zip(names, sums, strict=True))
        await _answer(writer, text)

    async def _generate(
        self, path: str, asked: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        name = str(asked.get("user", ""))
        self.seen[name] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        leaving = asyncio.ensure_future(_gone(reader))
        speaking = asyncio.ensure_future(self._take_slot(path, asked, writer))
        try:
            await asyncio.wait({leaving, speaking}, return_when=asyncio.FIRST_COMPLETED)
            if speaking.done() and not speaking.exception():
                self.finished[name] += 1
            else:
                self.left[name] += 1
                raise ConnectionError
        finally:
            self.running -= 1
            for task in (leaving, speaking):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task

    async def _take_slot(self, path: str, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        async with self.free:
            self.busy += 1
            try:
                await self._speak(path, asked, writer)
            finally:
                self.busy -= 1

    async def _speak(self, path: str, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        name, count = str(asked.get("user", "")), int(asked.get("max_tokens", 16))
        pace, prompt = float(asked.get("pace", self.pace)), int(asked.get("prompt_tokens", PROMPT_TOKENS))
        if asked.get("silent"):
            await asyncio.get_running_loop().create_future()
        if asked.get("delay"):
            await asyncio.sleep(float(asked["delay"]))
        cut = self.seen[name] <= asked.get("dies", 1_000_000)
        if not asked.get("stream"):
            if cut and "die" in asked:
                raise ConnectionError
            await asyncio.sleep(0 if path == "/completion" else (count - 1) / pace)
            self._count(name, count)
            await _answer(writer, b'{"content":"x"}' if path == "/completion" else _whole(count, prompt))
            self._log(prompt, count)
            return
        began = time.monotonic()
        for index in range(count):
            if (wait := began + index / pace - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if cut and index == asked.get("die"):
                raise ConnectionError
            event = b"data: %b\n\n" % (_TOKEN % time.monotonic_ns())
            data = event if index else b"data: %b\n\n%b" % (_ROLE, event)
            writer.write((b"" if index else _HEAD) + _chunk(data))
            self._count(name, 1)
            await writer.drain()
        usage = json.dumps({"choices": [], **_figures(count, prompt)}).encode()
        writer.write(_chunk(b"data: %b\n\ndata: %b\n\n" % (_FINISH, usage)) + _chunk(b"data: [DONE]\n\n") + _chunk(b""))
        await writer.drain()
        self._log(prompt, count)

    def _log(self, prompt: int, count: int) -> None:
        if not self.log_file:
            return
        self.answers += 1
        line = f"print_timing: id 0 | task {self.answers} |"
        with Path(self.log_file).open("a") as file:
            file.write(f"{line} prompt eval time = 1.0 ms / {prompt} tokens\n")
            file.write(f"{line}         eval time = 1.0 ms / {count} tokens\n")

    def _count(self, name: str, tokens: int) -> None:
        self.tokens += tokens
        self.tokens_of[name] += tokens


def _figures(count: int, prompt: int) -> dict[str, Any]:
    usage = {"completion_tokens": count, "prompt_tokens": prompt, "total_tokens": count + prompt}
    timings = {"cache_n": 0, "prompt_n": prompt, "prompt_ms": 1.0, "predicted_n": count, "predicted_ms": 1.0}
    return {"usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}}, "timings": timings}


def _whole(count: int, prompt: int) -> bytes:
    message = {"role": "assistant", "content": " word" * count}
    return json.dumps({"choices": [{"index": 0, "message": message}], **_figures(count, prompt)}).encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _json(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return body


async def _gone(reader: asyncio.StreamReader) -> None:
    """Returns when the client has closed. What it sends before its answer is there is kept for the next request."""
    while not reader.at_eof():
        await asyncio.sleep(0.1)


async def _answer(writer: asyncio.StreamWriter, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n"
    writer.write(head + b"Content-Length: %d\r\nKeep-Alive: timeout=5, max=100\r\n\r\n%b" % (len(body), body))
    await writer.drain()


def _option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


async def main() -> None:
    as_engine = "--port" in sys.argv
    port = int(_option("--port", sys.argv[1]))
    pace = os.environ.get("PACED_PACE", "100") if as_engine else [*sys.argv, "100"][2]
    paced = PacedServer(float(pace), max(1, int(_option("--parallel", "64"))), _option("--log-file", ""))
    await asyncio.sleep(float(os.environ.get("PACED_LOAD_SECONDS", "0")))
    server = await asyncio.start_server(paced.serve, _option("--host", "127.0.0.1"), port, backlog=512, limit=2**20)
    print("listening", flush=True)
    if as_engine:
        print(f"0.00.100.000 I srv  llama_server: listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
