"""Grades programs against the hidden tests: batches of them in one sandbox, none of them trusted.

The judge inside (``judge``) signs each line of its output, so that no candidate can write a grade.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import json
import platform
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.bench.kinds.humaneval import judge
from gpubox.bench.kinds.humaneval.dataset import Problem
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.seccomp import TABLES

_JUDGE_TEXT = Path(judge.__file__).read_text(encoding="utf-8")
CONTROL_ATTEMPTS = 3
"""How often a correct answer that did not pass is tried again before the box is blamed."""
CPU_SECONDS = 3
"""For one program and its tests: lm-eval's timeout."""
BATCH_SIZE = 21
"""Candidates per sandbox. Starting a sandbox costs as much as grading two or three of them."""
_BATCH_BYTES = 512 * 1024
_SIGNATURE_CHARACTERS = 64
MAX_PROGRAM_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """One program to grade. ``id`` is unique within one call of ``grade``."""

    id: str
    problem: Problem
    program: str
    """Complete, with the prompt ahead of the completion."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The outcome for one candidate."""

    kind: str
    """passed | assertion | error | definition | timeout | died"""
    why: str = ""
    """The failed check or the exception. Untrusted text: never render it as markup."""

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


async def grade(
    candidates: Sequence[Candidate], sandbox: Sandbox, *, jobs: int = 2, cpu_seconds: int = CPU_SECONDS
) -> dict[str, Grade]:
    """The grade of every candidate by id, with ``jobs`` sandboxes at a time and ``cpu_seconds`` per candidate.

    If a candidate leaves anything behind, the rest of its batch gets a fresh sandbox. If a candidate ends its judge, it
    is graded again alone. Raises GpuboxError if no sandbox works or if a correct program cannot pass in it: a failure
    of the box is never counted against the model.
    """
    gate = asyncio.Semaphore(jobs)

    async def grade_batch(batch: Sequence[Candidate]) -> tuple[dict[str, Grade], bool]:
        async with gate:
            return await _grade_batch(batch, sandbox, cpu_seconds)

    grades = {
        candidate.id: Grade("definition", f"longer than {MAX_PROGRAM_CHARACTERS:,} characters")
        for candidate in candidates
        if len(candidate.program) > MAX_PROGRAM_CHARACTERS
    }
    waiting = [candidate for candidate in candidates if candidate.id not in grades]
    suspects: list[Candidate] = []
    while waiting:
        batches = list(_batches(waiting, max(1, min(BATCH_SIZE, -(-len(waiting) // jobs)))))
        outcomes = await asyncio.gather(*map(grade_batch, batches))
        blamed: list[Candidate] = []
        for batch, (own, orderly) in zip(batches, outcomes, strict=True):
            grades |= own
            if not orderly:  # its judge died with the first candidate that has no grade
                blamed += [candidate for candidate in batch if candidate.id not in own][:1]
        suspects += blamed if any(own for own, _ in outcomes) else waiting
        settled = {*grades, *(candidate.id for candidate in suspects)}
        waiting = [candidate for candidate in waiting if candidate.id not in settled]
    controls = [_correct_answer(suspect) for suspect in suspects]
    outcomes = await asyncio.gather(*(grade_batch(pair) for pair in zip(controls, suspects, strict=True)))
    for control, suspect, (own, _) in zip(controls, suspects, outcomes, strict=True):
        for _ in range(CONTROL_ATTEMPTS):  # a busy box can refuse a process or a moment: again, with nothing beside it
            if not _passes(control, own):
                own, _ = await grade_batch((control, suspect))
        if not _passes(control, own):
            raise GpuboxError(
                "Programs cannot be graded here: the correct answer does not pass.", "`gpubox doctor` says more."
            )
        grades[suspect.id] = own.get(suspect.id, Grade("died", "it ended the process that judges it"))
    return grades


def _passes(control: Candidate, grades: dict[str, Grade]) -> bool:
    return control.id in grades and grades[control.id].passed


def _correct_answer(suspect: Candidate) -> Candidate:
    problem = suspect.problem
    return Candidate(f"right answer to {suspect.id}", problem, problem.prompt + problem.canonical_solution)


def _batches(candidates: Sequence[Candidate], size: int) -> Iterator[list[Candidate]]:
    batch: list[Candidate] = []
    batch_bytes = 0
    for candidate in candidates:
        case_bytes = len(json.dumps(_judge_case(candidate)))
        if batch and (len(batch) == size or batch_bytes + case_bytes > _BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(candidate)
        batch_bytes += case_bytes
    if batch:
        yield batch


async def _grade_batch(batch: Sequence[Candidate], sandbox: Sandbox, cpu_seconds: int) -> tuple[dict[str, Grade], bool]:
    """The grades from one sandbox, and whether its judge ended in order."""
    key = secrets.token_bytes(32)
    judge_input = json.dumps({"key": key.hex(), "cases": [_judge_case(candidate) for candidate in batch]}).encode()
    policy = Policy(
        wall_seconds=30 + judge.LIMITS["most"] * len(batch),
        cpu_seconds=30 + len(batch),
        memory_bytes=2 * units.GIB,
        processes=8,
        allow_seccomp_filters=True,
        output_bytes=(len(batch) + 1) * 16 * judge.MAX_REASON_CHARACTERS,
    )
    call = f"main({len(batch)}, {cpu_seconds}, {seccomp_program()!r})"
    outcome = await sandbox.run(f"{_JUDGE_TEXT}\n{call}\n", policy, stdin=judge_input)
    grades, stopped = {}, False
    for line in outcome.output.splitlines():
        message = _verified(line, key)
        if "id" in message:
            grades[message["id"]] = Grade(message["kind"], message["why"])
        stopped |= "stopped" in message
    return grades, stopped or len(grades) == len(batch)


def _verified(line: str, key: bytes) -> dict[str, Any]:
    """The judge's message in ``line``; empty if the signature does not match or the line is incomplete."""
    signature, message = line[:_SIGNATURE_CHARACTERS], line[_SIGNATURE_CHARACTERS:]
    digest = hashlib.blake2b(message.encode("utf-8", "replace"), key=key, digest_size=_SIGNATURE_CHARACTERS // 2)
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), digest.hexdigest().encode()):
        return {}
    values: dict[str, Any] = json.loads(message)
    return values


def _judge_case(candidate: Candidate) -> dict[str, str]:
    problem = candidate.problem
    return {
        "id": candidate.id,
        "program": candidate.program,
        "prompt": problem.prompt,
        "entry_point": problem.entry_point,
        "test": problem.test,
    }


# --- The system calls by which a candidate could disturb its judge ---
#
# They reach other processes of the same user: signals, limits, priorities, and the owner of a pipe's signals. Without
# the filter the judge notices the interference and ends the batch; with it, the calls fail.

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in struct seccomp_data; of the arguments the low half."""
_REFUSED = (
    *("pidfd_send_signal", "pidfd_getfd", "process_madvise", "kill", "tkill", "tgkill", "rt_sigqueueinfo"),
    *("rt_tgsigqueueinfo", "ptrace", "process_vm_readv", "process_vm_writev", "setpriority", "sched_setaffinity"),
    *("sched_setparam", "sched_setscheduler", "sched_setattr", "ioprio_set", "prlimit64", "fcntl", "ioctl"),
)
_REFUSED_COMMANDS = {
    "fcntl": (8, 10, 15),  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would signal another process
    "ioctl": (0x8901, 0x8902),  # FIOSETOWN, SIOCSPGRP: the same
}


def seccomp_program() -> bytes:
    """The BPF program, an array of ``struct sock_filter``; empty for a processor without a table."""
    arch, numbers = TABLES.get(platform.machine(), (0, {}))
    if not arch:
        return b""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), refuse, (_LOAD, 0, 0, _NUMBER)]
    for name in _REFUSED:
        number, commands = numbers[name], _REFUSED_COMMANDS.get(name, ())
        if name == "prlimit64":  # allowed for process 0, which is the caller
            code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, 0), allow, refuse]
        elif not commands:
            code += [(_EQUAL, 0, 1, number), refuse]
        else:
            code += [(_EQUAL, 0, len(commands) + 3, number), (_LOAD, 0, 0, _SECOND)]
            code += [(_EQUAL, len(commands) - place, 0, command) for place, command in enumerate(commands)]
            code += [allow, refuse]
    code.append(allow)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
