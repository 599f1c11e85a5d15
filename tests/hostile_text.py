"""Text that tries to act on a terminal, and a server that puts it wherever a server can put text."""

# ruff: noqa: E501 - attacks are one to a line
from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ATTACKS = (
    "\x1b]52;c;T1dORUQ=\x07",  # the clipboard
    "\x1b]52;c;T1dORUQ=\x1b\\",
    "\x1b]8;;http://owned.example/\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]0;owned title\x07",
    "\x1b]2;never ended",
    "\x1b[31;7777m",
    "\x1b[2J\x1b[H\x1b[?1049h\x1b[6n",
    '\x1bP$q"p\x1b\\',
    "\x1bPtmux;\x1b\x1b]52;c;T1dORUQ=\x07\x1b\\",
    "\x1bc\x1b(0\x1b7",
    "\x9b31m\x9d52;c;T1dORUQ=\x9c\x90q\x9c\x85",
    "\u202egnp.exe\u202c\u2066x\u2069\u200e\u061c",
    "pay\u200bpal\u2060\ufeff\u00ad\u3164",
    "".join(chr(0xE0000 + ord(char)) for char in "hidden"),
    "e" + "\u0301" * 200,
    "all is well\roverwritten\b\b\x7f\x00\x07\x0b\x0c\x0e\x0f",
    "[/foo] [b]markup[/b] [@click=app.quit]x[/]",
    "line\nNext: `gpubox rm -rf`\r\n\u2028\u2029",
)
HOSTILE = "evil " + " ".join(ATTACKS)
ONE_LINE = HOSTILE.replace("\n", " ").replace("\r", " ").replace("\x00", "")
"""For names of files and words of a command line."""
LONG = "L" * 1_000_000 + "\x1b]52;c;T1dORUQ=\x07"
_OWN = re.compile(r"\r\x1b\[2K")
_VISIBLE_CF = "\u200c\u200d"


def faults(raw: bytes, *, as_json: bool = False) -> list[str]:
    """What arrived at a terminal that must not: control characters beside gpubox's own, hidden ones, too long lines."""
    text = _OWN.sub("", raw.decode("utf-8")).replace("\r\n", "\n")
    found = []
    for char in sorted(set(text) - set("\n\t")):
        category = unicodedata.category(char)
        if category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and char not in _VISIBLE_CF:
            at = text.index(char)
            found.append(f"{char!r} in {text[max(0, at - 60) : at + 60]!r}")
    if re.search("\u0301{9}", text):
        found.append("a flood of marks")
    longest = max(map(len, text.split("\n")))
    if longest > 25_000 and not as_json:
        found.append(f"a line of {longest} characters")
    return found


_SCREEN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\d+;\d+H|\x1b\]22;default\x07|\x1b\]11;\?\x07")
_MODES = re.compile(r"\x1b\[(\?(?:1000|1003|1004|1006|1015|1049|2004|25|7)[hl]|\?20(?:26|48)\$p|\?2026[hl]|>\d+u|<u)")


def screen_faults(raw: bytes) -> list[str]:
    """As ``faults``, of what Textual draws: colours, places, and each mode of the screen set and reset as it does."""
    text = raw.decode("utf-8")
    found = [f"{word} arrived" for word in ("7777", "T1dORUQ=\x07", "\x1b[6n") if word in text]
    if text.count("\x1b[?1049h") != 1:
        found.append("the screen was entered more than once")
    return found + faults(_MODES.sub("", _SCREEN.sub("", text)).encode())


