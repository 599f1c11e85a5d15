"""Runs an answer's program in the sandbox: which checks it passes.

A check script is one text: a ``*_check`` module, ``check_main``, and a call of ``main`` with a function of the first.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.bench.kinds.suite import app_check, check_main, lru_check, todo_check
from gpubox.bench.kinds.suite.task_prompts import EXPRESS_FILES, task_file
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.storage import read_json

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
_PYTHON = Policy(wall_seconds=240, cpu_seconds=60)
_NODE = Policy(wall_seconds=240, cpu_seconds=60, memory_bytes=4 * units.GIB)


async def check_todo(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.1: eight checks. Raises GpuboxError if no program runs in the sandbox, as all checks do."""
    return await _run_checks(todo_check.check_todo, {"todo.py": code}, [code], TODO_CHECKS, sandbox, _PYTHON) or {}


async def check_shortener(code: str, sandbox: Sandbox) -> dict[str, bool]:
    """1.2: seven checks of the app on a small FastAPI shim."""
    files = {"app.py": code, **_shims("pydantic", "fastapi", "driver")}
    return await _run_checks(app_check.check_shortener, files, [code], SHORTENER_CHECKS, sandbox, _PYTHON) or {}


async def check_pagination(files: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool]:
    """2.2: seven checks of the app on a small Flask shim, and OWN_TESTS of its test file."""
    all_files = {**files, **_shims("flask", "pytest", "driver")}
    names, original = (*PAGINATION_CHECKS, *OWN_TESTS), task_file("flask/app.py")
    check = app_check.check_pagination
    return await _run_checks(check, all_files, files.values(), names, sandbox, _PYTHON, original=original) or {}


async def check_lru(code: str, sandbox: Sandbox) -> dict[str, bool] | None:
    """1.3: seven checks of the cache; ``None`` if the sandbox has no Node.js that runs TypeScript."""
    name = re.search(r"\bclass\s+(\w*LRU\w*)", code, re.IGNORECASE)
    program = code + (f"\n;(globalThis as any).LRUUnderTest = {name[1]};\n" if name else "")
    files = {"lru.ts": program, "lru.mjs": task_file("shim/lru.mjs")}
    return await _run_checks(lru_check.check_lru, files, [code], LRU_CHECKS, sandbox, _NODE)


async def check_express(changed: Mapping[str, str], sandbox: Sandbox) -> dict[str, bool] | None:
    """2.1: five checks of the app with the answer's files in it; ``None`` if the sandbox has no Node.js."""
    files = {path: changed.get(path, task_file(f"express/{path}")) for path in EXPRESS_FILES}
    files |= {"node_modules/express/index.js": task_file("shim/express.js"), "driver.js": task_file("shim/driver.js")}
    return await _run_checks(app_check.check_express, files, changed.values(), EXPRESS_CHECKS, sandbox, _NODE)


def _shims(*names: str) -> dict[str, str]:
    return {f".shim/{name}.py": task_file(f"shim/{name}.py") for name in names}


async def _run_checks(
    check: Callable[..., dict[str, bool] | None],
    files: Mapping[str, str],
    codes: Iterable[str],
    names: Sequence[str],
    sandbox: Sandbox,
    policy: Policy,
    **arguments: str,
) -> dict[str, bool] | None:
    """Every check by name. ``None`` if the sandbox lacks the runtime; all false if the program prevents the verdict.

    ``check`` runs in the sandbox with ``arguments``, in a folder with ``files``; ``codes`` are what the model wrote.
    """
    if sum(map(len, codes)) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(names, False)
    mark = secrets.token_hex(16)
    values = {"mark": mark, "files": files, "arguments": arguments}
    outcome = await sandbox.run(_script(check), policy, stdin=json.dumps(values).encode())
    verdicts = [line[len(mark) :] for line in outcome.output.splitlines() if line.startswith(mark)]
    if not verdicts and not (await sandbox.run("pass")).ok:
        raise GpuboxError("No program runs in the sandbox.", "`gpubox doctor` says more.")
    results = read_json(verdicts[0]) if verdicts else {}
    return None if results is None else {name: bool(results.get(name)) for name in names}


@functools.cache
def _script(check: Callable[..., Any]) -> str:
    parts = (Path(inspect.getfile(part)).read_text(encoding="utf-8") for part in (check, check_main))
    return "\n".join((*parts, f"main({check.__name__})\n"))
