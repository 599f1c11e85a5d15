"""A llama-server for the Sampler's tests: an HTTP side that answers what a test says, a process, a log, a record."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpubox.hardware.process import MARKER_VARIABLE, ProcessIdentity, identity_of
from gpubox.paths import Paths
from gpubox.server.instance import launch_marker
from gpubox.server.state import InstanceState, Launch, RunningServer, load_state, save_state

_METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
llamacpp:prompt_tokens_total {prompt}
llamacpp:prompt_tokens_cached_total 5
llamacpp:tokens_predicted_total {generated}
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} 9
llamacpp:requests_processing {processing}
llamacpp:requests_deferred {deferred}
"""


def metrics(*, prompt: int = 12, generated: int = 7, processing: int = 0, deferred: int = 0) -> str:
    """An answer of /metrics."""
    return _METRICS.format(prompt=prompt, generated=generated, processing=processing, deferred=deferred)


LOADED = """\
0.00.000.001 I srv    load_model: loading model 'm.gguf'
0.00.000.002 I load_tensors: loading model tensors, this can take a while... (load_mode = none)
0.00.000.003 I load_tensors: offloaded 31/31 layers to GPU
0.00.000.004 I load_tensors:        CUDA0 model buffer size =  1024.00 MiB
0.00.000.005 I load_tensors:          CPU model buffer size =   100.00 MiB
0.00.000.006 I llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
0.00.000.007 I cmn          init: llama threadpool init, n_threads = 2
0.00.000.008 I srv  llama_server: listening on http://127.0.0.1:1
"""
Answer = Callable[[BaseHTTPRequestHandler], None]


def slot(index: int = 0, *, busy: bool = False, task: int = 1, used: int = 100, generated: int = 0, **more: Any) -> Any:
    """One item of /slots."""
    return {
        "id": index, "n_ctx": 4096, "is_processing": busy, "id_task": task, "n_prompt_tokens": used,
        "n_prompt_tokens_processed": 0, "next_token": [{"n_decoded": generated}], **more,
    }  # fmt: skip


def taken(at: str, task: int, slot: int = 0, prompt: int = 1000) -> str:
    """The log of a request that begins."""
    of = f"id  {slot} | task {task} |"
    return (
        f"{at} I slot launch_slot_: {of} processing task, is_child = 0\n"
        f"{at} I slot operator(): {of} new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = {prompt}\n"
        f"{at} I slot operator(): {of} cached n_tokens = 0, memory_seq_rm [0, end)\n"
    )


def done(at: str, task: int, slot: int = 0, prompt: int = 1000, generated: int = 50) -> str:
    """The log of a request that ends."""
    of = f"id  {slot} | task {task} |"
    return (
        f"{at} I slot print_timing: {of} prompt eval time = 2000.00 ms / {prompt} tokens "
        f"( 2.00 ms per token, 500.00 tokens per second)\n"
        f"{at} I slot print_timing: {of} eval time = 2000.00 ms / {generated} tokens "
        f"( 40.00 ms per token, 25.00 tokens per second)\n"
        f"{at} I slot release: {of} stop processing: n_tokens = {prompt + generated}, truncated = 0\n"
    )


class LlamaBox:
    """What the Sampler sees of one server. The HTTP side is this process's; the server's process is a child."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.asked: list[str] = []
        self.key: str | None = None
        self.answers: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/slots": [slot()],
            "/metrics": metrics(),
            "/props": {"model_path": "/m.gguf", "build_info": "b11434"},
        }
        """By path: a value (as JSON), a text, a status code, or a function that answers."""
        self.children: list[subprocess.Popen[bytes]] = []
        self.unblock = threading.Event()
        box = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # head and body in one packet: two would wait 40 ms for each other

            def do_GET(self) -> None:
                box.asked.append(self.path)
                box._answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.01), daemon=True)
        self._thread.start()
        self.launch = Launch("a", ("llama-server",), "127.0.0.1", self.port, layers=30)
        self.running = RunningServer(
            self.launch, "f00d", "2026-01-01T00:00:00.000Z", None, ready_at="t", probe_tokens=(2, 1)
        )
        paths.logs.mkdir(parents=True, exist_ok=True)
        self.log.write_text(LOADED)

    @property
    def log(self) -> Path:
        return self.paths.instance_log("main")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def start(self, argv: Sequence[str] = ("cat",), *, log: str | None = None, **fields: Any) -> ProcessIdentity:
        """Starts a process as the slot's server and records it: it carries the marker and holds the life lock.

        ``log``: where its output goes instead of into the slot's log.
        """
        self.running = replace(self.running, **fields)
        life = self.paths.liveness_lock("main")
        life.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(life, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_SH)
        mark = launch_marker(self.paths, "main", self.running)
        with Path(log or self.log).open("ab") as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, MARKER_VARIABLE: mark},
                pass_fds=(lock,),
            )
        os.close(lock)
        self.children.append(child)
        identity = identity_of(child.pid)
        assert identity is not None
        self.record(process=identity)
        return identity

    def start_serving(self, **fields: Any) -> ProcessIdentity:
        """The same with a process that answers HTTP by itself, on ``port``."""
        self._close_http()
        script = Path(__file__).parent.parent / "cli" / "fake_server.py"
        argv = (sys.executable, str(script), "--host", "127.0.0.1", "--port", str(self.port))
        return self.start(argv, **fields)

    def record(self, **fields: Any) -> None:
        """Writes the slot's state."""
        self.running = replace(self.running, **fields)
        path = self.paths.instance_state("main")
        save_state(path, InstanceState(self.running, restarts=load_state(path).restarts))

    def signal(self, number: signal.Signals) -> None:
        self.children[-1].send_signal(number)
        if number == signal.SIGKILL:
            self.children[-1].wait(10)

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """An answer that does not come before ``unblock`` is set."""
        self.unblock.wait(30)
        handler.close_connection = True

    def close(self) -> None:
        self.unblock.set()
        self._close_http()
        for child in self.children:
            child.kill()
            child.communicate()

    def _close_http(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(10)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        answer = self.answers.get(handler.path, 404)
        open_to_all = handler.path == "/health"
        if self.key and not open_to_all and handler.headers.get("Authorization") != f"Bearer {self.key}":
            answer = 401
        if callable(answer):
            answer(handler)
        elif isinstance(answer, int):
            send(handler, b'{"error":{"message":"no"}}', answer)
        else:
            send(handler, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode())


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def logged(task: int, chosen: str, *, slot: int = 0, prompt: int = 4000, cached: int = 0, extra: str = "") -> str:
    """The lines of a request on a slot that was ``chosen`` so."""
    of = f"id  {slot} | task {task} |"
    choice = f"0.01.000.000 I slot get_availabl: id  {slot} | task -1 | {chosen}\n" if chosen else ""
    return (
        f"{choice}{extra}"
        f"0.01.000.000 I slot launch_slot_: {of} processing task, is_child = 0\n"
        f"0.01.000.000 I slot operator(): {of} new prompt, n_ctx_slot = 8192, n_keep = 0, task.n_tokens = {prompt}\n"
        f"0.01.000.000 I slot operator(): {of} cached n_tokens = {cached}, memory_seq_rm [{cached}, end)\n"
        f"0.02.000.000 I slot print_timing: {of} prompt eval time = 2000.00 ms / {prompt - cached} tokens "
        f"( 2.00 ms per token, 500.00 tokens per second)\n"
        f"0.02.000.000 I slot release: {of} stop processing: n_tokens = {prompt + 12}, truncated = 0\n"
    )
