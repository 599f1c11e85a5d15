"""The 164 problems as published."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``test`` defines ``check(candidate)`` and is never shown to a model."""

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
    """All problems by task id, in the published order."""
    lines = gzip.decompress(DATASET_FILE.read_bytes()).splitlines()
    problems = [msgspec.json.decode(line, type=Problem) for line in lines if line.strip()]
    return {problem.task_id: problem for problem in problems}
