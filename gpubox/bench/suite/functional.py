"""Runs an answer's program in the sandbox and says which checks it passed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.bench.suite import express_check, todo_check
from gpubox.bench.suite.prompts import EXPRESS, fixture
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox

_TODO = Path(todo_check.__file__).read_text(encoding="utf-8")
_EXPRESS = Path(express_check.__file__).read_text(encoding="utf-8")
LONGEST = 200_000
NOT_HERE = {
    "1.2": "the sandbox's Python has no FastAPI",
    "1.3": "the sandbox has no TypeScript",
    "2.1": "the sandbox has no Node.js",
    "2.2": "the sandbox's Python has no Flask",
}
"""Why functional tests of these tasks are n/a (2.1: where it is so)."""
NO_SANDBOX = "nothing confines programs here"
TODO_CHECKS = ("help", "add", "list", "keeps", "done", "delete", "unknown id")
EXPRESS_CHECKS = ("login", "Bearer is let in", "items", "no token: 401", "wrong token: 401")


async def check_todo(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.1: all seven checks, false where the app kept them from being made. Raises GpuboxError if nothing confines."""
    if not code.strip() or len(code) > LONGEST:
        return dict.fromkeys(TODO_CHECKS, False)
    found = await _told(_TODO, {"code": code}, sandbox, Policy(wall_seconds=240, cpu_seconds=60))
    return {name: bool((found or {}).get(name)) for name in TODO_CHECKS}


async def check_express(changed: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool] | None:
    """2.1: five checks of the app with the answer's files in it; ``None`` where the sandbox has no Node.js."""
    if sum(len(code) for code in changed.values()) > LONGEST:
        return dict.fromkeys(EXPRESS_CHECKS, False)
    files = {path: changed.get(path, fixture(f"express/{path}")) for path in EXPRESS}
    files |= {"node_modules/express/index.js": fixture("shim/express.js"), "check.js": fixture("shim/check.js")}
    policy = Policy(wall_seconds=120, cpu_seconds=60, memory_bytes=4 * units.GIB)
    found = await _told(_EXPRESS, {"files": files}, sandbox, policy)
    return None if found is None else {name: bool(found.get(name)) for name in EXPRESS_CHECKS}


async def _told(script: str, values: dict[str, Any], sandbox: Sandbox, policy: Policy) -> dict[str, bool] | None:
    """What ``script`` says under its mark; nothing where it was kept from it."""
    mark = secrets.token_hex(16)
    outcome = await sandbox.run(f"{script}\nmain()\n", policy, stdin=json.dumps({"mark": mark, **values}).encode())
    for line in outcome.output.splitlines():
        if line.startswith(mark):
            found: dict[str, bool] | None = json.loads(line[len(mark) :])
            return found
    if not (await sandbox.run("pass")).ok:
        raise GpuboxError("No program runs in the sandbox.", "`gpubox doctor` says more.")
    return {}  # the program kept the checks from being made
