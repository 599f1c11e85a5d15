"""gpubox's grader beside lm-eval's metric, on canonical solutions that were changed a little: verdicts that differ.

usage: compare_verdicts.py   (runs the changed programs WITHOUT confinement, as the metric does)
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from utils import pass_at_k

from gpubox.bench.kinds.humaneval.dataset import Problem, load_problems
from gpubox.bench.kinds.humaneval.grader import Candidate, grade
from gpubox.config import Config
from gpubox.sandbox.runner import Sandbox

CHANGES = (
    (" + ", " - "), (" - ", " + "), ("<=", "<"), (">=", ">"), (" < ", " <= "), (" > ", " >= "), (" == ", " != "),
    ("True", "False"), ("False", "True"), ("0", "1"), ("1", "2"), (" and ", " or "), ("return ", "return not "),
    ("range(", "range(1, "), (".append(", ".insert(0, "), (" not ", " "), ("min(", "max("), ("max(", "min("),
    ("len(", "sum("), ("sorted(", "list("),
)  # fmt: skip
MOST = 6


def changed(problem: Problem, dice: random.Random) -> list[str]:
    """Up to MOST solutions with one change each, one of them cut off."""
    solution = problem.canonical_solution
    found = {solution[: int(len(solution) * dice.random())]}
    for old, new in dice.choices(CHANGES, k=30):
        if places := [i for i in range(len(solution)) if solution.startswith(old, i)]:
            place = dice.choice(places)
            found.add(solution[:place] + new + solution[place + len(old) :])
    return sorted(found)[:MOST]


def theirs(case: Candidate) -> bool:
    test = f"{case.problem.test}\ncheck({case.problem.entry_point})"
    return bool(pass_at_k([test], [[case.program]], [1]))


def main() -> None:
    dice = random.Random(7)
    cases = [
        Candidate(f"{problem.task_id}#{number}", problem, problem.prompt + solution)
        for problem in load_problems().values()
        for number, solution in enumerate(changed(problem, dice))
    ]
    began = time.monotonic()
    ours = asyncio.run(grade(cases, Sandbox(Config())))
    print(f"gpubox: {sum(v.passed for v in ours.values())} of {len(cases)} pass, {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip([case.id for case in cases], pool.map(theirs, cases), strict=True))
    print(f"lm-eval: {sum(found.values())} of {len(cases)} pass, {time.monotonic() - began:.1f} s")
    differ = [name for name in found if found[name] != ours[name].passed]
    print(f"{len(differ)} verdicts differ")
    for name in differ:
        print(f"{name}: lm-eval {found[name]}, gpubox {ours[name]}")


main()
