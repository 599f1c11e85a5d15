"""Runs an answer's program in the sandbox: which checks it passes.

A check script is one text: a ``*_check`` module and ``check_main``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gpubox import units
from gpubox.bench.kinds.suite import app_check, check_main, lru_check, todo_check
from gpubox.bench.kinds.suite.task_prompts import EXPRESS_FILES, task_file
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox


def _script(module: ModuleType) -> str:
    texts = (Path(str(part.__file__)).read_text(encoding="utf-8") for part in (module, check_main))
    return "\n".join((*texts, "main(checks)\n"))


_TODO, _APP, _LRU = _script(todo_check), _script(app_check), _script(lru_check)
Check = Callable[[str, Sandbox], Awaitable[dict[str, bool] | None]]
MAX_CODE_CHARACTERS = 200_000
MISSING_RUNTIME = {
    "1.3": "the sandbox has no Node.js that runs TypeScript (22.6 or newer)",
    "2.1": "the sandbox has no Node.js",
}
"""Why a task's program cannot run."""
NO_SANDBOX = "no sandbox works here"
TODO_CHECKS = ("help", "add", "list", "keeps", "edit", "done", "delete", "unknown id")
SHORTENER_CHECKS = (
    "shortens",
    "redirects",
    "refuses invalid URLs",
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
EXPRESS_CHECKS = ("login", "accepts Bearer", "items", "no token: 401", "wrong token: 401")
PAGINATION_CHECKS = ("10 by default", "pages", "the last page", "metadata", "400", "at most 100", "other endpoints")
OWN_TESTS = ("its tests pass", "its tests fail on the original")
_SHIMS = {"shortener": ("pydantic", "fastapi", "driver"), "pagination": ("flask", "pytest", "driver")}
_PYTHON = Policy(wall_seconds=240, cpu_seconds=60)
_NODE = Policy(wall_seconds=240, cpu_seconds=60, memory_bytes=4 * units.GIB)


async def check_todo(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.1: eight checks. Raises GpuboxError if no program runs in the sandbox, as all checks do."""
    return await _run_checks(_TODO, {"code": code}, [code], TODO_CHECKS, sandbox, _PYTHON) or {}


async def check_shortener(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.2: seven checks of the app on a small FastAPI shim."""
    values = {"kind": "shortener", "files": {"app.py": code, **_shims("shortener")}}
    return await _run_checks(_APP, values, [code], SHORTENER_CHECKS, sandbox, _PYTHON) or {}


async def check_pagination(files: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool]:
    """2.2: seven checks of the app on a small Flask shim, and OWN_TESTS of its test file."""
    all_files = {**files, **_shims("pagination")}
    values = {"kind": "pagination", "files": all_files, "original": task_file("flask/app.py")}
    names = (*PAGINATION_CHECKS, *OWN_TESTS)
    return await _run_checks(_APP, values, files.values(), names, sandbox, _PYTHON) or {}


async def check_lru(code: str, sandbox: Sandbox) -> dict[str, bool] | None:
    """1.3: seven checks of the cache; ``None`` if the sandbox has no Node.js that runs TypeScript."""
    values = {"code": code, "driver": task_file("shim/lru.mjs")}
    return await _run_checks(_LRU, values, [code], LRU_CHECKS, sandbox, _NODE)


async def check_express(changed: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool] | None:
    """2.1: five checks of the app with the answer's files in it; ``None`` if the sandbox has no Node.js."""
    files = {path: changed.get(path, task_file(f"express/{path}")) for path in EXPRESS_FILES}
    files |= {"node_modules/express/index.js": task_file("shim/express.js"), "driver.js": task_file("shim/driver.js")}
    values = {"kind": "express", "files": files}
    return await _run_checks(_APP, values, changed.values(), EXPRESS_CHECKS, sandbox, _NODE)


def _shims(kind: str) -> dict[str, str]:
    return {f".shim/{name}.py": task_file(f"shim/{name}.py") for name in _SHIMS[kind]}


async def _run_checks(
    script: str,
    values: Mapping[str, Any],
    codes: Iterable[str],
    names: Sequence[str],
    sandbox: Sandbox,
    policy: Policy,
) -> dict[str, bool] | None:
    """Every check by name. ``None`` if the sandbox lacks the runtime; all false if the program prevents the verdict."""
    if sum(map(len, codes)) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(names, False)
    mark = secrets.token_hex(16)
    outcome = await sandbox.run(script, policy, stdin=json.dumps({"mark": mark, **values}).encode())
    verdicts = [line[len(mark) :] for line in outcome.output.splitlines() if line.startswith(mark)]
    if not verdicts and not (await sandbox.run("pass")).ok:
        raise GpuboxError("No program runs in the sandbox.", "`gpubox doctor` says more.")
    results = json.loads(verdicts[0]) if verdicts else {}
    return None if results is None else {name: bool(results.get(name)) for name in names}
