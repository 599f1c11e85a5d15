"""The isolations of this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import cache

import pytest

from gpubox.sandbox import bubblewrap
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.runner import Sandbox, try_confinement
from tests.hostile.world import World, new_world

VARIANTS = (*(("as-root",) if os.geteuid() == 0 else ()), "as-user", "landlock")


@cache
def confinement(variant: str) -> tuple[Confinement | None, str]:
    """The confinement of this variant, or why this machine refuses it."""
    if variant == "landlock":
        candidates = [Confinement("landlock")]
    else:  # for root, "as-user" starts bubblewrap as an unused user, who has the rights of an ordinary one
        candidates = [
            Confinement("bubblewrap", program=p, as_root=variant == "as-root") for p in bubblewrap.installed()
        ]
    why = "bubblewrap is not installed"
    for candidate in candidates:
        if not (why := asyncio.run(try_confinement(candidate))):
            return candidate, ""
    return None, why


@pytest.fixture(scope="module", params=VARIANTS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """One for each variant; skipped, with the reason, if the machine refuses it."""
    working, why = confinement(request.param)
    if working is None:
        pytest.skip(why)
    return Sandbox(confinement=working)


@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    with new_world() as world:
        yield world


@pytest.fixture
def world(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """In its first state, with its token in the environment."""
    shared_world.tidy()
    monkeypatch.setenv("TOKEN", shared_world.token)
    return shared_world
