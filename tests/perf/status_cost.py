"""What one `gpubox status --json` costs: against a bare Python, interleaved, with nothing running and with a server.

usage: status_cost.py [MODEL.gguf] [--engine LLAMA-SERVER] [--runs 15]
Without a model only the first half is measured. Prints the median wall and CPU seconds and their ratio to the bare
interpreter's: on a busy machine only the ratio says something. The promise, where a bare Python takes 0.02 s: at most
0.20 s with nothing running and 0.25 s with a server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from box import gpubox, own_folders, profile

from tests.gateway_process import free_port

GPUBOX = shutil.which("gpubox", path=str(Path(sys.executable).parent)) or sys.exit("gpubox is not installed here")
COMMANDS = {"bare": [sys.executable, "-c", "pass"], "status": [GPUBOX, "status", "--json"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--engine")
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    with own_folders(arguments.engine) as folder:
        measure("nothing runs", arguments.runs)
        if arguments.model:
            profile(folder, "load", arguments.model, free_port(), {"ctx-size": 2048, "parallel": 1, "threads": 1})
            gpubox("start", "load")
            measure("a server runs", arguments.runs)


def measure(what: str, runs: int) -> None:
    """Prints one line for each of COMMANDS, and the ratios."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for run in range(runs + 1):
        for name, argv in COMMANDS.items():
            times = timed(argv)
            if run:  # the first of each warms the page cache
                took[name].append(times)
    medians = {name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in took.items()}
    for name, (wall, cpu) in medians.items():
        print(f"{what:14} {name:7} {wall:.3f} s wall, {cpu:.3f} s CPU (median of {runs})")
    wall, cpu = (of / bare for of, bare in zip(medians["status"], medians["bare"], strict=True))
    print(f"{what:14} ratio   {wall:.1f} wall, {cpu:.1f} CPU", flush=True)


def timed(argv: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one run; its output is thrown away."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    began = time.monotonic()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=quiet)
    _, _, usage = os.wait4(pid, 0)
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
