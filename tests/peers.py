"""Ollama, vLLM and LM Studio as their published answers have them (tests/fixtures/peers), on a loopback port."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures" / "peers"
PAGES = {
    "ollama": {
        "/": "Ollama is running",
        "/api/version": "ollama_version.json",
        "/api/ps": "ollama_ps.json",
        "/api/tags": "ollama_tags.json",
    },
    "vllm": {
        "/health": "",
        "/version": "vllm_version.json",
        "/metrics": "vllm_metrics.txt",
        "/v1/models": "vllm_models.json",
    },
    "lm-studio": {"/api/v0/models": "lmstudio_v0_models.json", "/api/v1/models": "lmstudio_v1_models.json"},
    "openai": {},
}


class Peer:
    """Serves until the block ends. ``pages`` may be changed: a text, or ``None`` for one that is not there."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.pages: dict[str, str | None] = {
            path: (FIXTURES / name).read_text() if (FIXTURES / name).is_file() else name
            for path, name in PAGES[dialect].items()
        }
        if dialect != "vllm":  # all of them have OpenAI's list too
            ids = {"ollama": ["gemma3", "qwen3:8b"], "lm-studio": ["google/gemma-4-26b-a4b"]}.get(dialect, ["a", "b"])
            self.pages["/v1/models"] = json.dumps({"object": "list", "data": [{"id": name} for name in ids]})
        self.asked: list[tuple[str, dict[str, Any]]] = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                peer.asked.append((self.path, {}))
                found = peer.pages.get(self.path)
                if found is None and peer.dialect == "lm-studio":
                    found = json.dumps({"error": f"Unexpected endpoint or method. (GET {self.path})"})
                self.answer(404 if found is None else 200, found or "")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                peer.asked.append((self.path, body))
                if self.path != "/v1/chat/completions":
                    self.answer(404, "")
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
                for values in (
                    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Good "}}]},
                    {"choices": [{"index": 0, "delta": {"content": "day."}}]},
                    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                    {"choices": [], "usage": usage},
                ):
                    chunk = {"id": "c", "object": "chat.completion.chunk", "model": body.get("model"), **values}
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")

            def answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(0.02), daemon=True)

    def __enter__(self) -> Peer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
