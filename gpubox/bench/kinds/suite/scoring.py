"""One stored reply -> its points. All but the functional tests is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpubox.bench.kinds.shared import parse_python
from gpubox.bench.kinds.suite import architecture, coding, debug_log, editing, functional, tool_use
from gpubox.bench.kinds.suite.aggregate import TaskScore
from gpubox.bench.kinds.suite.answer import PYTHON, SCRIPT, SuiteAnswer, answer_of_reply, code_in, files_in
from gpubox.bench.kinds.suite.bayes import bayes_points
from gpubox.bench.kinds.suite.functional import MISSING_RUNTIME, NO_SANDBOX
from gpubox.bench.kinds.suite.task_prompts import EXPRESS_FILES, FLASK_FILES, task_file
from gpubox.bench.kinds.suite.tasks import TASKS, SuiteTask
from gpubox.sandbox.runner import Sandbox

_CODED: Mapping[str, tuple[Callable[[str], dict[str, bool]], str, str, functional.Check]] = {
    "1.1": (coding.todo_features, PYTHON, "todo.py", functional.check_todo),
    "1.2": (coding.shortener_features, PYTHON, "app.py", functional.check_shortener),
    "1.3": (coding.lru_features, SCRIPT, "", functional.check_lru),
}
"""What is read off the code, its language and file, and what is tried out."""
_POINTS: Mapping[str, Callable[[str], dict[str, int]]] = {
    "3.1": debug_log.debug_log_points,
    "3.2": architecture.architecture_points,
    "3.3": bayes_points,
    "4.1": tool_use.structured_points,
    "4.2": tool_use.sequencing_points,
}


async def score_reply(
    task_id: str, content: str, reasoning_content: str, finish_reason: str, sandbox: Callable[[], Sandbox]
) -> dict[str, Any]:
    """A result's values: the items with their points, the shares, and why anything is n/a."""
    task = TASKS[task_id]
    answer = answer_of_reply(content, reasoning_content, finish_reason)
    values: dict[str, Any] = {"task": task_id, "source": answer.source, "finish_reason": finish_reason}
    if task_id in _CODED:
        return values | await _coded(task, answer, sandbox)
    if task_id == "2.2":
        return values | await _paged(answer, sandbox)
    if task_id == "2.1":
        return values | await _fixed(task, answer, sandbox)
    found = _POINTS[task_id](answer.text)
    return values | {"items": found, "features": max(0, sum(found.values())) / task.points}


async def _fixed(task: SuiteTask, answer: SuiteAnswer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    """2.1: whether it is fixed is tried out; without Node.js it is read off the middleware, and no score."""
    originals = {path: task_file(f"express/{path}") for path in EXPRESS_FILES}
    changed = editing.changed_files(files_in(answer, originals, SCRIPT))
    confined = bool(changed) and (await sandbox().confinement()).isolation is not None
    checks = await functional.check_express(changed, sandbox()) if confined else None
    works = all(checks.values()) if checks is not None else None
    found = editing.bugfix_points(answer.prose, changed, works)
    values: dict[str, Any] = {"items": found, "features": sum(found.values()) / task.points}
    if checks is not None or not changed:
        return values | ({"checks": checks} if checks is not None else {})
    away = MISSING_RUNTIME["2.1"] if confined else NO_SANDBOX
    return values | {"functional": None, "has_functional": True, "away": away}


async def _paged(answer: SuiteAnswer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    """2.2: the app is asked, and its tests are run on it and on the app as it was."""
    originals = {path: task_file(f"flask/{path}") for path in FLASK_FILES}
    files = files_in(answer, originals, PYTHON)
    found = editing.pagination_features(files)
    values: dict[str, Any] = {"has_functional": True, "code": files.get("app.py", "")}
    if files and (await sandbox().confinement()).isolation is None:
        return values | {"items": found, "features": _share(found), "functional": None, "away": NO_SANDBOX}
    checks = await functional.check_pagination({**originals, **files}, sandbox()) if "app.py" in files else {}
    tested = {name: checks.pop(name, False) for name in functional.OWN_TESTS}
    found |= {name: ok and "test_app.py" in files for name, ok in tested.items()}
    return values | {"items": found, "features": _share(found), "checks": checks, "functional": _share(checks)}


async def _coded(task: SuiteTask, answer: SuiteAnswer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    features, family, path, check = _CODED[task.id]
    code = code_in(answer, family, path, lambda text: sum(features(text).values()))
    found = features(code) if code.strip() else dict.fromkeys(features(""), False)
    penalty = 2 / 3 if family == PYTHON and parse_python(code) is None else 1.0
    values = {"items": found, "features": _share(found), "code": code, "penalty": penalty, "has_functional": True}
    if not code.strip():
        return values | {"functional": 0.0}
    if (await sandbox().confinement()).isolation is None:
        return values | {"functional": None, "away": NO_SANDBOX}
    checks = await check(code, sandbox())
    if checks is None:
        return values | {"functional": None, "away": MISSING_RUNTIME[task.id]}
    return values | {"checks": checks, "functional": _share(checks)}


def _share(found: Mapping[str, bool]) -> float:
    return sum(found.values()) / len(found) if found else 0.0


def score_of_values(values: Mapping[str, Any]) -> TaskScore:
    """The Score that a result's values hold."""
    return TaskScore(
        values.get("features"),
        values.get("functional"),
        bool(values.get("has_functional")),
        values.get("penalty", 1.0),
    )
