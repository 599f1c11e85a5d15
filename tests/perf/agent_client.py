"""An agent-like client drives the server: does gpubox count what the client counts?

usage: agent_client.py MODEL.gguf [--engine LLAMA-SERVER] [--seconds 300]
Streams chat completions with a system prompt and tools over a growing conversation, one after another with pauses
as tools make them, and counts requests, generated tokens and wall time itself. Prints both counts side by side;
exits 1 where requests or tokens differ at all, or tokens per wall second by more than 1 %.
"""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.request
from typing import Any

from box import Watcher, gpubox, options, own_folders, profile

from tests.ports import free_port

PORT = free_port()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read one file of the project.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
SYSTEM = "You are a coding agent. " + "Follow the rules of the project and answer briefly. " * 20


def main() -> None:
    arguments = options(__doc__, "model", "--engine", seconds=300.0)
    with own_folders(arguments.engine) as folder:
        profile(folder, "agent", arguments.model, PORT, {"ctx-size": 8192, "parallel": 1, "threads": 1})
        gpubox("start", "agent")
        watcher = Watcher(1.0)
        watcher.wait_for(2)
        requests, tokens, wall = drive(arguments.seconds)
        watcher.wait_for(4)
        shown = watcher.lines[-1][1]
        watcher.close()
    same = compare("requests", requests, shown["totals"]["requests"])
    same &= compare("generated tokens", tokens, shown["totals"]["generated_tokens"])
    effective, own = shown["throughput"]["effective_tokens_per_second"] or 0.0, tokens / wall
    print(f"{'effective tok/s':18} client {own:9.3f}   gpubox {effective:9.3f}   {effective / own:.4f}")
    sys.exit(0 if same and abs(effective / own - 1) < 0.01 else 1)


def drive(seconds: float) -> tuple[int, int, float]:
    """``(requests, generated tokens, wall seconds)`` from the first request sent to the last answer's end."""
    luck = random.Random(1)
    messages: list[dict[str, Any]] = []
    requests = tokens = 0
    began = time.monotonic()
    ended = began
    while time.monotonic() - began < seconds:
        if len(messages) > 12 or not messages:
            messages = [{"role": "system", "content": SYSTEM}]
        question = f"Step {requests}: what next? " + "context " * luck.randrange(5, 200)
        messages.append({"role": "user", "content": question})
        text, generated = stream(messages, luck.randrange(16, 160))
        ended = time.monotonic()
        messages.append({"role": "assistant", "content": text})
        requests, tokens = requests + 1, tokens + generated
        time.sleep(luck.uniform(0.05, 0.6))  # the client's tool at work
    return requests, tokens, ended - began


def stream(messages: list[dict[str, Any]], limit: int) -> tuple[str, int]:
    body = {
        "messages": messages,
        "tools": TOOLS,
        "max_tokens": limit,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    text, generated = "", 0
    with urllib.request.urlopen(request, timeout=600) as reply:
        for raw in reply:
            line = raw.decode().strip()
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            for choice in chunk.get("choices", []):
                text += choice["delta"].get("content") or ""
            if chunk.get("usage"):
                generated = chunk["usage"]["completion_tokens"]
    return text, generated


def compare(what: str, client: int, shown: int | None) -> bool:
    print(f"{what:18} client {client:9,}   gpubox {shown or 0:9,}   {'exact' if client == shown else 'DIFFERS'}")
    return client == shown


if __name__ == "__main__":
    main()
