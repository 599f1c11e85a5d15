"""`gpubox switch` against the same stop, start and first token done by hand in a shell, interleaved.

usage: switch_time.py LLAMA-SERVER MODEL.gguf [MODEL-B.gguf] [--runs 7]
Prints the seconds of each run, both medians, and gpubox - (by hand * 1.10): it must not be over 0.5 s.
By hand means: kill -TERM, wait for the end, start with the very same argv, poll /health each 10 ms, ask for
one token. The clock runs from the command to the proven token.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from box import gpubox, options, own_folders, profile

from tests.ports import free_port

BY_HAND = r"""
set -e
kill -TERM "$1"; while [ -e "/proc/$1/exe" ]; do sleep 0.01; done  # an unreaped zombie has no exe
shift; log=$1; shift
setsid "$@" >"$log" 2>&1 </dev/null &
echo $!
until curl -sf -o /dev/null "$BASE/health"; do sleep 0.01; done
curl -sf -o /dev/null "$BASE/completion" -d '{"prompt":"hi","n_predict":1}'
"""


def main() -> None:
    arguments = options(__doc__, "engine", "models+", runs=7, port=free_port())
    with own_folders(arguments.engine) as folder:
        compare(folder, arguments)


def compare(folder: Path, arguments: argparse.Namespace) -> None:
    models = [arguments.models[0], arguments.models[-1]]
    for name, model, ctx in zip("ab", models, (4096, 8192), strict=True):
        profile(folder, name, model, arguments.port, {"ctx-size": ctx, "parallel": 1})
    gpubox("start", "a")
    argv = {"a": argv_of("a"), "b": argv_of("b")}
    seconds: dict[str, list[float]] = {"gpubox": [], "by hand": []}
    for run in range(arguments.runs):
        for way in ("gpubox", "by hand") if run % 2 else ("by hand", "gpubox"):
            gpubox("switch", "a")
            began = time.monotonic()
            if way == "gpubox":
                gpubox("switch", "b")
                seconds[way].append(time.monotonic() - began)
            else:
                started = by_hand(pid_of_server(), argv["b"], arguments.port, folder)
                seconds[way].append(time.monotonic() - began)
                os.kill(started, signal.SIGKILL)
    report(seconds)


def report(seconds: dict[str, list[float]]) -> None:
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    for way, values in seconds.items():
        print(f"{way:8}", " ".join(f"{v:6.2f}" for v in values), f"  median {medians[way]:.2f} s")
    over = medians["gpubox"] - medians["by hand"]
    print(f"gpubox takes {over:+.2f} s, allowed {medians['by hand'] * 0.10 + 0.5:+.2f} s (10% + 0.5 s)")


def argv_of(name: str) -> list[str]:
    return list(json.loads(gpubox("show", name, "--json"))["argv"])


def pid_of_server() -> int:
    return int(json.loads(gpubox("status", "--json"))["server"]["pid"])


def by_hand(pid: int, argv: list[str], port: int, folder: Path) -> int:
    env = {**os.environ, "BASE": f"http://127.0.0.1:{port}"}
    words = ["sh", "-c", BY_HAND, "sh", str(pid), str(folder / "by-hand.log"), *argv]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        return int(shell.stdout.readline()) if shell.wait() == 0 else sys.exit("by hand failed")


if __name__ == "__main__":
    main()
