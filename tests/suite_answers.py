"""Scores a folder of answers as the suite does. Each is a Markdown file whose name begins with the task's id."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gpubox.bench.kinds.suite.scoring import score_of_values, score_reply
from gpubox.sandbox.runner import Sandbox

ANSWERS = Path(__file__).parent / "fixtures/suite"


async def score_folder(
    folder: str, sandbox: Sandbox, root: Path = ANSWERS
) -> dict[str, tuple[float | None, dict[str, Any]]]:
    """Name -> its points of 100 (``None``: keywords only) and its result's values."""
    gate = asyncio.Semaphore(2)

    async def score(name: str, text: str) -> tuple[float | None, dict[str, Any]]:
        async with gate:
            values = await score_reply(name[:3], text, "", "stop", lambda: sandbox)
        return score_of_values(values).value, values

    answers = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / folder).glob("*.md"))}
    return dict(zip(answers, await asyncio.gather(*(score(*answer) for answer in answers.items())), strict=True))
