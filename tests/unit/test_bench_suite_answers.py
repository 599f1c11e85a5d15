"""Answers as models give them: right ones in any notation score at least 90, wrong ones at most 30."""

from __future__ import annotations

import asyncio

import pytest

from gpubox.config import Config
from gpubox.sandbox.runner import Sandbox
from tests.suite_answers import ANSWERS, scored

MOST_WRONG, LEAST_RIGHT = 30, 90


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    made = Sandbox(Config())
    if asyncio.run(made.confinement()).isolation is None:
        pytest.skip("nothing confines programs on this machine")
    return made


@pytest.mark.parametrize("folder", ["right", "wrong"])
async def test_answers(folder: str, sandbox: Sandbox) -> None:
    """Where no Node.js runs TypeScript, 1.3 has no points at all."""
    found = await scored(folder, sandbox)
    away = {name for name, (points, _) in found.items() if points is None}
    points = {name: value for name, (value, _) in found.items() if value is not None}

    assert len(list((ANSWERS / folder).glob("*.md"))) == len(found) >= 25
    assert all(name.startswith(("1.3", "2.1")) for name in away)
    if folder == "right":
        assert {name: value for name, value in points.items() if value < LEAST_RIGHT} == {}
    else:
        assert {name: value for name, value in points.items() if value > MOST_WRONG} == {}
