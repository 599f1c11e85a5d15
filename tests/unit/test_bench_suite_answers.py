"""Answers as models give them: right ones in any notation score at least 90, wrong ones at most 30."""

from __future__ import annotations

import pytest

from gpubox.sandbox.runner import Sandbox
from tests.sampling import sampled
from tests.suite_answers import ANSWERS, score_folder

MAX_WRONG, MIN_RIGHT = 30, 90
CASES = [(folder, path.stem) for folder in ("right", "wrong") for path in sorted((ANSWERS / folder).glob("*.md"))]


def test_there_are_enough_of_them() -> None:
    assert all(sum(folder == wanted for folder, _ in CASES) >= 25 for wanted in ("right", "wrong"))


@pytest.mark.parametrize(("folder", "name"), sampled(CASES))
async def test_an_answer(folder: str, name: str, sandbox: Sandbox) -> None:
    """Without a Node.js that runs TypeScript, 1.3 has no points at all."""
    points, values = (await score_folder(folder, sandbox, names={name}))[name]

    if points is None:
        assert name.startswith(("1.3", "2.1"))
    else:
        assert points >= MIN_RIGHT if folder == "right" else points <= MAX_WRONG, (points, values)
