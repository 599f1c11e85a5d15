"""What the kernel holds while programs take all they can: each confined, with the host's kernel memory watched.

usage: python -m tests.perf.kernel_memory [NAME ...] [--as-user] [--landlock]
For each program: how its run ended, and the most that slab, page tables, kernel stacks, sockets and pages that nobody
counts (pipes and socket buffers are such) rose above what they were, in MiB. The promise is at most 256 in all.
Run it as root and as an ordinary user, on a machine with nothing else to do: the readings are the whole machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from pathlib import Path

from gpubox.config import Config
from gpubox.sandbox.bubblewrap import installed
from gpubox.sandbox.policy import Confinement, Policy
from gpubox.sandbox.runner import Sandbox, probe
from tests.hostile.kernel_greed import PROGRAMS, SPREAD


class Host:
    """The kernel's memory on this machine, read 200 times a second by a thread."""

    def __init__(self) -> None:
        self.first = self.read()
        self.most = dict.fromkeys(self.first, 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def read(self) -> dict[str, float]:
        words = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
        found = {word[0].rstrip(":"): int(word[1]) / 1024 for word in words}
        sockets = Path("/proc/net/sockstat").read_text().split()
        pages = [int(sockets[at + 1]) for at, word in enumerate(sockets) if word == "mem"]
        known = ("MemFree", "Active", "Inactive", "Unevictable", "Slab", "KernelStack", "PageTables")
        rest = found["MemTotal"] - sum(found[name] for name in known)
        return {
            "slab": found["Slab"],
            "tables": found["PageTables"],
            "stacks": found["KernelStack"],
            "sockets": sum(pages) * 4096 / 2**20,
            "uncounted": rest,
            "all": found["Slab"] + found["PageTables"] + found["KernelStack"] + rest,
        }

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            for name, value in self.read().items():
                self.most[name] = max(self.most[name], value - self.first[name])

    def end(self) -> dict[str, float]:
        self._over.set()
        self._thread.join()
        return self.most


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--as-user", action="store_true", help="as root: bwrap started by an unused user")
    parser.add_argument("--landlock", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    confinement = await probe(Config())
    if options.landlock:
        confinement = Confinement("landlock", "Landlock")
    elif options.as_user and os.geteuid() == 0:
        confinement = Confinement("bubblewrap", confinement.detail, program=installed()[0])
    sandbox, worst = Sandbox(confinement=confinement), 0.0
    print(f"{confinement.detail}, uid {os.geteuid()}")
    for name, code in PROGRAMS.items():
        if options.names and name not in options.names:
            continue
        host, began = Host(), time.monotonic()
        outcome = await sandbox.run(SPREAD + code, Policy(wall_seconds=options.seconds))
        most = host.end()
        how = outcome.why or (f"exit {outcome.exit_code}" if outcome.signal is None else outcome.signal)
        last = (outcome.output.strip().splitlines() or [""])[-1][:40]
        worst = max(worst, most["all"])
        parts = "  ".join(f"{key} {value:4.0f}" for key, value in most.items() if value >= 1)
        print(f"{name:34} {time.monotonic() - began:5.1f} s  {parts:70} {how}  {last}", flush=True)
        await asyncio.sleep(0.5)
    print(f"the most: {worst:.0f} MiB")
    sys.exit(worst > 256)


asyncio.run(main())
