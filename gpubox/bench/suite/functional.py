"""Runs an answer's program in the sandbox and says which checks it passed."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from gpubox.bench.suite import todo_check
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox

_TODO = Path(todo_check.__file__).read_text(encoding="utf-8")
LONGEST = 200_000
NOT_HERE = {
    "1.2": "the sandbox's Python has no FastAPI",
    "1.3": "the sandbox has no TypeScript",
    "2.2": "the sandbox's Python has no Flask",
}
"""Why functional tests of these tasks are n/a."""
CHECKS = ("help", "add", "list", "keeps", "done", "delete", "unknown id")


async def check_todo(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.1: all seven checks, false where the app kept them from being made. Raises GpuboxError if nothing confines."""
    if not code.strip() or len(code) > LONGEST:
        return dict.fromkeys(CHECKS, False)
    mark = secrets.token_hex(16)
    given = json.dumps({"mark": mark, "code": code}).encode()
    policy = Policy(wall_seconds=240, cpu_seconds=60)
    outcome = await sandbox.run(f"{_TODO}\nmain()\n", policy, stdin=given)
    for line in outcome.output.splitlines():
        if line.startswith(mark):
            found: dict[str, bool] = json.loads(line[len(mark) :])
            return found
    return dict.fromkeys(CHECKS, False)
