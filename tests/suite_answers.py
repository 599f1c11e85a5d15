"""Scores a folder of answers as the suite does. Each is a Markdown file whose name begins with the task's id."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpubox.bench.kinds.suite.suite import score_reply
from gpubox.sandbox.runner import Sandbox

ANSWERS = Path(__file__).parent / "fixtures/suite"


async def score_folder(
    folder: str, sandbox: Sandbox, root: Path = ANSWERS, *, names: Collection[str] | None = None
) -> dict[str, tuple[float | None, dict[str, Any]]]:
    """Name -> its points of 100 (``None``: keywords only) and its result's values. ``names``: None means all."""
    gate = asyncio.Semaphore(2)

    async def score(name: str, text: str) -> tuple[float | None, dict[str, Any]]:
        async with gate:
            values = await score_reply(name[:3], text, "", "stop", lambda: sandbox)
        return 100 * values["share"] if values["share"] is not None else None, values

    files = [path for path in sorted((root / folder).glob("*.md")) if names is None or path.stem in names]
    answers = {path.stem: path.read_text(encoding="utf-8") for path in files}
    return dict(zip(answers, await asyncio.gather(*(score(*answer) for answer in answers.items())), strict=True))
