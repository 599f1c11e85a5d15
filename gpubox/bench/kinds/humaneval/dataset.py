"""The 164 problems, as they are published."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``test`` defines ``check(candidate)``; no model ever sees it."""

    task_id: str
    """``HumanEval/17``."""
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str

    @property
    def number(self) -> int:
        return int(self.task_id.rpartition("/")[2])


DATASET_FILE = files("gpubox.bench.kinds.humaneval").joinpath("data/HumanEval.jsonl.gz")


@cache
def load_problems() -> dict[str, Problem]:
    """By task id, in their order."""
    packed = DATASET_FILE.read_bytes()
    found = [msgspec.json.decode(line, type=Problem) for line in gzip.decompress(packed).splitlines() if line.strip()]
    return {problem.task_id: problem for problem in found}
