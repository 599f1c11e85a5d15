"""What the open screen costs: CPU, memory and bytes to the terminal, in a real pty beside whatever server runs now.

usage: screen_cost.py [--seconds 30] [--size 160x45] [--warm 8] [gpubox arguments ...]
Drive the server meanwhile with a client of yours for the cost while streaming; leave it alone for the cost at rest.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm", type=float, default=8)
    parser.add_argument("--size", default="160x45")
    arguments, rest = parser.parse_known_args()
    columns, rows = map(int, arguments.size.split("x"))
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.execvp(sys.executable, [sys.executable, "-m", "gpubox", *rest])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    drain(terminal, arguments.warm)
    before, began = cpu_seconds(pid), time.monotonic()
    sent = drain(terminal, arguments.seconds)
    took = time.monotonic() - began
    used = cpu_seconds(pid) - before
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print(f"{arguments.size}, {took:.0f} s: CPU {used / took:.1%} of one core, {sent / took / 1000:.1f} kB/s, "
          f"resident {resident / 2**20:.0f} MiB")  # fmt: skip
    os.kill(pid, signal.SIGTERM)
    drain(terminal, 0.5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def drain(terminal: int, seconds: float) -> int:
    """Reads what comes for ``seconds``; how many bytes that were."""
    end, count = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                count += len(os.read(terminal, 65536))
            except OSError:
                break
    return count


def cpu_seconds(pid: int) -> float:
    """User and system time of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
