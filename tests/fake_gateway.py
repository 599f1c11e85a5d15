"""The control endpoints of a gateway, in this process: for what only reads its status or sends it one word."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from gpubox.gateway.gateway_status import SCHEMA, BoxNews, ClientSums, GatewayStatus, LiveRequest, ProfileStatus
from gpubox.hardware.process import ProcessIdentity, own_identity
from gpubox.paths import Paths
from gpubox.server.state import GatewayRecord, save_gateway
from gpubox.telemetry.recorder import header_line, snapshot_line
from gpubox.telemetry.snapshot import Snapshot

TOKEN = "control-token"
DEAD = ProcessIdentity(2**22 + 5, 1, "")
AT = "2026-11-22T12:00:00.000Z"


class FakeGateway:
    """What it answers, and what it was asked."""

    def __init__(self) -> None:
        self.status = GatewayStatus(
            schema_version=SCHEMA, base_url="http://127.0.0.1:8080", started_at=AT, version="0.1",
            paused=False, has_keys=True, exposed="", operations=(), profiles=(ProfileStatus("coder", "up"),),
            requests=(LiveRequest(1, "laptop", "coder", "/v1/chat/completions", "generating", True, 0.0, 2.0),),
            clients={"laptop": ClientSums(requests=3, last_at=AT)}, finished=(),
        )  # fmt: skip
        self.url = ""
        self.asked: list[str] = []
        self.answer: tuple[int, bytes] | None = None
        """Instead of the right one."""

    def reply(self, method: str, path: str, key: str, body: bytes = b"") -> tuple[int, bytes]:
        self.asked.append(f"{method} {path} {body.decode()}".rstrip())
        if self.answer:
            return self.answer
        if key != f"Bearer {TOKEN}":
            return 401, b"{}"
        if path in ("/gpubox/pause", "/gpubox/resume"):
            self.status = replace(self.status, paused=path.endswith("pause"))
        return 200, msgspec.json.encode(self.status) if method == "GET" else b"{}"


def watched(snapshot: Snapshot, status: GatewayStatus, log: tuple[str, ...] = ()) -> bytes:
    """What it answers to who watches."""
    return header_line("0.1") + snapshot_line(snapshot, ()) + msgspec.json.encode(BoxNews(status, log, "1-0"))


@contextmanager
def fake_gateway(paths: Paths) -> Iterator[FakeGateway]:
    """A gateway whose record is in ``paths``."""
    gateway = FakeGateway()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = gateway.reply(self.command, self.path, self.headers.get("Authorization", ""), sent)
            if self.path == "/gpubox/stop":
                save_gateway(paths, replace(record, process=DEAD))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    record = GatewayRecord(own_identity(), "127.0.0.1", server.server_port, TOKEN, AT)
    save_gateway(paths, record)
    gateway.url = record.base_url
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
