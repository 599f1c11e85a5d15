"""What grading costs: the 164 canonical solutions, each judged, in seconds of wall and of CPU.

usage: grading.py [TIMES]
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time

from gpubox.bench.kinds.humaneval.dataset import load_problems
from gpubox.bench.kinds.humaneval.grader import Candidate, grade
from gpubox.config import Config
from gpubox.sandbox.runner import Sandbox


def cpu_seconds() -> float:
    return sum(
        use.ru_utime + use.ru_stime for use in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main(times: int) -> None:
    sandbox = Sandbox(Config())
    print(asyncio.run(sandbox.confinement()).detail)
    cases = [Candidate(p.task_id, p, p.prompt + p.canonical_solution) for p in load_problems().values()]
    for _ in range(times):
        began, used = time.monotonic(), cpu_seconds()
        verdicts = asyncio.run(grade(cases, sandbox))
        passed = sum(verdict.passed for verdict in verdicts.values())
        print(f"{passed} of {len(cases)}: {time.monotonic() - began:.2f} s wall, {cpu_seconds() - used:.2f} s CPU")


main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
