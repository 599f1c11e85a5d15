"""What starting costs: `gpubox status --json` beside a bare Python, the screen's first paint beside a bare Textual app.

usage: start_cost.py [MODEL.gguf] [--engine LLAMA-SERVER] [--runs 9]
Interleaved; with nothing running and, where a model is given, with a server that serves it. Prints each run, the
medians, and the ratios to the bare program: on a busy machine only those say something, of CPU seconds most. The
promises, where a bare Python takes 0.02 s: status at most 0.20 s, with a server 0.25 s; the paint at most 1.5 times.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import statistics
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from box import gpubox, options, own_folders, profile

from tests.ports import free_port

GPUBOX = shutil.which("gpubox", path=str(Path(sys.executable).parent)) or sys.exit("gpubox is not installed here")
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("bare app is painted")
Bare().run()
"""
Times = tuple[float, float]
"""Wall and CPU seconds."""


def main() -> None:
    arguments = options(__doc__, "model?", "--engine", runs=9)
    with own_folders(arguments.engine) as folder:
        measure("nothing runs", arguments.runs)
        if arguments.model:
            profile(folder, "load", arguments.model, free_port(), {"ctx-size": 2048, "parallel": 1, "threads": 1})
            gpubox("start", "load")
            measure("a server runs", arguments.runs)


def measure(when: str, runs: int) -> None:
    """Prints the seconds of each run, and the ratios of the medians."""
    compare(
        f"{when}, status",
        lambda: timed([sys.executable, "-c", "pass"]),
        lambda: timed([GPUBOX, "status", "--json"]),
        runs,
    )
    compare(
        f"{when}, paint",
        lambda: paint([sys.executable, "-c", BARE], b"is painted"),
        lambda: paint([sys.executable, "-m", "gpubox"], b"Profiles"),
        runs,
    )


def compare(what: str, bare: Callable[[], Times], gpubox: Callable[[], Times], runs: int) -> None:
    """One line for each of the two, and one for their ratio."""
    rows = [(bare(), gpubox()) for _ in range(runs + 1)][1:]  # the first of each warms the page cache
    medians = []
    for name, times in zip(("bare", "gpubox"), zip(*rows, strict=True), strict=True):
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        medians.append((wall, cpu))
        seconds = " ".join(f"{wall:5.3f}" for wall, _ in times)
        print(f"{what:21} {name:6} {seconds}   median {wall:.3f} s, CPU {cpu:.3f} s")
    wall, cpu = (of / beside for beside, of in zip(*medians, strict=True))
    print(f"{what:21} ratio  {wall:.2f} wall, {cpu:.2f} CPU", flush=True)


def timed(argv: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one run; its output is thrown away."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    began = time.monotonic()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=quiet)
    _, _, usage = os.wait4(pid, 0)
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


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
