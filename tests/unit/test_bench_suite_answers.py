"""Answers as models give them: right ones in any notation score at least 90, wrong ones at most 30."""

from __future__ import annotations

import pytest

from gpubox.sandbox.runner import Sandbox
from tests.suite_answers import ANSWERS, score_folder

MAX_WRONG, MIN_RIGHT = 30, 90


@pytest.mark.parametrize("folder", ["right", "wrong"])
async def test_answers(folder: str, sandbox: Sandbox) -> None:
    """Without a Node.js that runs TypeScript, 1.3 has no points at all."""
    scores = await score_folder(folder, sandbox)
    unavailable = {name for name, (points, _) in scores.items() if points is None}
    points = {name: value for name, (value, _) in scores.items() if value is not None}

    assert len(list((ANSWERS / folder).glob("*.md"))) == len(scores) >= 25
    assert all(name.startswith(("1.3", "2.1")) for name in unavailable)
    if folder == "right":
        assert {name: value for name, value in points.items() if value < MIN_RIGHT} == {}
    else:
        assert {name: value for name, value in points.items() if value > MAX_WRONG} == {}
