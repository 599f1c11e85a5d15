"""What the open screen costs: CPU, memory and bytes to the terminal, in a real pty beside whatever server runs now.

usage: screen_cost.py [--seconds 30] [--size 160x45] [--warm 8] [gpubox arguments ...]
Drive the server meanwhile with a client of yours for the cost while streaming; leave it alone for the cost at rest.
"""

from __future__ import annotations

import argparse
import time

from box import Screen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm", type=float, default=8)
    parser.add_argument("--size", default="160x45")
    arguments, rest = parser.parse_known_args()
    columns, rows = map(int, arguments.size.split("x"))
    screen = Screen(*rest, columns=columns, rows=rows)
    time.sleep(arguments.warm)
    cpu, written, began = screen.cpu_seconds(), screen.written, time.monotonic()
    time.sleep(arguments.seconds)
    took = time.monotonic() - began
    percent = 100 * (screen.cpu_seconds() - cpu) / took
    sent = (screen.written - written) / took / 1000
    print(
        f"{arguments.size}, {took:.0f} s: CPU {percent:.2f} % of one core, {sent:.1f} kB/s, "
        f"resident {screen.resident():.1f} MiB (peak {screen.resident(peak=True):.1f})"
    )
    screen.close()


if __name__ == "__main__":
    main()
