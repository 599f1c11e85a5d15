"""Passed or not: programs against the hidden tests, many to one start of the sandbox, none of them trusted."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.bench.kinds.humaneval import judge, seccomp_filter
from gpubox.bench.kinds.humaneval.dataset import Problem
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox

_TEXT = Path(judge.__file__).read_text(encoding="utf-8")
CPU_SECONDS = 3
"""Of one program, its tests included: lm-eval's timeout."""
BATCH_SIZE = 21
"""Candidates of one start of the sandbox: it costs as much as two or three of them."""
_BATCH_BYTES = 512 * 1024
_MARK = 64
"""Characters of a verdict's signature."""
MAX_PROGRAM_CHARACTERS = 200_000
"""Characters of a program; more is no solution."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One program to grade. ``id`` is the caller's, unique among those graded together."""

    id: str
    problem: Problem
    program: str
    """Whole: with the prompt ahead of the completion."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What came of one case."""

    kind: str
    """passed | assertion | error | definition | timeout | died"""
    why: str = ""
    """The check that failed, or the exception: text of the model's program, never markup."""

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


async def grade(
    cases: Sequence[Candidate], sandbox: Sandbox, *, jobs: int = 2, cpu_seconds: int = CPU_SECONDS
) -> dict[str, Grade]:
    """The verdict of every case, ``jobs`` sandboxes at a time, ``cpu_seconds`` for each case.

    One that leaves something behind has the others graded in a fresh sandbox; one that takes its judge down is graded
    again alone. Raises GpuboxError where nothing confines, and where a right answer has no verdict either: what cannot
    be graded is never a failure of the model's.
    """
    found = {
        case.id: Grade("definition", "too long to be one")
        for case in cases
        if len(case.program) > MAX_PROGRAM_CHARACTERS
    }
    waiting = [case for case in cases if case.id not in found]
    suspects: list[Candidate] = []
    while waiting:
        verdicts, blamed = await _all(waiting, sandbox, jobs, BATCH_SIZE, cpu_seconds)
        found |= verdicts
        suspects += blamed if verdicts else waiting
        known = {*found, *(case.id for case in suspects)}
        waiting = [case for case in waiting if case.id not in known]
    found |= await _alone(suspects, sandbox, jobs, cpu_seconds)
    return {case.id: found.get(case.id, Grade("died", "it ended its judge")) for case in cases}


async def _all(
    cases: Sequence[Candidate], sandbox: Sandbox, jobs: int, together: int, cpu: int
) -> tuple[dict[str, Grade], list[Candidate]]:
    """The verdicts, and of each batch that broke off the one whose turn it was."""
    gate = asyncio.Semaphore(jobs)

    async def one(batch: list[Candidate]) -> tuple[dict[str, Grade], list[Candidate]]:
        async with gate:
            verdicts, orderly = await _batch(batch, sandbox, cpu)
        left = [case for case in batch if case.id not in verdicts]
        return verdicts, left[:1] if left and not orderly else []

    size = max(1, min(together, -(-len(cases) // jobs)))
    done = await asyncio.gather(*(one(batch) for batch in _batches(cases, size)))
    verdicts = {name: verdict for found, _ in done for name, verdict in found.items()}
    return verdicts, [case for _, blamed in done for case in blamed]


async def _alone(cases: Sequence[Candidate], sandbox: Sandbox, jobs: int, cpu: int) -> dict[str, Grade]:
    """Each behind the right answer to its problem, which has its verdict before the case gets its program."""
    gate = asyncio.Semaphore(jobs)

    async def one(case: Candidate) -> dict[str, Grade]:
        control = Candidate(
            f"right answer to {case.id}", case.problem, case.problem.prompt + case.problem.canonical_solution
        )
        async with gate:
            found, _ = await _batch([control, case], sandbox, cpu)
        if control.id not in found or not found[control.id].passed:
            raise GpuboxError(
                "Programs cannot be graded here: the right answer does not pass.", "`gpubox doctor` says more."
            )
        return {name: verdict for name, verdict in found.items() if name == case.id}

    done = await asyncio.gather(*(one(case) for case in cases))
    return {name: verdict for batch in done for name, verdict in batch.items()}


def _batches(cases: Sequence[Candidate], most: int) -> Iterator[list[Candidate]]:
    batch: list[Candidate] = []
    held = 0
    for case in cases:
        size = len(json.dumps(_values(case)))
        if batch and (len(batch) == most or held + size > _BATCH_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(case)
        held += size
    if batch:
        yield batch


async def _batch(cases: Sequence[Candidate], sandbox: Sandbox, cpu: int) -> tuple[dict[str, Grade], bool]:
    """The verdicts of one start of the sandbox, and whether its judge ended it in order."""
    key = secrets.token_bytes(32)
    given = json.dumps({"key": key.hex(), "cases": [_values(case) for case in cases]}).encode()
    policy = Policy(
        wall_seconds=30 + judge.LIMITS["most"] * len(cases),
        cpu_seconds=30 + len(cases),
        memory_bytes=2 * units.GIB,
        processes=8,
        allow_seccomp_filters=True,
        output_bytes=(len(cases) + 1) * 16 * judge.MAX_REASON_CHARACTERS,
    )
    outcome = await sandbox.run(
        f"{_TEXT}\nmain({len(cases)}, {cpu}, {seccomp_filter.seccomp_program()!r})\n", policy, stdin=given
    )
    found, stopped = {}, False
    for line in outcome.output.splitlines():
        told = _signed(line, key)
        if "id" in told:
            found[told["id"]] = Grade(told["kind"], told["why"])
        stopped |= "stopped" in told
    return found, stopped or len(found) == len(cases)


def _signed(line: str, key: bytes) -> dict[str, Any]:
    """What the judge has said; empty for any other line, and for half of one."""
    mark, told = line[:_MARK], line[_MARK:]
    real = hashlib.blake2b(told.encode("utf-8", "replace"), key=key, digest_size=_MARK // 2).hexdigest()
    if not hmac.compare_digest(mark.encode("utf-8", "replace"), real.encode()):
        return {}
    values: dict[str, Any] = json.loads(told)
    return values


def _values(case: Candidate) -> dict[str, str]:
    problem = case.problem
    return {
        "id": case.id,
        "program": case.program,
        "prompt": problem.prompt,
        "entry_point": problem.entry_point,
        "test": problem.test,
    }
