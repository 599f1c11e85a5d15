"""A model that follows the last prompt, over the three APIs that coding agents speak: chat, responses, messages.

``TASK FIX`` reads, edits and runs; ``TASK RUN`` runs; ``TASK SLOW`` speaks without end; else it answers. It calls the
tools that the agent offers, by their own names.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

PATCH = "*** Begin Patch\n*** Update File: calc.py\n@@\n-    return a - b\n+    return a + b\n*** End Patch\n"
ADD, TOUCH = "python3 -c 'import calc; print(calc.add(1, 2))'", "touch denied.txt"
READS = ("Read", "mcp__acp__Read", "read_file", "read_files", "read")
EDITS = ("Edit", "mcp__acp__Edit", "edit", "replace", "editor", "apply_patch")
RUNS = ("Bash", "mcp__acp__Bash", "run_shell_command", "run_commands", "bash", "exec_command", "shell_command", "shell")
Call = tuple[str, dict[str, Any]]


@dataclass
class Asked:
    """What a request says, whatever its API."""

    users: list[str] = field(default_factory=list)
    done: int = 0
    """Calls of tools that were answered since the last task."""
    task: str = ""
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The schemas of their arguments."""

    def __post_init__(self) -> None:
        self._cwd = "/workspace"

    def take(self, item: dict[str, Any]) -> None:
        """Takes one message, or one item of the responses API."""
        text = json.dumps(item)
        if place := re.search(r'/[^\s"<>\\]+\.open/copy', text):
            self._cwd = place[0]
        results = text.count('"type": "tool_result"') + (item.get("role") == "tool")
        self.done += results + str(item.get("type")).endswith("_output")
        tasks = re.findall(r"TASK (\w+)", text)
        if item.get("role") == "user" and (tasks or not results):
            self.users.append(text)
            if tasks:
                self.task, self.done = tasks[-1], 0

    def steps(self) -> list[Call]:
        """The calls of the task."""
        file, run = f"{self._cwd}/calc.py", self._first(RUNS)
        if self.task == "RUN":
            return [self._command(run, TOUCH)]
        if self.task != "FIX":
            return []
        read, edit = self._first(READS), self._first(EDITS)
        old, new = "    return a - b", "    return a + b"
        values: dict[str, Any] = {
            "file_path": file, "filePath": file, "path": file, "input": PATCH, "files": [{"path": file}],
            "command": "str_replace", "instruction": "mend it", "start_line": None, "end_line": None,
        }  # fmt: skip
        values |= dict.fromkeys(("old_string", "oldString", "oldText", "old_text", "old_str"), old)
        values |= dict.fromkeys(("new_string", "newString", "newText", "new_text", "new_str"), new)
        values["edits"] = [{"oldText": old, "newText": new}]
        patch = f"apply_patch <<'EOF'\n{PATCH}EOF\n"
        return [
            self._fitting(read, values) if read else self._command(run, "cat calc.py"),
            self._fitting(edit, values) if edit else self._command(run, patch),
            self._command(run, ADD),
        ]

    def _first(self, names: tuple[str, ...]) -> str:
        return next((name for name in names if name in self.tools), "")

    def _fitting(self, name: str, values: dict[str, Any]) -> Call:
        known = self.tools[name] or {"input": {}}
        return name, {key: value for key, value in values.items() if key in known}

    def _command(self, name: str, text: str) -> Call:
        known = self.tools.get(name, {})
        is_list = known.get("command", {}).get("type") == "array"
        values = {"command": ["bash", "-lc", text] if is_list else text, "cmd": text, "commands": [text],
                  "description": "run it"}  # fmt: skip
        return name, {key: value for key, value in values.items() if key in known}


