"""The tiers of this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import cache

import pytest

from gpubox.sandbox import bubblewrap
from gpubox.sandbox.policy import Confinement
from gpubox.sandbox.probe import try_confinement
from gpubox.sandbox.runner import Sandbox
from tests.hostile.world import World, new_world

TIERS = ("as-root", "as-user", "landlock")


@cache
def confinement(isolation: str) -> tuple[Confinement | None, str]:
    """The isolation as this machine has it, or why it has not."""
    if isolation == "landlock":
        candidates = [Confinement("landlock")]
    elif isolation == "as-root" and os.geteuid() != 0:
        return None, "not root"
    else:  # as root, "as-user" has bubblewrap started by an unused user, which is what an ordinary one is
        candidates = [
            Confinement("bubblewrap", program=p, as_root=isolation == "as-root") for p in bubblewrap.installed()
        ]
    why = "bubblewrap is not installed"
    for candidate in candidates:
        if not (why := asyncio.run(try_confinement(candidate))):
            return candidate, ""
    return None, why


@pytest.fixture(scope="module", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """One for each isolation; skipped, with the reason, where the machine refuses it."""
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
    """As it was at first, with its token where programs look for secrets."""
    shared_world.tidy()
    monkeypatch.setenv("TOKEN", shared_world.token)
    return shared_world
