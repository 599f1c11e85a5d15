"""The server of the fake engine: it answers health, slots and one token at once.

It writes what it was started with to the log, as llama-server would, and leaves on SIGTERM. FAKE_CHAT_UNTIL holds an
answer of the chat back until that file exists, FAKE_STOP_SECONDS makes the leaving take that long; FAKE_BUSY is a
request without end, FAKE_DIES_WITH a word of the command line with which it dies when it is asked to stream.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWERS = {
    "/health": {"status": "ok"},
    "/slots": [{"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": bool(os.environ.get("FAKE_BUSY"))}],
    "/completion": {"content": "x"},
    "/v1/chat/completions": {"choices": [{"message": {"content": "A chip."}, "finish_reason": "stop"}], "model": "m"},
    "/props": {"model_path": "/m.gguf", "build_info": "b11434-abc"},
}
STREAMED = b"""data: {"choices": [{"delta": {"content": "A chip."}}], "model": "m"}

data: {"choices": [{"delta": {}, "finish_reason": "length"}],\
 "timings": {"cache_n": 0, "prompt_n": 20, "prompt_ms": 200, "predicted_n": 8, "predicted_ms": 160}}

data: [DONE]

"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        request = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = os.environ.get("LLAMA_API_KEY")
        if self.path == "/v1/chat/completions" and (gate := os.environ.get("FAKE_CHAT_UNTIL")):
            while not os.path.exists(gate):  # noqa: PTH110 - each import makes each start slower
                time.sleep(0.02)
        locked = key and self.path != "/health" and self.headers.get("Authorization") != f"Bearer {key}"
        body = {"error": {"message": "Invalid API Key"}} if locked else ANSWERS.get(self.path, {})
        self.send_response(401 if locked else 200)
        self.end_headers()
        if b'"stream":true' in request and os.environ.get("FAKE_DIES_WITH") in sys.argv:
            os._exit(1)
        streamed = not locked and b'"stream":true' in request
        self.wfile.write(STREAMED if streamed else json.dumps(body).encode())

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        pass


def leave(number: int, frame: object) -> None:
    time.sleep(float(os.environ.get("FAKE_STOP_SECONDS", "0")))
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, leave)
    host, port = (sys.argv[sys.argv.index(name) + 1] for name in ("--host", "--port"))
    with ThreadingHTTPServer((host, int(port)), Handler) as server:
        print(f"0.00.100.000 I srv  llama_server: listening on http://{host}:{port}", file=sys.stderr, flush=True)
        server.serve_forever()


main()
