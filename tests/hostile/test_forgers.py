"""Wrong programs that try to pass or to change another's verdict. None succeeds, in a batch or alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gpubox.bench.kinds.humaneval import grader, judge
from gpubox.bench.kinds.humaneval.dataset import Problem, load_problems
from gpubox.bench.kinds.humaneval.grader import Candidate, Grade, grade
from gpubox.sandbox.runner import Sandbox
from tests.hostile.conftest import confinement
from tests.hostile.forgers import FORGERS, SHADOWED
from tests.sampling import batches

PROBLEM = load_problems()["HumanEval/3"]
HEAD = "from typing import List\n"
# What the neighbours need is what forgers touch: late imports, files of their own, priorities, time.
HONEST: dict[str, tuple[Problem, str, str]] = {
    "canonical": (PROBLEM, PROBLEM.prompt + PROBLEM.canonical_solution, "passed"),
    "wrong": (PROBLEM, PROBLEM.prompt + "    return False\n", "assertion"),
    "imports late": (
        PROBLEM,
        PROBLEM.prompt + "    import fractions, decimal, statistics, calendar, textwrap, csv, operator\n"
        "    total = fractions.Fraction(0)\n    for one in operations:\n"
        "        total += decimal.Decimal(one).__int__()\n"
        "        if total < 0:\n            return True\n    return False\n",
        "passed",
    ),
    "writes a file": (
        PROBLEM,
        PROBLEM.prompt + "    import tempfile\n    with tempfile.TemporaryFile() as file:\n"
        "        file.write(b'x' * 9)\n"
        "    with tempfile.TemporaryDirectory() as folder:\n        open(folder + '/decimal.py', 'w').close()\n"
        + PROBLEM.canonical_solution,
        "passed",
    ),
}  # fmt: skip


def cases(forgers: Sequence[str]) -> list[Candidate]:
    """A neighbour after every third forger, each kind in turn."""
    candidates: list[Candidate] = []
    kinds = list(HONEST)
    for number, name in enumerate(forgers):
        if number % 3 == 0:
            kind = kinds[number // 3 % len(kinds)]
            candidates.append(Candidate(f"{kind} {number}", HONEST[kind][0], HONEST[kind][1]))
        candidates.append(Candidate(name, PROBLEM, HEAD + FORGERS[name]))
    return candidates


def kind_of(name: str) -> str:
    return HONEST[name.rpartition(" ")[0]][2]


@pytest.mark.parametrize("forgers", batches(list(FORGERS)))
async def test_in_a_batch_no_forger_passes_and_no_neighbour_suffers(sandbox: Sandbox, forgers: Sequence[str]) -> None:
    verdicts = await grade(cases(forgers), sandbox, cpu_seconds=1)

    assert len(FORGERS) >= 60 and len(SHADOWED) > 40
    assert [name for name in forgers if verdicts[name].passed] == []
    neighbours = {name: verdict.kind for name, verdict in verdicts.items() if name not in FORGERS}
    assert len(neighbours) >= len(forgers) / 3
    assert neighbours == {name: kind_of(name) for name in neighbours}


@pytest.fixture(scope="module")
def ordinary() -> Sandbox:
    """As on most boxes, judge and candidate run as the same user."""
    working, why = confinement("as-user")
    if working is None:
        pytest.skip(why)
    return Sandbox(confinement=working)


@pytest.mark.parametrize("forgers", batches(list(FORGERS)))
async def test_alone_no_forger_passes(ordinary: Sandbox, forgers: Sequence[str]) -> None:
    gate = asyncio.Semaphore(2)

    async def alone(name: str) -> Grade:
        async with gate:
            return (await grade([Candidate(name, PROBLEM, HEAD + FORGERS[name])], ordinary, cpu_seconds=1))[name]

    verdicts = await asyncio.gather(*(alone(name) for name in forgers))
    assert [name for name, verdict in zip(forgers, verdicts, strict=True) if verdict.passed] == []


async def test_without_the_seccomp_filter_the_judge_notices(ordinary: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that has no table: limits and signals of others can be touched, and still change no verdict."""
    monkeypatch.setattr(grader, "TABLES", {})
    monkeypatch.setattr(judge, "LIMITS", {**judge.LIMITS, "most": 2})
    touching = (
        "others' limits",
        "others' priorities",
        "kills all it sees",
        "kills the fork server",
        "interrupts its judge",
    )
    batch = []
    for name in touching:
        batch.append(Candidate(name, PROBLEM, HEAD + FORGERS[name]))
        batch.append(Candidate(f"canonical {name}", *HONEST["canonical"][:2]))

    verdicts = await grade(batch, ordinary, jobs=1, cpu_seconds=1)

    assert grader.seccomp_program() == b""
    assert {name for name, verdict in verdicts.items() if verdict.passed} == {f"canonical {name}" for name in touching}
