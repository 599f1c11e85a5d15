"""Programs that mean harm, at every tier this machine has: none gets out, none outlives its run, the next one runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import cache

import pytest

from gpubox.sandbox import bubblewrap
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.probe import tried
from gpubox.sandbox.runner import Sandbox
from tests.hostile.programs import PROGRAMS, Hostile
from tests.hostile.world import World, new_world

TIERS = ("as-root", "as-user", "landlock")


@cache
def confinement(tier: str) -> tuple[Confinement | None, str]:
    """The tier as this machine has it, or why it has not."""
    if tier == "landlock":
        candidates = [Confinement("landlock")]
    elif tier == "as-root" and os.geteuid() != 0:
        return None, "not root"
    else:  # as root, "as-user" has bubblewrap started by an unused user, which is what an ordinary one is
        candidates = [Confinement("bubblewrap", program=p, as_root=tier == "as-root") for p in bubblewrap.installed()]
    why = "bubblewrap is not installed"
    for candidate in candidates:
        if not (why := asyncio.run(tried(candidate))):
            return candidate, ""
    return None, why


@pytest.fixture(scope="module", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    found, why = confinement(request.param)
    if found is None:
        pytest.skip(why)
    return Sandbox(confinement=found)


@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    with new_world() as world:
        yield world


@pytest.fixture
def world(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    shared_world.tidy()
    monkeypatch.setenv("TOKEN", shared_world.token)
    return shared_world


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_a_hostile_program_is_held(program: Hostile, sandbox: Sandbox, world: World) -> None:
    outcome = await world.run(sandbox, program)

    assert "ESCAPED" not in outcome.output
    assert world.harm() == []
    assert world.survivors() == []
    if program.says is not None:
        assert program.says in outcome.output
    if program.ended_by is not None:
        assert outcome.ended_by == program.ended_by, outcome.output[-2000:]
    after = await world.run(sandbox, Hostile("next", "print(6 * 7)"))
    assert (after.exit_code, after.output) == (0, "42\n")


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.plainly], ids=lambda program: program.name)
def test_the_attack_works_where_nothing_confines_it(program: Hostile, world: World) -> None:
    assert "ESCAPED" in world.run_plainly(program)
