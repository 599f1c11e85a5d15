"""One stored reply -> its points. Everything but the functional checks is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpubox.agent.code_answer import PYTHON, SCRIPT, code_in, parse_python
from gpubox.bench.kinds.suite import architecture, coding, debug_log, editing, functional, tool_use
from gpubox.bench.kinds.suite.aggregate import TaskScore
from gpubox.bench.kinds.suite.answer import SuiteAnswer, answer_of_reply, files_in
from gpubox.bench.kinds.suite.bayes import bayes_points
from gpubox.bench.kinds.suite.functional import MISSING_RUNTIME, NO_SANDBOX
from gpubox.bench.kinds.suite.task_prompts import EXPRESS_FILES, FLASK_FILES, task_file
from gpubox.bench.kinds.suite.tasks import TASKS, SuiteTask
from gpubox.sandbox.runner import Sandbox

_CODE_TASKS: Mapping[str, tuple[Callable[[str], dict[str, bool]], str, str, functional.Check]] = {
    "1.1": (coding.todo_features, PYTHON, "todo.py", functional.check_todo),
    "1.2": (coding.shortener_features, PYTHON, "app.py", functional.check_shortener),
    "1.3": (coding.lru_features, SCRIPT, "", functional.check_lru),
}
"""Task -> features of the code, its language, its file, its functional checks."""
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
    """A result's values: the points of each criterion, the shares, and why anything is n/a."""
    task = TASKS[task_id]
    answer = answer_of_reply(content, reasoning_content, finish_reason)
    values: dict[str, Any] = {"task": task_id, "source": answer.source, "finish_reason": finish_reason}
    if task_id in _CODE_TASKS:
        return values | await _score_code(task, answer, sandbox)
    if task_id == "2.1":
        return values | await _score_bugfix(task, answer, sandbox)
    if task_id == "2.2":
        return values | await _score_pagination(answer, sandbox)
    points = _POINTS[task_id](answer.text)
    return values | {"items": points, "features": max(0, sum(points.values())) / task.points}


async def _score_code(task: SuiteTask, answer: SuiteAnswer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    features_of, family, path, check = _CODE_TASKS[task.id]
    code = code_in(answer.text, family, path)
    features = features_of(code) if code.strip() else dict.fromkeys(features_of(""), False)
    penalty = 2 / 3 if family == PYTHON and parse_python(code) is None else 1.0
    values = {"items": features, "features": _share(features), "code": code, "penalty": penalty}
    if not code.strip():
        return values | {"functional": 0.0}
    if not await _confines(sandbox):
        return values | {"functional": None, "unavailable": NO_SANDBOX}
    checks = await check(code, sandbox())
    if checks is None:
        return values | {"functional": None, "unavailable": MISSING_RUNTIME[task.id]}
    return values | {"checks": checks, "functional": _share(checks)}


async def _score_bugfix(task: SuiteTask, answer: SuiteAnswer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    """2.1: the fixed app is run. Without Node.js only the middleware is read, and there is no score."""
    originals = {path: task_file(f"express/{path}") for path in EXPRESS_FILES}
    changed = editing.changed_files(files_in(answer, originals, SCRIPT))
    confined = bool(changed) and await _confines(sandbox)
    checks = await functional.check_express(changed, sandbox()) if confined else None
    points = editing.bugfix_points(answer.prose, changed, None if checks is None else all(checks.values()))
    values: dict[str, Any] = {"items": points, "features": sum(points.values()) / task.points}
    if checks is not None:
        return values | {"checks": checks}
    if not changed:
        return values
    unavailable = MISSING_RUNTIME["2.1"] if confined else NO_SANDBOX
    return values | {"functional": None, "unavailable": unavailable}


async def _score_pagination(answer: SuiteAnswer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    """2.2: the app is run, and its tests are run on it and on the original app."""
    originals = {path: task_file(f"flask/{path}") for path in FLASK_FILES}
    files = files_in(answer, originals, PYTHON)
    features = editing.pagination_features(files)
    values: dict[str, Any] = {"code": files.get("app.py", "")}
    if files and not await _confines(sandbox):
        unavailable = {"functional": None, "unavailable": NO_SANDBOX}
        return values | {"items": features, "features": _share(features), **unavailable}
    checks = await functional.check_pagination({**originals, **files}, sandbox()) if "app.py" in files else {}
    for name in functional.OWN_TESTS:
        features[name] = checks.pop(name, False) and "test_app.py" in files
    return values | {
        "items": features, "features": _share(features), "checks": checks, "functional": _share(checks),
    }  # fmt: skip


async def _confines(sandbox: Callable[[], Sandbox]) -> bool:
    return (await sandbox().confinement()).isolation is not None


def _share(results: Mapping[str, bool]) -> float:
    return sum(results.values()) / len(results) if results else 0.0


def score_of_values(values: Mapping[str, Any]) -> TaskScore:
    """The TaskScore that a result's values hold."""
    penalty = values.get("penalty", 1.0)
    return TaskScore(values.get("features"), values.get("functional"), "functional" in values, penalty)
