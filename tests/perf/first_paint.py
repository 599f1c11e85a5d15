"""Time from exec to the first full paint: `gpubox` against a bare Textual app, interleaved, in a real pty.

usage: first_paint.py [MODEL.gguf] [--engine LLAMA-SERVER] [--runs 9]
Prints each run, both medians and their ratio, with nothing running and, where a model is given, with a server that
serves it; the promise is a ratio of at most 1.5. On a busy machine the ratio of the CPU seconds says more.
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
import termios
import time

import psutil
from box import gpubox, own_folders, profile

from tests.gateway_process import free_port

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
    parser.add_argument("model", nargs="?")
    parser.add_argument("--engine")
    parser.add_argument("--runs", type=int, default=9)
    arguments = parser.parse_args()
    with own_folders(arguments.engine) as folder:
        measure("nothing runs", arguments.runs)
        if arguments.model:
            profile(folder, "load", arguments.model, free_port(), {"ctx-size": 2048, "parallel": 1, "threads": 1})
            gpubox("start", "load")
            measure("a server runs", arguments.runs)


def measure(what: str, runs: int) -> None:
    """Prints the seconds of each run, and the ratios of the medians."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for run in range(runs + 1):
        for name, (argv, text) in COMMANDS.items():
            took = paint(argv, text)
            if run:  # the first of each warms the page cache
                times[name].append(took)
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in times.items()}
    for name, rows in times.items():
        wall, cpu = medians[name]
        print(f"{what:14} {name:7}", " ".join(f"{v:5.2f}" for v, _ in rows), f"  median {wall:.2f} s, CPU {cpu:.2f} s")
    wall, cpu = (of / bare for of, bare in zip(medians["gpubox"], medians["bare"], strict=True))
    print(f"{what:14} ratio {wall:.2f} wall, {cpu:.2f} CPU (promise: at most 1.50)", flush=True)


def paint(argv: list[str], text: bytes) -> tuple[float, float]:
    """Seconds from exec until ``text`` came, and the CPU seconds that the program had used by then."""
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
    cpu = sum(psutil.Process(pid).cpu_times()[:4])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)
    if text not in seen:
        sys.exit(f"{argv} never painted {text!r}; it wrote {seen[-300:]!r}")
    return took, cpu


if __name__ == "__main__":
    main()
