"""A server without a model that streams completions like llama-server, vLLM, Ollama or a plain OpenAI server.

The formats are those of llama-server b11434 and of the OpenAI API (``stream_options.include_usage``).
"""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1, "build_info": "b1-test"}


class BenchServer:
    """Answers until the block ends. ``asked`` holds the requests; the counters are those of ``/metrics``."""

    def __init__(self, dialect: str = "llama-server", *, tokens: int | None = None, cached: int = 0) -> None:
        self.dialect, self.tokens, self.cached = dialect, tokens, cached
        self.asked: list[dict[str, Any]] = []
        self.counted = [0, 0]
        self.breaks = 0
        """The number of the next answers that break off in the middle."""
        self.refuses, self.status = "", 400
        self.counts = True
        """Whether it reports how many tokens an answer has."""
        self.words = 1
        """The number of tokens in one chunk."""
        self.endless = ""
        """The path of a page that never ends."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                if self.path == server.endless:
                    self.flood()
                    return
                body = server.page(self.path)
                self.answer(404 if body is None else 200, body if isinstance(body, str) else json.dumps(body))

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    self.answer(200, json.dumps({"tokens": asked["content"].split()}))
                elif self.path == "/detokenize":
                    self.answer(200, json.dumps({"content": " ".join(asked["tokens"])}))
                elif server.refuses:
                    self.answer(server.status, json.dumps({"error": {"message": server.refuses}}))
                else:
                    server.asked.append(asked)
                    self.stream(server.lines(asked), cut=server.take_break())

            def answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def flood(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    while True:
                        self.wfile.write(b'{"data": [' + b" " * 65536)

            def stream(self, lines: list[Any], *, cut: bool) -> None:
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                for line in lines[: len(lines) // 2] if cut else [*lines, "[DONE]"]:
                    text = line if isinstance(line, str) else json.dumps(line)
                    self.wfile.write(f"data: {text}\n\n".encode())
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(0.02), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> BenchServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take_break(self) -> bool:
        self.breaks -= 1
        return self.breaks >= 0

    def page(self, path: str) -> Any:
        """The body of the answer to a GET; ``None``: 404."""
        llama = self.dialect == "llama-server"
        owner = {"owned_by": "vllm"} if self.dialect == "vllm" else {}
        pages: dict[str, Any] = {"/v1/models": {"data": [{"id": "m1", **owner}, {"id": "m2", **owner}]}}
        if llama:
            prompt, generated = self.counted
            pages |= {
                "/health": {"status": "ok"},
                "/props": PROPS,
                "/slots": [],
                "/metrics": f"llamacpp:prompt_tokens_total {prompt}\nllamacpp:tokens_predicted_total {generated}\n",
            }
        pages |= {"vllm": {"/version": {"version": "0.9"}}, "ollama": {"/api/version": {"version": "0.9"}}}.get(
            self.dialect, {}
        )
        return pages.get(path)

    def lines(self, asked: dict[str, Any]) -> list[Any]:
        """The events of one answer, one word per token."""
        n = self.tokens or asked["max_tokens"]
        prompt = len(asked["messages"][-1]["content"].split())
        cached = self.cached if not asked.get("cache_prompt") else prompt - 1
        events: list[Any] = [{"model": "m1", "choices": [{"delta": {"role": "assistant", "content": None}}]}]
        texts = [f"w{i} " for i in range(n)]
        pieces = ["".join(texts[i : i + self.words]) for i in range(0, n, self.words)]
        events += [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        events.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": prompt, "completion_tokens": n, "prompt_tokens_details": {"cached_tokens": cached}}
        last: dict[str, Any] = {"choices": [], "usage": usage}
        if self.dialect == "llama-server":
            self.counted[0] += prompt - cached
            self.counted[1] += n
            last["timings"] = {
                "cache_n": cached, "prompt_n": prompt - cached, "prompt_ms": 10.0 * (prompt - cached),
                "predicted_n": n, "predicted_ms": 20.0 * n, "draft_n": 2 * n, "draft_n_accepted": n // 2,
            }  # fmt: skip
        return [*events, last] if self.counts else events
