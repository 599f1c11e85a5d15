"""How long a key takes to its painted change: the cursor of the profile list, beside that of a bare Textual list.

usage: key_paint.py MODEL.gguf [--engine LLAMA-SERVER] [--keys 100] [--only SCENE]
The real screen in a pty of 160x45; a terminal emulator (pyte) says when another row is under the cursor. The time is
that of the read that brought the change, so the emulator takes no part in it. Each scene is followed by the bare list:
a machine that is busy makes both slow.

Scenes: at rest; 4 streams at once; 2 MB a second of log; 500 profiles; 10,000 requests in the history; a
stopped server (SIGSTOP). The promise: p95 at most twice that of the bare list.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pyte
from box import Screen, ask, gpubox, options, own_folders, profile

from gpubox.paths import MAIN_INSTANCE, Paths
from tests.history_box import simulate, store
from tests.ports import free_port

BARE = """
from textual.app import App
from textual.widgets import OptionList
class Bare(App):
    def compose(self):
        yield OptionList(*(f"option {n}" for n in range(500)))
Bare().run()
"""
COLUMNS, ROWS = 160, 45
UP, DOWN = b"\x1b[A", b"\x1b[B"
LATEST_SECONDS = 10.0
NAME = "measured"


class Terminal(Screen):
    """A Screen whose output a terminal emulator shows."""

    def __init__(self, *words: str, argv: list[str] | None = None) -> None:
        self.came: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        super().__init__(*words, argv=argv)

    def took(self, data: bytes) -> None:
        super().took(data)
        self.came.put((time.monotonic(), data))

    def show(self, seconds: float) -> float | None:
        """Shows what comes next; when it came. None: nothing came."""
        try:
            at, data = self.came.get(timeout=seconds)
        except queue.Empty:
            return None
        self.stream.feed(data)
        return at

    def cursor(self, column: int) -> str:
        """The start of the row whose background differs from that of most; the first and last ones are bars."""
        colours = [self.screen.buffer[y][column].bg for y in range(ROWS)]
        [(usual, _)] = Counter(colours).most_common(1)
        row = next((y for y, colour in enumerate(colours[1:-1], 1) if colour != usual), None)
        return "" if row is None else self.screen.display[row][:24]

    def press(self, key: bytes, column: int) -> float:
        """Seconds from the key to another row under the cursor. Ends the script if none comes."""
        while self.show(0.0) is not None:
            pass
        before, began = self.cursor(column), time.monotonic()
        os.write(self.terminal, key)
        while (left := began + LATEST_SECONDS - time.monotonic()) > 0:
            at = self.show(left)
            if at is not None and self.cursor(column) not in (before, ""):
                return at - began
        sys.exit("the cursor did not move; the terminal shows\n" + "\n".join(self.screen.display))


def main() -> None:
    arguments = options(__doc__, "model", "--engine", "--only", keys=100)
    port = free_port()
    with own_folders(arguments.engine) as folder:
        flags: dict[str, object] = {"ctx-size": 8192, "parallel": 4, "threads": 1}
        profile(folder, NAME, arguments.model, port, flags)
        for number in range(5):
            profile(folder, f"other-{number}", arguments.model, port, {})
        gpubox("start", NAME)
        scenes: dict[str, Callable[[], object]] = {
            "at rest": ExitStack,
            "4 streams": lambda: streams(f"http://127.0.0.1:{port}"),
            "2 MB/s of log": flood,
            "500 profiles": lambda: many_profiles(folder, arguments.model),
            "10,000 requests": many_requests,
            "stopped server": stopped_server,
        }
        for name, scene in scenes.items():
            if arguments.only in (None, name):
                with scene():  # type: ignore[attr-defined]
                    measure(name, Terminal(), arguments.keys, column=4)
                    measure("  bare list", Terminal(argv=[sys.executable, "-c", BARE]), arguments.keys, column=4)


def measure(name: str, terminal: Terminal, keys: int, column: int) -> None:
    """One line of figures."""
    end = time.monotonic() + 6
    while time.monotonic() < end:  # it starts, and draws what it draws at once
        terminal.show(0.2)
    waits, took = random.Random(1), []
    for number in range(keys):
        rest = time.monotonic() + waits.uniform(0.1, 0.3)
        while (left := rest - time.monotonic()) > 0:
            terminal.show(left)
        took.append(terminal.press(UP if number % 2 else DOWN, column))
    terminal.close()
    took.sort()
    p50, p95 = (1000 * took[int(share * (len(took) - 1))] for share in (0.5, 0.95))
    print(f"{name:16} p50 {p50:6.1f} ms   p95 {p95:6.1f} ms   most {1000 * took[-1]:6.1f} ms", flush=True)


@contextmanager
def streams(base: str, count: int = 4) -> Iterator[None]:
    """So many answers at once, without end."""
    closing = threading.Event()

    def work() -> None:
        while not closing.is_set():
            with suppress(OSError):  # the script ends
                ask(base, "/completion", {"prompt": "Once upon a time", "n_predict": 256, "ignore_eos": True})

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    closing.set()
    for thread in threads:
        thread.join()


@contextmanager
def flood(bytes_per_second: int = 2_000_000) -> Iterator[None]:
    """The server's log grows as if it were told to say everything."""
    closing = threading.Event()

    def work() -> None:
        number = 0
        with Paths.default().instance_log(MAIN_INSTANCE).open("a") as log:
            while not closing.wait(0.05):
                for _ in range(bytes_per_second // 20 // 150):
                    number += 1
                    log.write(f"0.09.000.{number % 1000:03} D slot {number} says so: {'word ' * 22}\n")
                log.flush()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    closing.set()
    thread.join()


@contextmanager
def many_profiles(folder: Path, model: str) -> Iterator[None]:
    names = [f"many-{number:03}" for number in range(500)]
    for name in names:
        profile(folder, name, model, 0, {"ctx-size": 2048})
    yield
    for name in names:
        (folder / "profiles" / f"{name}.toml").unlink()


@contextmanager
def many_requests() -> Iterator[None]:
    path = Paths.default().history
    path.unlink(missing_ok=True)
    store(simulate(1, 90, 10_000), path)
    yield


@contextmanager
def stopped_server() -> Iterator[None]:
    server = psutil.Process(json.loads(gpubox("status", "--json"))["server"]["pid"])
    server.send_signal(signal.SIGSTOP)
    yield
    server.send_signal(signal.SIGCONT)


if __name__ == "__main__":
    main()