class Model(BaseHTTPRequestHandler):
    """The server. ``real``: a llama-server that reads every prompt of the chat API."""

    protocol_version = "HTTP/1.1"
    real = ""
    show_tools = False
    read: ClassVar[dict[str, Any]] = {"usage": {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}}
    """What a real server said of the request."""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [{"id": "box", "object": "model"}]})

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            self._json({"input_tokens": 1000})
            return
        if self.real and path.endswith("/chat/completions"):
            asked = {key: value for key, value in request.items() if key not in ("stream_options", "stream")}
            body = json.dumps({**asked, "max_tokens": 1, "cache_prompt": True}).encode()
            headers = {"content-type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(f"{self.real}{self.path}", body, headers)) as reply:
                said = json.load(reply)
                Model.read = {"usage": said["usage"], "timings": said["timings"]}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        api = next((api for end, api in APIS.items() if path.endswith(end)), chat_api)
        with suppress(OSError):
            for event in api(request, self._follow(request)):
                kind = f"event: {event['type']}\n" if "type" in event else ""
                self.wfile.write(f"{kind}data: {json.dumps(event | self._usage(event))}\n\n".encode())
                self.wfile.flush()
            if api is chat_api:
                self.wfile.write(b"data: [DONE]\n\n")

    def _usage(self, event: dict[str, Any]) -> dict[str, Any]:
        return self.read if any(choice["finish_reason"] for choice in event.get("choices", ())) else {}

    def _follow(self, request: dict[str, Any]) -> Iterator[str | Call]:
        """Words to say, or one call."""
        asked = Asked()
        for tool in request.get("tools", []):
            tool = tool.get("function", tool)
            schema = tool.get("parameters") or tool.get("input_schema") or {}
            asked.tools[tool.get("name", tool.get("type"))] = schema.get("properties", {})
        items = request.get("messages", request.get("input", []))
        for item in items if isinstance(items, list) else ():
            asked.take(item)
        if self.show_tools and asked.tools:
            Model.show_tools = False
            print(json.dumps(asked.tools, indent=1))
        if not asked.tools:
            yield "A title"
            return
        for _ in range(600 if asked.task == "SLOW" else 0):
            yield "and on "
            time.sleep(0.05)
        steps = asked.steps()
        if asked.done < len(steps):
            yield steps[asked.done]
            return
        said = [text for text in asked.users if "remember" in text]
        for word in f"Done. I was told {len(asked.users)} things, {len(said)} to remember.".split(" "):
            yield f"{word} "


def chat_api(_: dict[str, Any], script: Iterator[str | Call]) -> Iterator[dict[str, Any]]:
    def event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "box", "choices": [choice]}

    finish = "stop"
    for step in script:
        if isinstance(step, str):
            yield event({"content": step})
        else:
            finish = "tool_calls"
            call = {"index": 0, "id": f"c{time.time_ns()}", "type": "function",
                    "function": {"name": step[0], "arguments": json.dumps(step[1])}}  # fmt: skip
            yield event({"role": "assistant", "tool_calls": [call]})
    yield event({}, finish)


def messages_api(_: dict[str, Any], script: Iterator[str | Call]) -> Iterator[dict[str, Any]]:
    message: dict[str, Any] = {"id": f"m{time.time_ns()}", "type": "message"}
    message |= {"role": "assistant", "model": "box", "content": []}
    message |= {"stop_reason": None, "usage": {"input_tokens": 1000, "output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    finish, is_open = "end_turn", False
    for step in script:
        if not is_open:
            block: dict[str, Any] = {"type": "text", "text": ""}
            if not isinstance(step, str):
                block = {"type": "tool_use", "id": f"toolu_{time.time_ns()}", "name": step[0], "input": {}}
            yield {"type": "content_block_start", "index": 0, "content_block": block}
            is_open = True
        delta = {"type": "text_delta", "text": step}
        if not isinstance(step, str):
            finish, delta = "tool_use", {"type": "input_json_delta", "partial_json": json.dumps(step[1])}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": finish}, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def responses_api(request: dict[str, Any], script: Iterator[str | Call]) -> Iterator[dict[str, Any]]:
    free = {tool.get("name") for tool in request.get("tools", []) if tool.get("type") == "custom"}
    response, name, said = {"id": f"resp_{time.time_ns()}", "object": "response"}, f"i{time.time_ns()}", ""
    item: dict[str, Any] = {"type": "message", "role": "assistant", "id": name, "content": []}
    yield {"type": "response.created", "response": response}
    for step in script:
        if isinstance(step, str):
            if not said:
                yield {"type": "response.output_item.added", "output_index": 0, "item": item}
            said += step
            yield {"type": "response.output_text.delta", "item_id": name, "output_index": 0, "content_index": 0,
                   "delta": step}  # fmt: skip
            continue
        item = {"type": "function_call", "id": name, "call_id": f"c{name}", "name": step[0]}
        if step[0] in free:
            item |= {"type": "custom_tool_call", "input": PATCH}
        else:
            item["arguments"] = json.dumps(step[1])
    if said:
        item = {**item, "content": [{"type": "output_text", "text": said, "annotations": []}]}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": 1000, "output_tokens": 20, "total_tokens": 1020}
    yield {"type": "response.completed", "response": {**response, "output": [item], "usage": usage}}


APIS = {"/responses": responses_api, "/messages": messages_api}
