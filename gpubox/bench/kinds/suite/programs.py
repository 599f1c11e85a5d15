"""Grades the programs of an answer: they run in the sandbox, and what works gives the points."""

from __future__ import annotations

import difflib
import functools
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubox import units
from gpubox.agent.code_answer import PYTHON, SCRIPT, code_blocks, code_in
from gpubox.bench.kinds.suite import sandbox_checks
from gpubox.bench.kinds.suite.tasks import EXPRESS_FILES, FLASK_FILES, task_file
from gpubox.errors import GpuboxError
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.storage import read_json

MAX_CODE_CHARACTERS = 200_000
MIDDLEWARE = "middleware/auth.js"
"""Where the bug of 2.1 is."""
SMALL_CHANGE_LINES, LARGE_CHANGE_LINES = 6, 15
MIN_SHARED_LINES = 0.4
"""A file without a name is the original that it shares so many lines with."""
_PYTHON = Policy(wall_seconds=240, cpu_seconds=60)
_NODE = Policy(wall_seconds=240, cpu_seconds=60, memory_bytes=4 * units.GIB)


@dataclass(frozen=True, slots=True)
class ProgramChecks:
    """How the program of one task is run."""

    check: Callable[..., dict[str, bool] | None]
    """A function of ``sandbox_checks``."""
    names: tuple[str, ...]
    """Every check, one point each."""
    policy: Policy = _PYTHON
    missing_runtime: str = ""
    """Why it cannot run where the check returns ``None``."""


CHECKS: Mapping[str, ProgramChecks] = {
    "1.1": ProgramChecks(
        sandbox_checks.check_todo, ("help", "add", "list", "keeps", "edit", "done", "delete", "unknown id")
    ),
    "1.2": ProgramChecks(
        sandbox_checks.check_shortener,
        ("shortens", "redirects", "refuses invalid URLs", "404", "counts visits", "10 a minute", "keeps them"),
    ),
    "1.3": ProgramChecks(
        sandbox_checks.check_lru,
        (
            *("keeps", "evicts the oldest", "get refreshes", "put refreshes", "capacity of 1", "any order"),
            "its tests pass",
        ),
        _NODE,
        "the sandbox has no Node.js that runs TypeScript (22.6 or newer)",
    ),
    "2.1": ProgramChecks(
        sandbox_checks.check_express,
        ("login", "accepts Bearer", "items", "no token: 401", "wrong token: 401"),
        _NODE,
        "the sandbox has no Node.js",
    ),
    "2.2": ProgramChecks(
        sandbox_checks.check_pagination,
        (
            *("10 by default", "pages", "the last page", "metadata", "400", "at most 100", "other endpoints"),
            *("its tests pass", "its tests fail on the original"),
        ),
    ),
}


async def grade_program(
    task: str, text: str, sandbox: Callable[[], Sandbox]
) -> tuple[Mapping[str, float] | None, str, str]:
    """``(points, code, why)`` of an answer: at most one point by check, ``None`` where it cannot run here and why.

    Raises GpuboxError if no program at all runs in the sandbox.
    """
    names = CHECKS[task].names
    if task == "1.3":
        code = code_in(text, SCRIPT, "")
        named = re.search(r"\bclass\s+(\w*LRU\w*)", code, re.IGNORECASE)
        program = code + (f"\n;(globalThis as any).LRUUnderTest = {named[1]};\n" if named else "")
        own, files = {"lru.ts": code}, {"lru.ts": program, "lru.mjs": task_file("shim/lru.mjs")}
    elif task == "2.1":
        originals = {path: task_file(f"express/{path}") for path in EXPRESS_FILES}
        answered = files_in(text, originals, SCRIPT).items()
        own = {path: code for path, code in answered if changed_lines(originals[path], code)}
        shims = {"node_modules/express/index.js": "express.js", "driver.js": "driver.js"}
        files = originals | own | {path: task_file(f"shim/{name}") for path, name in shims.items()}
        code = own.get(MIDDLEWARE, "")
    elif task == "2.2":
        originals = {path: task_file(f"flask/{path}") for path in FLASK_FILES}
        own = files_in(text, originals, PYTHON)
        files, code = originals | own | _shims("flask", "pytest", "driver"), own.get("app.py", "")
        own = own if code else {}
    else:
        name = "todo.py" if task == "1.1" else "app.py"
        code = code_in(text, PYTHON, name)
        own, files = {name: code}, {name: code} | (_shims("pydantic", "fastapi", "driver") if task == "1.2" else {})
    if not any(code.strip() for code in own.values()):
        return dict.fromkeys(names, False), code, ""
    if (await sandbox().confinement()).isolation is None:
        return None, code, "no sandbox works here"
    arguments = {"original": task_file("flask/app.py")} if task == "2.2" else {}
    checks = await run_checks(task, files, own.values(), sandbox(), arguments)
    if checks is None:
        return None, code, CHECKS[task].missing_runtime
    if task == "2.1":
        return _fix_points(own, all(checks.values())), code, ""
    if task == "2.2" and "test_app.py" not in own:
        checks |= {name: False for name in names if name.startswith("its tests")}
    return checks, code, ""


