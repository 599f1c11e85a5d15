"""Runs an answer's program in the sandbox and says which checks it passed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.bench.kinds.suite import app_check, express_check, lru_check, todo_check
from gpubox.bench.kinds.suite.task_prompts import EXPRESS_FILES, task_file
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox

_TODO, _EXPRESS, _WEB, _LRU = (
    Path(str(module.__file__)).read_text(encoding="utf-8")
    for module in (todo_check, express_check, app_check, lru_check)
)
Check = Callable[[str, Sandbox], Awaitable[dict[str, bool] | None]]
MAX_CODE_CHARACTERS = 200_000
MISSING_RUNTIME = {
    "1.3": "the sandbox has no Node.js that runs TypeScript (22.6 or newer)",
    "2.1": "the sandbox has no Node.js",
}
"""Why a task cannot be tried out."""
NO_SANDBOX = "nothing confines programs here"
TODO_CHECKS = ("help", "add", "list", "keeps", "edit", "done", "delete", "unknown id")
SHORTENER_CHECKS = (
    "shortens",
    "redirects",
    "refuses what is no URL",
    "404",
    "counts visits",
    "10 a minute",
    "keeps them",
)
LRU_CHECKS = (
    "keeps",
    "evicts the oldest",
    "get refreshes",
    "put refreshes",
    "capacity of 1",
    "any order",
    "its tests pass",
)
EXPRESS_CHECKS = ("login", "Bearer is let in", "items", "no token: 401", "wrong token: 401")
PAGINATION_CHECKS = ("10 by default", "pages", "the last page", "metadata", "400", "at most 100", "other endpoints")
OWN_TESTS = ("its tests pass", "its tests tell")
_WEB_SHIMS = {"shortener": ("pydantic", "fastapi", "driver"), "pagination": ("flask", "pytest", "driver")}


async def check_todo(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.1: all eight checks, false where the app kept them from being made. Raises GpuboxError if nothing confines."""
    if not code.strip() or len(code) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(TODO_CHECKS, False)
    found = await _told(_TODO, {"code": code}, sandbox, Policy(wall_seconds=240, cpu_seconds=60))
    return {name: bool((found or {}).get(name)) for name in TODO_CHECKS}


async def check_shortener(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.2: seven checks of the app on a small FastAPI of our own. Raises GpuboxError if nothing confines."""
    if not code.strip() or len(code) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(SHORTENER_CHECKS, False)
    found = await _web("shortener", {"app.py": code}, sandbox)
    return {name: bool(found.get(name)) for name in SHORTENER_CHECKS}


async def check_pagination(files: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool]:
    """2.2: seven checks of the app on a small Flask of our own, and OWN_TESTS of its test file."""
    names = (*PAGINATION_CHECKS, *OWN_TESTS)
    if sum(len(code) for code in files.values()) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(names, False)
    found = await _web("pagination", files, sandbox)
    return {name: bool(found.get(name)) for name in names}


async def _web(kind: str, files: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool]:
    shims = {f".shim/{name}.py": task_file(f"shim/{name}.py") for name in _WEB_SHIMS[kind]}
    original = task_file("flask/app.py") if kind == "pagination" else ""
    values = {"kind": kind, "files": {**files, **shims}, "original": original}
    return await _told(_WEB, values, sandbox, Policy(wall_seconds=240, cpu_seconds=60)) or {}


async def check_lru(code: str, sandbox: Sandbox) -> dict[str, bool] | None:
    """1.3: seven checks of the cache; ``None`` where the sandbox has no Node.js that runs TypeScript."""
    if not code.strip() or len(code) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(LRU_CHECKS, False)
    policy = Policy(wall_seconds=240, cpu_seconds=60, memory_bytes=4 * units.GIB)
    found = await _told(_LRU, {"code": code, "driver": task_file("shim/lru.mjs")}, sandbox, policy)
    return None if found is None else {name: bool(found.get(name)) for name in LRU_CHECKS}


async def check_express(changed: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool] | None:
    """2.1: five checks of the app with the answer's files in it; ``None`` where the sandbox has no Node.js."""
    if sum(len(code) for code in changed.values()) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(EXPRESS_CHECKS, False)
    files = {path: changed.get(path, task_file(f"express/{path}")) for path in EXPRESS_FILES}
    files |= {"node_modules/express/index.js": task_file("shim/express.js"), "driver.js": task_file("shim/driver.js")}
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
