"""What watching costs: the screen's CPU, memory and terminal output, and the server's tok/s with and without it.

usage: cost.py MODEL.gguf [--engine LLAMA-SERVER] [--seconds 60] [--pairs 10]
The promise, at 160x45: <= 3 % of one core at rest, <= 5 % streaming, <= 70 MiB, <= 100 kB/s of terminal output, and
less than 1 % between the server's own tok/s with and without gpubox watching (paired, in turns).
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
import threading
import time

import psutil
from box import ask, gpubox, own_folders, profile

PORT = 8395
BASE = f"http://127.0.0.1:{PORT}"


class Screen:
    """`gpubox` in a pty of 160x45; its output is read and counted."""

    def __init__(self) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "gpubox"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        self.written = 0
        self._open = True
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while self._open:
            if select.select([self.terminal], [], [], 0.2)[0]:
                try:
                    self.written += len(os.read(self.terminal, 65536))
                except OSError:
                    return

    def measure(self, seconds: float) -> tuple[float, float, float]:
        """``(percent of one core, MiB resident, kB/s written)`` over ``seconds``."""
        process = psutil.Process(self.pid)
        before, written = sum(process.cpu_times()[:2]), self.written
        time.sleep(seconds)
        used = sum(process.cpu_times()[:2]) - before
        memory = process.memory_info().rss / 1024**2
        return 100 * used / seconds, memory, (self.written - written) / seconds / 1000

    def close(self) -> None:
        """Ends the screen; the server stays."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._open = False
        self._thread.join()
        os.close(self.terminal)


class Load:
    """One endless stream of answers, from another thread; the server does the work."""

    def __init__(self, tokens: int = 400) -> None:
        self.speeds: list[float] = []
        self._stop = False
        self._tokens = tokens
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            self.speeds.append(generate(self._tokens))

    def close(self) -> None:
        """Lets the last answer end."""
        self._stop = True
        self._thread.join()


def generate(tokens: int) -> float:
    """The server's own tok/s of one answer."""
    body = {"prompt": "Once upon a time", "n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
    return float(ask(BASE, "/completion", body)["timings"]["predicted_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--engine")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    with own_folders(arguments.engine) as folder:
        # one thread leaves a core to the screen: what it takes from the server is then its questions, not its cycles
        profile(folder, "load", arguments.model, PORT, {"ctx-size": 4096, "parallel": 1, "threads": 1})
        gpubox("start", "load")
        screen = Screen()
        time.sleep(5)
        show("at rest", *screen.measure(arguments.seconds))
        load = Load()
        time.sleep(3)
        show("streaming", *screen.measure(arguments.seconds))
        load.close()
        screen.close()
        paired(arguments.pairs)


def show(what: str, percent: float, memory: float, written: float) -> None:
    cost = f"{percent:5.2f} % of one core   {memory:5.1f} MiB   {written:6.2f} kB/s to the terminal"
    print(f"{what:10} {cost}", flush=True)


def paired(pairs: int) -> None:
    """In turns with and without the screen; the ratio pair by pair."""
    ratios = []
    generate(200)
    for _ in range(pairs):
        alone = generate(300)
        screen = Screen()
        time.sleep(2)
        watched = generate(300)
        screen.close()
        ratios.append(watched / alone)
    spread = " ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"tok/s watched / alone: median {statistics.median(ratios):.4f}  ({spread})")


main()