def _shims(*names: str) -> dict[str, str]:
    return {f".shim/{name}.py": task_file(f"shim/{name}.py") for name in names}


def _fix_points(changed: Mapping[str, str], works: bool) -> dict[str, float]:
    """2.1: three of four for an app that works, the fourth for a small change where the bug is."""
    small = 0.0
    if works and set(changed) == {MIDDLEWARE}:
        lines = changed_lines(task_file(f"express/{MIDDLEWARE}"), changed[MIDDLEWARE])
        small = 1.0 if lines <= SMALL_CHANGE_LINES else 0.5 if lines <= LARGE_CHANGE_LINES else 0.0
    return {"the app works": 3.0 * works, "smallest change": small}


def changed_lines(before: str, after: str) -> int:
    """The number of added or of removed lines, whichever is larger; trailing space is ignored."""
    old, new = ([line.rstrip() for line in text.strip().splitlines()] for text in (before, after))
    marks = [line[:2] for line in difflib.ndiff(old, new)]
    return max(marks.count("+ "), marks.count("- "))


def files_in(text: str, originals: Mapping[str, str], language: str) -> dict[str, str]:
    """Path -> the answer's version of that file, found by its path, else by the original it resembles most."""
    files: dict[str, str] = {}
    unnamed: list[str] = []
    for block in code_blocks(text):
        if block.language not in (language, "") or not block.code.strip():
            continue
        own = block.path.lower().removeprefix("./")
        matches = [path for path in originals if own == path or own.endswith("/" + path)]
        matches = matches or [path for path in originals if path.rpartition("/")[2] == block.name]
        if len(matches) == 1:
            files[matches[0]] = block.code
        elif not block.path:
            unnamed.append(block.code)
    for code in unnamed:
        lines = {line.strip() for line in code.splitlines() if line.strip()}
        shares = {path: _shared_lines(lines, original) for path, original in originals.items()}
        best = max(shares, key=lambda path: shares[path])
        if shares[best] >= MIN_SHARED_LINES:
            files.setdefault(best, code)
    return files


def _shared_lines(lines: set[str], original: str) -> float:
    """The share of the original's lines that are in ``lines``."""
    own = {line.strip() for line in original.splitlines() if len(line.strip()) > 3}
    return len(own & lines) / len(own)


async def run_checks(
    task: str, files: Mapping[str, str], codes: Iterable[str], sandbox: Sandbox, arguments: Mapping[str, str]
) -> dict[str, bool] | None:
    """Every check by name. ``None`` if the sandbox lacks the runtime; all false if the program prevents the verdict.

    The check runs in the sandbox with ``arguments``, in a folder with ``files``; ``codes`` are what the model wrote.
    """
    own = CHECKS[task]
    if sum(map(len, codes)) > MAX_CODE_CHARACTERS:
        return dict.fromkeys(own.names, False)
    mark = secrets.token_hex(16)
    values = {"mark": mark, "files": dict(files), "arguments": dict(arguments)}
    script = f"{_script()}\nmain({own.check.__name__})\n"
    outcome = await sandbox.run(script, own.policy, stdin=json.dumps(values).encode())
    verdicts = [line[len(mark) :] for line in outcome.output.splitlines() if line.startswith(mark)]
    if not verdicts and not (await sandbox.run("pass")).ok:
        raise GpuboxError("No program runs in the sandbox.", "`gpubox doctor` says more.")
    results: Any = read_json(verdicts[0]) if verdicts else {}
    return None if results is None else {name: bool(results.get(name)) for name in own.names}


@functools.cache
def _script() -> str:
    return Path(sandbox_checks.__file__).read_text(encoding="utf-8")
