"""What a run over a workspace costs: an empty one beside one of many files, interleaved, with the layer of one turn.

usage: workspace_time.py [--runs 40] [--files 100000]
Prints p50 and p99 of `true` as a command line and of `pass` as Python, in milliseconds. The promises are p50 <= 40 on
an idle machine, and with 100,000 files at most 1.3 times the empty one. Exits 1 if the ratio is above that.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from gpubox.sandbox.layers import remove_tree
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox

MOST_RATIO = 1.3


def workspace(root: Path, name: str, files: int) -> Policy:
    """A workspace of ``files`` files, 100 a folder, with an empty layer over it."""
    folder, top = root / name / "work", root / name / "chat/1/up"
    folder.mkdir(parents=True)
    top.mkdir(parents=True)
    for number in range(files):
        if number % 100 == 0:
            (folder / f"d{number // 100}").mkdir()
        (folder / f"d{number // 100}/f{number}.py").write_text(f"x = {number}\n")
    return Policy.for_commands(folder, (top,), seconds=60)


async def measure(policies: dict[str, Policy], runs: int) -> dict[tuple[str, str], list[float]]:
    """(kind of program, workspace) -> milliseconds of each run, sorted."""
    sandbox, taken = Sandbox(), dict[tuple[str, str], list[float]]()
    for run in range(runs + 2):
        for name, policy in policies.items():
            for kind, code, shell in (("sh", "true", True), ("python", "pass", False)):
                began = time.perf_counter()
                outcome = await sandbox.run(code, policy, shell=shell)
                if not outcome.ok:
                    sys.exit(f"it did not run: {outcome}")
                if run >= 2:  # the first ones warm the page cache
                    taken.setdefault((kind, name), []).append((time.perf_counter() - began) * 1000)
    return {key: sorted(values) for key, values in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--files", type=int, default=100_000)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="gpubox-workspace-time-"))
    root.chmod(0o755)
    try:
        policies = {name: workspace(root, name, files) for name, files in (("empty", 0), ("large", options.files))}
        taken = asyncio.run(measure(policies, options.runs))
    finally:
        remove_tree(root)
    for (kind, name), values in taken.items():
        p50, p99 = statistics.median(values), values[min(len(values) - 1, len(values) * 99 // 100)]
        print(f"{kind:7} {name:6} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   min {values[0]:6.1f} ms")
    medians = {key: statistics.median(values) for key, values in taken.items()}
    ratios = [medians[kind, "large"] / medians[kind, "empty"] for kind in ("sh", "python")]
    print("ratio", ", ".join(f"{ratio:.2f}" for ratio in ratios), f"(at most {MOST_RATIO})")
    return int(max(ratios) > MOST_RATIO)


sys.exit(main())
