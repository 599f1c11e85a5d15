"""A llama-server that fails in a way no real one does on demand. Speaks the recorded --help of build 11434.

usage: fake_engine.py hang|die|garbage LLAMA-SERVER-ARGUMENTS...
  hang      starts, says so, and never listens
  die       listens, is healthy, and aborts at the first request for a token
  garbage   listens, is healthy, and answers HTML to everything else
"""

from __future__ import annotations

import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

HELP = Path(__file__).parent.parent / "fixtures" / "llama-server-b11434.help.txt"


def main() -> None:
    mode, *argv = sys.argv[1:]
    if "--help" in argv:
        print(HELP.read_text())
        return
    if "--version" in argv:
        print("version: 0.6.0-dev (build 0, commit unknown)", file=sys.stderr)
        return
    if "--list-devices" in argv:
        print("Available devices:")
        return
    print("0.00.001.426 I srv  llama_server: initializing ...", file=sys.stderr, flush=True)
    if mode == "hang":
        time.sleep(3600)
    serve(mode, int(argv[argv.index("--port") + 1]))


def serve(mode: str, port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer('{"status":"ok"}' if self.path == "/health" else "<html>hello</html>")

        def do_POST(self) -> None:
            if mode == "die":
                print("ggml.c:1: GGML_ASSERT(n_tokens > 0) failed", file=sys.stderr, flush=True)
                os.abort()
            self.answer("<html>hello</html>")

        def answer(self, body: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"0.00.100.000 I srv  llama_server: listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        server.serve_forever()


main()
