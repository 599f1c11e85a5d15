"""A small MCP server over stdio: `python mcp_server.py HOW`. ``good`` keeps the protocol, every other HOW breaks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

HOW = sys.argv[1]
TOOLS: list[dict[str, Any]] = [
    {"name": "echo", "description": "Says it again.\nSecond line.", "title": "unknown to us", "inputSchema": {
        "properties": {"text": {"type": "string"}, "times": {"type": "number"}}, "required": ["text"]}},
    {"name": "environment", "description": "What it has.", "inputSchema": {"type": "object"}},
    {"name": "parts", "description": "All kinds of content."},
    {"name": "fail", "description": "Fails."},
    {"name": "structured"}, {"name": "nothing"}, {"name": "dotted.name"}, {"name": "sleep"},
]  # fmt: skip
PARTS = [
    {"type": "text", "text": "one"}, {"type": "image", "data": "A" * 400, "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "inside"}},
    {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}},
    {"type": "resource_link", "uri": "file:///c", "name": "c"}, {"type": "hologram", "depth": 3}, "no object", None,
]  # fmt: skip


def write(text: str | bytes) -> None:
    sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
    sys.stdout.buffer.flush()


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", "unknown": [1], **message}) + "\n")


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)  # type: ignore[no-any-return]


def result_of(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if tool == "environment":
        text = json.dumps({"environment": dict(os.environ), "folder": os.getcwd()})  # noqa: PTH109
    elif tool == "parts":
        return {"content": PARTS}
    elif tool == "structured":
        return {"content": [], "structuredContent": {"n": 1}}
    elif tool == "nothing":
        return {}
    else:
        text = str(arguments.get("text")) * int(arguments.get("times", 1))
    return {"content": [{"type": "text", "text": text}], "isError": tool == "fail"}


def answer(request: dict[str, Any]) -> None:
    """As the protocol says, after a greeting that it forbids and questions that it allows."""
    method, number = request["method"], request.get("id")
    if method == "initialize":
        write("Welcome!\n\n")
        send(id=number, result={"protocolVersion": "2099-01-01", "capabilities": {"tools": {}}, "serverInfo": {}})
    elif method == "tools/list":
        first = "cursor" not in request["params"]
        send(id=number, result={"tools": TOOLS[:3] if first else TOOLS[3:], **({"nextCursor": "x"} if first else {})})
    elif method == "tools/call":
        send(method="notifications/progress", params={})
        send(id="q1", method="ping")
        assert read() == {"jsonrpc": "2.0", "id": "q1", "result": {}}
        send(id=number, method="sampling/createMessage", params={})  # the server counts by itself
        assert read()["error"]["code"] == -32601
        send(id=999, result={"content": [{"type": "text", "text": "an answer to nobody"}]})
        send(id=number, result=result_of(request["params"]["name"], request["params"]["arguments"]))
    elif number is not None:
        send(id=number, error={"code": -32601, "message": "no such method"})


def misbehave(request: dict[str, Any]) -> None:
    """What breaks at the first request, at the list or at the call, as HOW says."""
    method, number = request["method"], request.get("id")
    if number is None:
        return
    at, _, what = HOW.partition("-")
    if {"start": "initialize", "list": "tools/list", "call": "tools/call"}[at] != method:
        answer(request)
        return
    if what == "dies":
        print("\x1b[31mno license\x1b[0m\n", file=sys.stderr, flush=True)
        os._exit(3)
    elif what == "hangs":
        time.sleep(1000)
    elif what == "refuses":
        send(id=number, error={"code": -32602, "message": "Unsupported protocol version", "data": {}})
    elif what == "odd-error":
        send(id=number, error=["?"])
    elif what == "no-result":
        send(id=number, result="fine")
    elif what == "garbage":
        while True:
            write(os.urandom(4000) + b"\n")
    elif what == "empty-lines":
        while True:
            write(b"\n" * 4096)
    elif what == "notifications":
        while True:
            send(method="notifications/message", params={"data": "x" * 1000})
    elif what == "questions":
        while True:
            send(id=1, method="roots/list")
    elif what == "long-line":
        write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{"x": "' + "x" * 50_000_000 + '"}}\n')
    elif what == "wrong-ids":
        for wrong in (None, -1, "x", [number], {"id": number}, number + 1):
            send(id=wrong, result={"content": []})
        time.sleep(1000)
    elif what == "half-line":
        write(f'{{"jsonrpc": "2.0", "id": {number}, "resu')
        os._exit(0)
    elif what == "half-line-hangs":
        write(f'{{"jsonrpc": "2.0", "id": {number}, "resu')
        time.sleep(1000)
    elif what == "deep":
        write(f'{{"id": {number}, "result": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
        time.sleep(1000)
    elif what == "closes-output":
        os.close(1)
        time.sleep(1000)
    elif what == "closes-input":
        os.close(0)
        time.sleep(1000)
    elif what == "kills-its-group":
        os.killpg(0, signal.SIGKILL)
    elif what == "odd-tools":
        schemas: list[Any] = [
            None,
            5,
            {"properties": 5, "required": 7},
            {"properties": {"a": 1}, "required": [{}, "a"]},
        ]
        odd = [{"name": f"odd{i}", "description": [3], "inputSchema": each} for i, each in enumerate(schemas)]
        send(id=number, result={"tools": [None, "x", {}, {"name": 7}, *odd], "nextCursor": {"again": True}})
    elif what == "no-tools":
        send(id=number, result={"tools": "none", "nextCursor": None})
    elif what == "leaves-a-daemon":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        answer(request)
    elif what in ("stays", "stays-in-group"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        for new_session in (False, True)[: 2 - HOW.endswith("group")]:
            subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=new_session)
        answer(request)
        time.sleep(1000)
    else:
        raise AssertionError(HOW)


while True:
    request = read()
    if HOW == "good":
        if request["method"] == "tools/call" and request["params"]["name"] == "sleep":
            continue
        answer(request)
    else:
        misbehave(request)
