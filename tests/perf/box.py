"""What the measuring scripts share: folders of their own, profiles, the command line, and requests to a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w


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

    def between(self, begin: float, end: float) -> list[dict[str, Any]]:
        """The lines that came in a stretch of time."""
        return [values for at, values in list(self.lines) if begin <= at <= end]

    def wait_for(self, count: int) -> None:
        """Returns when ``count`` more lines have come."""
        target = len(self.lines) + count
        while len(self.lines) < target:
            time.sleep(0.02)

    def close(self) -> None:
        """Ends the watching."""
        self.process.terminate()
        self.process.wait()