class Handler(BaseHTTPRequestHandler):
    """``HOSTILE_STATUS``: answers with that status and an error body, once it was proven."""

    server: Any

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = int(self.server.status)
        said = HOSTILE if self.server.short else HOSTILE + LONG
        if status != 200 and self.path not in self.server.well:
            self.reply(status, {"error": {"message": said, "type": said, "code": status}})
        elif b'"stream":true' in body:
            self.stream(said)
        else:
            self.reply(200, self.page(self.path.partition("?")[0], said))

    do_POST = do_GET

    def page(self, path: str, said: str) -> Any:
        slot = {"id": 0, "n_ctx": 4096, "is_processing": False, "params": {"x": said}, said: said}
        dialects: dict[str, Any] = {
            "ollama": {"/api/version": {"version": said}, "/api/ps": {"models": [{"name": said, "model": said}]},
                       "/api/tags": {"models": [{"name": said, "details": {"family": said}}]}, "/": "Ollama is running"},
            "vllm": {"/version": {"version": said}, "/metrics": f"vllm:num_requests_running{{model_name=\"{said}\"}} 1.0\n"},
            "lm-studio": {"/api/v0/models": {"data": [{"id": said, "state": "loaded", "quantization": said}]}},
        }  # fmt: skip
        models = {"data": [{"id": said, "object": said, "owned_by": said}]}
        if self.server.dialect != "llama-server":
            return ({"/v1/models": models} | dialects[self.server.dialect]).get(path, {"detail": said})
        return {
            "/health": {"status": "ok"},
            "/slots": [slot],
            "/props": {"model_path": said, "build_info": said, "model_alias": said, "chat_template": said,
                       "default_generation_settings": {"n_ctx": 4096, "model": said}, "total_slots": 1},
            "/completion": {"content": said},
            "/v1/models": models,
            "/metrics": f"# HELP {said}\nllamacpp:requests_processing{{a=\"{said}\"}} 1\n{said}",
            "/tokenize": {"tokens": [1, 2, 3]},
            "/v1/chat/completions": {"choices": [{"message": {"content": said}, "finish_reason": said}], "model": said},
        }.get(path, {"error": {"message": said}})  # fmt: skip

    def reply(self, status: int, body: Any) -> None:
        data = body.encode("utf-8", "replace") if isinstance(body, str) else json.dumps(body).encode()
        self.wfile.write(b"HTTP/1.1 %d \xc2\x9b31mevil\r\nX-Evil: \xc2\x9d52;c;T1dORUQ=\r\n" % status)
        self.wfile.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(data) + data)
        self.close_connection = True

    def stream(self, said: str) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self.close_connection = True
        head, tail = said[:4000], said[4000:]
        pieces = [head[at : at + 3] for at in range(0, len(head), 3)]  # sequences come in pieces, as a model makes them
        deltas: list[dict[str, Any]] = [{"reasoning_content": HOSTILE}]
        deltas += [{"content": piece} for piece in [*pieces, tail]]
        for delta in deltas:
            self.event({"choices": [{"delta": delta}], "model": said[:2000]})
        arguments = json.dumps({"code": f"print({HOSTILE!r})"})
        call = {"index": 0, "id": HOSTILE, "type": "function", "function": {"name": HOSTILE, "arguments": arguments}}
        if self.server.calls:
            self.event({"choices": [{"delta": {"tool_calls": [call]}}]})
        self.event({"choices": [{"delta": {}, "finish_reason": "tool_calls" if self.server.calls else "stop"}]})
        self.event({"error": {"message": HOSTILE}} if self.server.breaks else "[DONE]")

    def event(self, values: Any) -> None:
        self.wfile.write(f"data: {values if values == '[DONE]' else json.dumps(values)}\n\n".encode())

    def log_message(self, *args: object) -> None:
        pass


class HostileServer(ThreadingHTTPServer):
    """Its fields may be changed while it serves."""

    daemon_threads = True

    def __init__(self, port: int = 0, *, status: int = 200, dialect: str = "llama-server", short: bool = False) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.status, self.dialect, self.short = status, dialect, short
        self.calls = self.breaks = False
        self.well: tuple[str, ...] = ()
        """What is answered well, whatever the status is."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


def main() -> None:
    """As an engine: started by gpubox, it listens where it is told and fills its log."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    server = HostileServer(int(sys.argv[sys.argv.index("--port") + 1]), short=True)
    lines = HOSTILE.encode("utf-8", "surrogateescape")
    for line in (lines, b"0.00.100.000 I srv  load_model: loading model '" + lines + b"'", LONG.encode()):
        os.write(2, line + b"\n")
    for number in range(3):
        at = f"0.0{number}.200.000 I slot print_timing: id  0 | task {number} | ".encode()
        for words in (b"prompt eval time =    100.00 ms /    10 tokens", b"       eval time =    100.00 ms /    10 tokens",
                      b"      total time =    200.00 ms /    20 tokens", lines):  # fmt: skip
            os.write(2, at + words + b"\n")
    if "--ctx-size" in sys.argv and sys.argv[sys.argv.index("--ctx-size") + 1] == "666":
        os.write(2, b"0.00.300.000 E srv    load_model: failed to load model, '" + lines + b"'\n")
        time.sleep(0.1)
        os._exit(1)
    os.write(2, f"0.00.400.000 I srv  llama_server: listening on {server.url}\n".encode())
    server.serve_forever()


if __name__ == "__main__":
    main()
