"""What confinement costs: N confined runs of print(1), beside a bare interpreter and an empty bwrap, interleaved.

usage: sandbox_time.py [--runs 100] [--as-user]
Prints p50, p99 and the slowest of each in milliseconds; the promise is p50 <= 45 and p99 <= 90 on an idle machine.
As root, --as-user has bubblewrap started by an unused user, in a user namespace, as an ordinary user's gpubox does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from gpubox.config import Config
from gpubox.sandbox.bubblewrap import installed
from gpubox.sandbox.interpreter import find_interpreter
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.runner import Sandbox, probe

ENDS = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--as-user", action="store_true")
    options = parser.parse_args()
    confinement = await probe(Config())
    if options.as_user and os.geteuid() == 0:
        confinement = Confinement("bubblewrap", confinement.detail, program=installed()[0])
    sandbox, python = Sandbox(confinement=confinement), find_interpreter()
    user = 1_900_000_000 if options.as_user and os.geteuid() == 0 else None

    async def confined() -> None:
        outcome = await sandbox.run("print(1)")
        if outcome.output != "1\n":
            sys.exit(f"it did not run: {outcome}")

    def ran(argv: list[str]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, user=user)  # noqa: ASYNC221 - timed alone

        return run

    path = python.command("")[0] if python.prefix is None else sys.executable
    works = {
        "python -I -c pass": ran([path, "-I", "-c", "pass"]),
        "bwrap true": ran([confinement.program, *ENDS, "--unshare-all", "/usr/bin/true"]),
        "confined print(1)": confined,
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for run in range(options.runs + 3):
        for name, work in works.items():
            began = time.perf_counter()
            await work()
            if run >= 3:  # the first ones warm the page cache
                taken[name].append((time.perf_counter() - began) * 1000)
    print(f"{confinement.detail}, {'root' if os.geteuid() == 0 and not user else 'ordinary user'}, n={options.runs}")
    for name, values in taken.items():
        values.sort()
        p50, p99 = values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)]
        print(f"{name:18} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   max {values[-1]:6.1f} ms")


asyncio.run(main())
