"""What watching costs: the screen's CPU, memory and terminal output, and the server's tok/s with and without it.

usage: cost.py MODEL.gguf [--engine LLAMA-SERVER] [--seconds 60] [--pairs 10] [--pair 40] [--beside "nvitop; ..."]
Takes about 2.5 minutes and, for the pairs, --pairs * --pair seconds and a bit more: 8 minutes as it stands.

Who measures what, each a process of its own:
  gpubox        the screen in a pty of 160x45. Its CPU is the kernel's count for that process, all threads and children
                it waited for included, after its start has settled; RSS likewise (now, and the most since its start)
  llama-server  its tok/s are its own: predicted_n over predicted_ms of its answers. Its CPU at rest is the kernel's
                count too: what answering gpubox's questions costs it
  --beside      other programs, one after the other, in the same pty with the same work: the ratio holds on any machine;
                {base} stands for the address of the server
  this script   reads the pty and counts the bytes; asks for answers without streaming, so that the client is idle
The server has one thread by default: with more threads than cores - 1 it competes with everything that runs.

tok/s, watched / alone: one answer alone, two watched, one alone, and so on for --pair seconds; a pair is the sum of
these. Alone means that the screen is stopped (SIGSTOP), so that alone and watched lie seconds apart and a machine that
slows down or up meanwhile does so in both. Every answer is the same work, token for token. Longer or more pairs tell
smaller differences: the standard error says what they tell.

The promise: <= 1 % of one core at rest, <= 2 % streaming, <= 70 MiB, <= 100 kB/s of terminal output, and less than
1 % of the server's tok/s.
"""

from __future__ import annotations

import json
import math
import statistics
import threading
import time
from typing import Any

import psutil
from box import Screen, ask, gpubox, options, own_folders, profile

from tests.ports import free_port

TOKENS = 128
"""Of one answer of a pair."""
SETTLE = 3.0
"""Seconds for which a new screen draws itself before it counts."""
CATCH_UP = 0.5
"""Seconds in which a screen that goes on reads what it missed: a screen that was never stopped has missed nothing."""


def main() -> None:
    arguments = options(__doc__, "model", "--engine", "--beside", seconds=60.0, pairs=10, pair=40.0, threads=1)
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with own_folders(arguments.engine) as folder:
        flags: dict[str, object] = {"ctx-size": 4096, "parallel": 1, "threads": arguments.threads}
        profile(folder, "load", arguments.model, port, flags)
        gpubox("start", "load")
        server = psutil.Process(json.loads(gpubox("status", "--json"))["server"]["pid"])
        if arguments.seconds:
            alone_and_streaming(
                base, server, arguments.seconds, [c.format(base=base) for c in (arguments.beside or "").split(";") if c]
            )
        if arguments.pairs:
            paired(base, arguments.pairs, arguments.pair)


# -- the screen itself -------------------------------------------------------------------------------------


def alone_and_streaming(base: str, server: psutil.Process, seconds: float, beside: list[str]) -> None:
    """The screen beside an idle server and beside one that generates without a pause."""
    before, began = used(server), time.monotonic()
    time.sleep(min(seconds, 15))
    idle = 100 * (used(server) - before) / (time.monotonic() - began)
    screen = Screen()
    screen.painted()
    time.sleep(SETTLE)
    before, began = used(server), time.monotonic()
    show("at rest", 1, *cost_of(screen, seconds))
    watched = 100 * (used(server) - before) / (time.monotonic() - began)
    print(f"{'':10} llama-server at rest: {watched:.2f} % of one core watched, {idle:.2f} % alone", flush=True)
    load = Load(base)
    time.sleep(SETTLE)
    show("streaming", 2, *cost_of(screen, seconds))
    cost_beside("streaming", 2, beside, seconds)
    speeds = load.close()
    print(f"{'':10} llama-server generated {statistics.fmean(speeds):.1f} tok/s meanwhile", flush=True)
    cost_beside("at rest", 1, beside, seconds)
    screen.close()


