"""What starting costs: `gpubox status --json` beside a bare Python, the first frames of the screen beside bare Textual.

usage: start_cost.py [MODEL.gguf] [--engine LLAMA-SERVER] [--other CHECKOUT] [--runs 9]
Interleaved; with nothing running and, where a model is given, with a server that serves it; at 160x45. Prints each run,
the medians, and the ratios to the bare program: on a busy machine only those say something. --other measures another
checkout of gpubox in the same run.

A frame is full when a terminal emulator (pyte) shows the server's state, a profile's row, a figure of memory and the
key bar. `frame` is the first full one, which may be that of the last time, dim; `live` the first without an age. What
the program wrote is kept with its time and read by pyte afterwards, so that the emulator takes no time from it.

The promises, where a bare Python takes 0.02 s: status at most 0.20 s, with a server 0.25 s. Beside a bare app: the
frame at most 1.3 times its wall and 1.5 times its CPU seconds, live figures within 2 times its wall seconds.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
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
import pyte
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
PROFILE = "measured-profile"
COLUMNS, ROWS = 160, 45
QUIET_SECONDS, LONGEST_SECONDS = 0.8, 10.0
"""A program is watched until it writes nothing for so long, but no longer."""
Times = tuple[float, float]
"""Wall and CPU seconds."""
Seen = Callable[[list[str]], bool]
"""Whether the rows of the terminal show what is waited for."""


def main() -> None:
    arguments = options(__doc__, "model?", "--engine", "--other", runs=9)
    with own_folders(arguments.engine) as folder:
        profile(folder, PROFILE, arguments.model or "/no/model.gguf", free_port(), {"ctx-size": 2048, "threads": 1})
        measure("nothing runs", arguments.runs, arguments.other)
        if arguments.model:
            gpubox("start", PROFILE)
            measure("a server runs", arguments.runs, arguments.other)


def measure(when: str, runs: int, other: str | None) -> None:
    """Prints the seconds of each run, and the ratios of the medians."""
    status = {"bare": lambda: [timed([sys.executable, "-c", "pass"])],
              "status": lambda: [timed([GPUBOX, "status", "--json"])]}  # fmt: skip
    compare(when, status, runs)
    screens = {"bare app": lambda: paint([sys.executable, "-c", BARE], lambda rows: "is painted" in rows[0])}
    for name, checkout in (("gpubox", None), ("other", other)):
        if checkout or name == "gpubox":
            argv = ["env", *([f"PYTHONPATH={checkout}"] if checkout else []), sys.executable, "-m", "gpubox"]
            screens[name] = lambda argv=argv: paint(argv, is_full, is_live)  # type: ignore[misc]
    compare(when, screens, runs)


def compare(what: str, programs: dict[str, Callable[[], list[Times]]], runs: int) -> None:
    """For each program and each thing that is waited for a line; ratios are to the first program."""
    rows = [[measured() for measured in programs.values()] for _ in range(runs + 1)][1:]  # the first warms all caches
    bare: Times | None = None
    for column, name in enumerate(programs):
        for mark, times in zip(("", "live"), zip(*(row[column] for row in rows), strict=True), strict=False):
            wall, cpu = (statistics.median(values) for values in zip(*times, strict=True))
            bare = bare or (wall, cpu)
            seconds = " ".join(f"{wall:5.3f}" for wall, _ in times)
            ratio = f"ratio {wall / bare[0]:.2f} wall, {cpu / bare[1]:.2f} CPU"
            print(f"{what:14} {name:8} {mark:4} {seconds}   median {wall:.3f} s, CPU {cpu:.3f} s   {ratio}", flush=True)


def timed(argv: list[str]) -> Times:
    """Wall and CPU seconds of one run; its output is thrown away."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    began = time.monotonic()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=quiet)
    _, _, usage = os.wait4(pid, 0)
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


def is_full(rows: list[str]) -> bool:
    """State, profile, memory and keys, of now or of the last time."""
    text = "\n".join(rows[1:])
    state = re.search(r"[●◌○✗…] .*\b(idle|ready|prefill|answering|stopped|stopping)\b|[●○✗] stopped", rows[0])
    memory = "stopped" in rows[0] or re.search(r"\d [GM]iB", text)  # without a server and a card there is none
    return bool(state and PROFILE in text and memory and "quit" in rows[-1])


def is_live(rows: list[str]) -> bool:
    return is_full(rows) and "as of" not in "\n".join(rows)


def paint(argv: list[str], *marks: Seen) -> list[Times]:
    """For each mark: the seconds from exec until the terminal showed it, and the CPU seconds used by then."""
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.execvp(argv[0], argv)
    process, written = psutil.Process(pid), []
    while time.monotonic() - began < LONGEST_SECONDS:
        if select.select([terminal], [], [], QUIET_SECONDS)[0]:
            data = os.read(terminal, 65536)
            written.append((data, time.monotonic() - began, sum(process.cpu_times()[:4])))
        elif written:
            break
    os.kill(pid, signal.SIGTERM if len(marks) > 1 else signal.SIGKILL)
    while select.select([terminal], [], [], 5)[0]:  # it may say goodbye
        try:
            os.read(terminal, 65536)
        except OSError:
            break
    os.waitpid(pid, 0)
    os.close(terminal)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    found: list[Times] = []
    for data, wall, cpu in written:
        stream.feed(data)
        while len(found) < len(marks) and marks[len(found)](screen.display):
            found.append((wall, cpu))
    if len(found) < len(marks):
        sys.exit(f"{argv} never painted all of it; it shows\n" + "\n".join(screen.display))
    return found


if __name__ == "__main__":
    main()
