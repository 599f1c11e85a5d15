"""What the measuring scripts share: folders of their own, profiles, the command line, and requests to a server."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import tomli_w

WAIT_SECONDS = 120.0
"""Longer than anything that is waited for takes; then the script ends instead of hanging."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an owner's gpubox is compiled once, not at each start


def options(usage: str | None, *names: str, **defaults: Any) -> argparse.Namespace:
    """The words of the command line. ``model`` must be given, ``model?`` may be, ``models+`` are several.

    ``--engine`` is an option without a default; ``defaults`` are options with one, and with its type.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # then the servers that it started end, too
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawTextHelpFormatter)
    for name in names:
        parser.add_argument(name.rstrip("?+"), nargs=name[-1] if name[-1] in "?+" else None)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()


@contextmanager
def own_folders(engine: str | None) -> Iterator[Path]:
    """XDG folders under a temporary root; ``engine`` becomes the default engine (``None``: the embedded one)."""
    with tempfile.TemporaryDirectory() as root:
        for name in ("CONFIG", "STATE", "CACHE"):
            os.environ[f"XDG_{name}_HOME"] = f"{root}/{name}"
        folder = Path(root) / "CONFIG/gpubox"
        (folder / "profiles").mkdir(parents=True)
        lines = ['default-engine = "real"', "[engines]", f'real = "{engine}"'] if engine else []
        (folder / "config.toml").write_text("\n".join(lines or ['default-engine = "embedded"']))
        try:
            yield folder
        finally:
            gpubox("stop", "--all", check=False)


def profile(folder: Path, name: str, model: str, port: int, flags: dict[str, object]) -> None:
    """Writes one profile."""
    values = {"model": model, "port": port, "flags": flags}
    (folder / "profiles" / f"{name}.toml").write_text(tomli_w.dumps(values))


def gpubox(*words: str, check: bool = True) -> str:
    """What the command printed; ends the script when it fails."""
    done = subprocess.run([sys.executable, "-m", "gpubox", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"gpubox {' '.join(words)}: {done.stderr}")
    return done.stdout


def ask(base: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One JSON answer."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def until(true: Callable[[], bool], what: str) -> None:
    """Returns when ``true()`` is; ends the script when that takes WAIT_SECONDS."""
    end = time.monotonic() + WAIT_SECONDS
    while not true():
        if time.monotonic() > end:
            sys.exit(f"{what}: not in {WAIT_SECONDS:.0f} s")
        time.sleep(0.02)


class Watcher:
    """``gpubox status --json --watch`` in a process of its own; every line with the time it came."""

    def __init__(self, period: float = 0.25) -> None:
        argv = [sys.executable, "-m", "gpubox", "status", "--json", "--watch", str(period)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), json.loads(line)))

    def between(self, begin: float, end: float) -> list[tuple[float, dict[str, Any]]]:
        """The lines that came in a stretch of time, each with its time."""
        return [(at, values) for at, values in list(self.lines) if begin <= at <= end]

    def last(self) -> dict[str, Any]:
        """The newest line."""
        return self.lines[-1][1]

    def wait_for(self, count: int) -> None:
        """Returns when ``count`` more lines have come."""
        target = len(self.lines) + count
        until(lambda: len(self.lines) >= target or self.process.poll() is not None, f"{count} lines of status --watch")
        if self.process.poll() is not None:
            sys.exit(f"gpubox status --watch ended with code {self.process.returncode}")

    def close(self) -> None:
        """Ends the watching."""
        self.process.kill()
        self.process.wait()
        self._thread.join()


class Screen:
    """``gpubox``, or ``argv``, in a pty; its output is read, counted and thrown away, as a terminal would draw it."""

    def __init__(self, *words: str, argv: list[str] | None = None, columns: int = 160, rows: int = 45) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
            argv = argv or [sys.executable, "-m", "gpubox", *words]
            os.execv(argv[0], argv)
        self.process = psutil.Process(self.pid)
        self.written = 0
        self._closing = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._closing:
            if select.select([self.terminal], [], [], 0.2)[0]:
                try:
                    self.took(os.read(self.terminal, 65536))
                except OSError:  # it ended
                    return

    def took(self, data: bytes) -> None:
        """Called by the reading thread with what the program wrote."""
        self.written += len(data)

    def painted(self) -> None:
        """Returns when the screen has drawn itself and then was quiet for a second or drew on for five."""
        until(lambda: self.written > 2000, "the screen's first paint")
        end, before = time.monotonic() + 5, -1
        while time.monotonic() < end and before != self.written:
            before = self.written
            time.sleep(1)

    def cpu_seconds(self) -> float:
        """User and system time so far, of all its threads and of the children it has waited for."""
        if self.process.status() == psutil.STATUS_ZOMBIE:
            sys.exit("the screen ended while it was measured")
        return float(sum(self.process.cpu_times()[:4]))

    def resident(self, *, peak: bool = False) -> float:
        """MiB resident now, or the most since its start."""
        name = "VmHWM:" if peak else "VmRSS:"
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    def stop(self) -> None:
        """Lets the screen do nothing until ``go_on``."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Ends the screen; the server stays."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._closing = True
        self._thread.join()
        os.close(self.terminal)