def cost_beside(what: str, allowed: int, commands: list[str], seconds: float) -> None:
    """What other programs take for the same."""
    for command in commands:
        other = Screen(argv=["/usr/bin/env", *command.split()])
        time.sleep(2 * SETTLE)
        show(f"{what}, {command.split()[-1]}", allowed, *cost_of(other, seconds))
        other.close()


def cost_of(screen: Screen, seconds: float) -> tuple[float, float, float, float]:
    """``(percent of one core, MiB now, MiB at most, kB/s written)`` over ``seconds``."""
    before, written, began = screen.cpu_seconds(), screen.written, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    percent = 100 * (screen.cpu_seconds() - before) / took
    return percent, screen.resident(), screen.resident(peak=True), (screen.written - written) / took / 1000


def show(what: str, allowed: int, percent: float, memory: float, peak: float, written: float) -> None:
    kept = percent <= allowed and peak <= 70 and written <= 100
    cost = (
        f"CPU {percent:5.2f} % of one core   RSS {memory:5.1f} MiB (peak {peak:.1f})   {written:6.2f} kB/s to the pty"
    )
    print(f"{what:18} {cost}   {'kept' if kept else 'NOT KEPT'}", flush=True)


def used(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


class Load:
    """One answer after the other, asked for by another thread; the server does the work."""

    def __init__(self, base: str) -> None:
        self.speeds: list[float] = []
        self._base = base
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            timings = generate(self._base, 1024)
            self.speeds.append(timings["predicted_per_second"])

    def close(self) -> list[float]:
        """Lets the last answer end; the speeds of all."""
        self._closing = True
        self._thread.join()
        return self.speeds


# -- the server beside it ----------------------------------------------------------------------------------


def generate(base: str, tokens: int) -> dict[str, Any]:
    """The server's own timings of one answer; with the same ``tokens`` it is always the same answer."""
    body = {
        "prompt": "Once upon a time", "n_predict": tokens, "ignore_eos": True, "cache_prompt": False,
        "temperature": 0, "seed": 1,
    }  # fmt: skip
    return dict(ask(base, "/completion", body)["timings"])


def paired(base: str, pairs: int, seconds: float) -> None:
    """Alone, watched, watched, alone, again and again; the ratio of the speeds, pair by pair."""
    screen = Screen()
    screen.painted()
    time.sleep(SETTLE)
    timings = [generate(base, TOKENS) for _ in range(4)]
    rounds = max(1, round(seconds * 1000 / sum(one["predicted_ms"] for one in timings)))
    print(f"tok/s {pairs} pairs of {rounds} x (alone, watched, watched, alone), {TOKENS} tokens each", flush=True)
    ratios = []
    for number in range(pairs):
        took = {"alone": 0.0, "watched": 0.0}
        for _ in range(rounds):
            for who in ("alone", "watched", "watched", "alone"):
                screen.stop() if who == "alone" else screen.go_on()
                time.sleep(CATCH_UP)
                took[who] += generate(base, TOKENS)["predicted_ms"]
        alone, watched = (2 * rounds * TOKENS * 1000 / took[who] for who in ("alone", "watched"))
        ratios.append(watched / alone)
        print(f"  {number + 1:2}  alone {alone:7.2f}  watched {watched:7.2f}  ratio {ratios[-1]:.4f}", flush=True)
    screen.go_on()
    screen.cpu_seconds()  # ends the script where the screen did not live to the end
    screen.close()
    error = statistics.stdev(ratios) / math.sqrt(pairs) if pairs > 1 else math.nan
    median, mean = statistics.median(ratios), statistics.fmean(ratios)
    told = "tells 1 %" if 2 * error < 0.01 else "too noisy to tell 1 %: more or longer pairs"
    print(f"tok/s watched / alone: median {median:.4f}, mean {mean:.4f}, standard error {error:.4f} ({told})")


if __name__ == "__main__":
    main()
