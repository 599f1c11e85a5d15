"""The gateway as a process of its own, beside a server at an exact pace; and what a process holds."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from gpubox.paths import Paths
from gpubox.server.state import load_gateway
from tests.ports import free_port
from tests.raw_http import Reply, ask

PACED = Path(__file__).parent / "paced_server.py"
HELP = Path(__file__).parent / "fixtures" / "llama-server-b11434.help.txt"
START_SECONDS = 60.0
LIMITS = """
import sys
from gpubox.cli.entry import main
from gpubox.gateway import http_connection
for text in sys.argv.pop(1).split(","):
    name, _, value = text.partition("=")
    assert hasattr(http_connection, name), name
    setattr(http_connection, name, float(value))
main()
"""
"""gpubox with other limits of time, so that a test of them does not take minutes."""


@contextmanager
def paced_server(pace: float = 100.0) -> Iterator[tuple[int, int]]:
    """The synthetic llama-server: its port and its pid."""
    port = free_port()
    words = [sys.executable, str(PACED), str(port), str(pace)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield port, process.pid
        finally:
            process.kill()


def paced_engine(folder: Path) -> Path:
    """The synthetic llama-server as an engine of gpubox, with the options of build 11434."""
    script = folder / "paced-engine"
    script.write_text(
        f"""#!/bin/sh
case "$*" in
  *--help*) cat '{HELP}' ;;
  *--version*) echo 'version: 0.6.0-dev (build 11434, commit abc)' >&2 ;;
  *--list-devices*) echo 'Available devices:'; echo '  (none)' ;;
  *--log-jsonl*) exit 1 ;;
  *) exec {sys.executable} '{PACED}' "$@" ;;
esac
"""
    )
    script.chmod(0o755)
    return script


def empty_model(folder: Path) -> str:
    """The path of a whole GGUF without tensors, for that engine."""
    path = folder / "empty.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 0))
    return str(path)


def upstream_profile(folder: Path, name: str, port: int, **more: object) -> None:
    """Writes a profile, in the folder of config.toml, whose server somebody else started."""
    values = {"upstream": f"http://127.0.0.1:{port}", **more}
    (folder / "profiles").mkdir(parents=True, exist_ok=True)
    (folder / "profiles" / f"{name}.toml").write_text(tomli_w.dumps(values))


class Gateway:
    """``gpubox serve --json`` in the environment's folders. Its events are kept with the time at which they came."""

    def __init__(
        self, port: int | None = None, limits: Mapping[str, float] | None = None, *, files: int = 0, deaf: bool = False,
        words: Sequence[str] = (), listener: socket.socket | None = None,
    ) -> None:  # fmt: skip
        """``limits``: of time. ``files``: how many it may open; 0: as many as we. ``deaf``: nobody reads its output.

        ``words``: more of its command line. ``listener``: it inherits this socket, as from systemd's socket unit.
        """
        self.port = port or free_port()
        state = Path(os.environ["XDG_STATE_HOME"])
        state.mkdir(parents=True, exist_ok=True)
        self.errors = state / f"serve-{time.monotonic_ns()}.err"
        changed = ",".join(f"{name}={value}" for name, value in (limits or {}).items())
        program = ["-c", LIMITS, changed] if changed else ["-m", "gpubox"]
        words = [sys.executable, *program, "serve", "--port", str(self.port), "--json", *words]
        kept = (listener.fileno(),) if listener else ()
        if listener:
            given = f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&{listener.fileno()}'
            words = ["bash", "-c", given, "bash", *words]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, pass_fds=kept)
        if files:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (files, files))
        self.events: list[tuple[float, dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        if not deaf:
            self._thread.start()
        self._wait_for_answer()
        record = load_gateway(Paths.default())
        self.token = record.token if record else ""
        """For its control endpoints."""

    def _wait_for_answer(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            if ask(self.port, "/health", timeout=5).status == 200:
                return
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        raise RuntimeError(f"gpubox serve did not start: {self.errors.read_text()}")

    @property
    def pid(self) -> int:
        """Of the process that forwards."""
        return self.process.pid

    def status(self) -> dict[str, Any]:
        """GET /gpubox/status."""
        reply = self.control("status")
        assert reply.status == 200, (reply.status, reply.body[:200], reply.error)
        values: dict[str, Any] = reply.json()
        return values

    def control(self, word: str, *, post: bool = False, body: dict[str, Any] | None = None) -> Reply:
        """One control request with the gateway's own token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return ask(self.port, f"/gpubox/{word}", body or ({} if post else None), headers=headers)

    def named(self, name: str) -> list[tuple[float, dict[str, Any]]]:
        """The events of that name."""
        return [(at, event) for at, event in list(self.events) if event.get("event") == name]

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        self._thread.join()

    def stop(self) -> float:
        """Ends it as its owner does. Returns the seconds that took; kills it after 30."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._thread.ident:
            self._thread.join()
        return time.monotonic() - began

    def problems(self) -> str:
        """What it wrote that an owner must never see; empty: nothing."""
        text = self.errors.read_text(errors="replace")
        log = Paths.default().gateway_log
        text += log.read_text(errors="replace") if log.exists() else ""
        return text if "Traceback" in text or "never retrieved" in text else ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append((time.monotonic(), json.loads(line)))


def resident_mib(pid: int) -> float:
    """MiB of memory that it holds now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def descriptors(pid: int) -> int:
    """Its open files and connections."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def cpu_seconds(pid: int) -> float:
    """Processor time of all its threads, exact to the scheduler's nanosecond."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
