"""Malicious programs with every isolation of this machine: none escapes or outlives its run, and the next run works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.units import KIB, MIB
from tests.hostile.kernel_greed import PROGRAMS as PROGRAMS_OF_GREED
from tests.hostile.kernel_greed import SPREAD
from tests.hostile.programs import PROGRAMS, Hostile
from tests.hostile.world import World
from tests.sampling import sampled


def name(program: Hostile) -> str:
    return program.name


@pytest.mark.parametrize("program", sampled([p for p in PROGRAMS if not p.patient]), ids=name)
async def test_a_hostile_program_is_held(program: Hostile, sandbox: Sandbox, world: World) -> None:
    outcome = await world.run(sandbox, program)

    held(program, outcome)
    assert world.harm() == []
    assert world.survivors() == []
    after = await sandbox.run("print(6 * 7)")
    assert (after.exit_code, after.output) == (0, "42\n")


async def test_programs_that_only_the_time_limit_ends(sandbox: Sandbox, world: World) -> None:
    programs = [p for p in PROGRAMS if p.patient]

    outcomes = await asyncio.gather(*(world.run(sandbox, program) for program in programs))

    for program, outcome in zip(programs, outcomes, strict=True):
        held(program, outcome)
    assert world.harm() == []
    assert world.survivors() == []


def held(program: Hostile, outcome: Outcome) -> None:
    """Fails with the program's name and the end of its output."""
    report = f"{program.name}: {outcome.ended_by or outcome.exit_code}: {outcome.output[-1000:]}"
    assert "ESCAPED" not in outcome.output, report
    assert program.says is None or program.says in outcome.output, report
    assert program.ended_by is None or outcome.ended_by == program.ended_by, report
    assert program.exit_code is None or outcome.exit_code == program.exit_code, report


QUICK = ("files", "folders", "deep folders", "socket pairs", "page tables", "page tables, one process", "filters")
REFUSED = ("tcp", "pinned pages", "inotify", "landlock rules", "asynchronous writes")


@pytest.mark.parametrize("greedy", sampled(QUICK))
async def test_kernel_memory_is_bounded_and_reported(greedy: str, sandbox: Sandbox) -> None:
    before = kernel_bytes()
    outcome = await sandbox.run(SPREAD + PROGRAMS_OF_GREED[greedy], Policy(wall_seconds=10.0))

    assert kernel_bytes() - before < 256 * MIB
    assert outcome.ended_by in ("disk", "memory") or greedy == "filters" or outcome.isolation == "landlock", outcome
    assert outcome.why.startswith(("files: ", "memory: ", "time: ")) or not outcome.ended_by


@pytest.mark.parametrize("greedy", REFUSED)
async def test_calls_that_make_the_kernel_hold_memory_are_refused(greedy: str, sandbox: Sandbox) -> None:
    outcome = await sandbox.run(SPREAD + PROGRAMS_OF_GREED[greedy], Policy(wall_seconds=10.0))

    assert outcome.exit_code == 1
    assert "held" in outcome.output or "PermissionError" in outcome.output


def kernel_bytes() -> int:
    """Slab, page tables and stacks of this machine."""
    fields = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    return sum(int(line[1]) for line in fields if line[0] in ("Slab:", "PageTables:", "KernelStack:")) * KIB


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.plainly], ids=name)
def test_the_attack_works_where_nothing_confines_it(program: Hostile, world: World) -> None:
    assert "ESCAPED" in world.run_plainly(program)
