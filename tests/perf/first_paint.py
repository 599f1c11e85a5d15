"""Time from exec to the first full paint: `gpubox` against a bare Textual app, interleaved, in a real pty.

usage: first_paint.py [--runs 9]
Prints each run, both medians and their ratio; the promise is a ratio of at most 1.5.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time

BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("bare app is painted")
Bare().run()
"""
COMMANDS = {
    "bare": ([sys.executable, "-c", BARE], b"is painted"),
    "gpubox": ([sys.executable, "-m", "gpubox"], b"Profiles"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as root:
        for name in ("CONFIG", "STATE", "CACHE"):
            os.environ[f"XDG_{name}_HOME"] = f"{root}/{name}"
        for run in range(runs + 1):
            for name, (argv, text) in COMMANDS.items():
                took = paint(argv, text)
                if run:  # the first of each warms the page cache
                    seconds[name].append(took)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name:7}", " ".join(f"{v:5.2f}" for v in values), f"  median {medians[name]:.2f} s")
    print(f"ratio {medians['gpubox'] / medians['bare']:.2f} (promise: at most 1.50)")


def paint(argv: list[str], text: bytes) -> float:
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(argv[0], argv)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
    seen = b""
    while text not in seen and time.monotonic() - began < 20:
        if select.select([terminal], [], [], 0.5)[0]:
            seen += os.read(terminal, 65536)
    took = time.monotonic() - began
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)
    if text not in seen:
        sys.exit(f"{argv} never painted {text!r}; it wrote {seen[-300:]!r}")
    return took


if __name__ == "__main__":
    main()
