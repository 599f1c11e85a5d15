"""One stored reply -> its points. All but the functional tests is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpubox.bench.suite import coding, editing, reasoning, tooluse
from gpubox.bench.suite.aggregate import Score
from gpubox.bench.suite.answer import Answer, answer_of, code_in, files_in
from gpubox.bench.suite.bayes import bayes_points
from gpubox.bench.suite.functional import NO_SANDBOX, NOT_HERE, check_express, check_todo
from gpubox.bench.suite.tasks import TASKS, Task
from gpubox.bench.syntax import parsed
from gpubox.sandbox.runner import Sandbox

_FEATURES: Mapping[str, tuple[Callable[[str], dict[str, bool]], tuple[str, ...]]] = {
    "1.1": (coding.todo_features, ("python", "py", "python3")),
    "1.2": (coding.shortener_features, ("python", "py", "python3")),
    "1.3": (coding.lru_features, ("typescript", "ts", "javascript", "js")),
}
_POINTS: Mapping[str, Callable[[str], dict[str, int]]] = {
    "3.1": reasoning.debug_log_points,
    "3.2": reasoning.architecture_points,
    "3.3": bayes_points,
    "4.1": tooluse.structured_points,
    "4.2": tooluse.sequencing_points,
}


async def score_reply(
    task_id: str, content: str, reasoning_content: str, finish_reason: str, sandbox: Callable[[], Sandbox]
) -> dict[str, Any]:
    """A result's values: the items with their points, the shares, and why anything is n/a."""
    task = TASKS[task_id]
    answer = answer_of(content, reasoning_content, finish_reason)
    values: dict[str, Any] = {"task": task_id, "source": answer.source, "finish_reason": finish_reason}
    if task_id in _FEATURES:
        return values | await _coded(task, answer, sandbox)
    if task_id == "2.2":
        return values | _functional_away(task, editing.pagination_features(files_in(answer)))
    if task_id == "2.1":
        return values | await _fixed(task, answer, sandbox)
    found = _POINTS[task_id](answer.text)
    return values | {"items": found, "features": max(0, sum(found.values())) / task.points}


async def _fixed(task: Task, answer: Answer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    """2.1: whether it is fixed is tried out where there is Node.js, else read off the middleware."""
    changed = editing.changed_files(files_in(answer))
    confined = bool(changed) and (await sandbox().confinement()).tier is not None
    checks = await check_express(changed, sandbox()) if confined else None
    works = all(checks.values()) if checks is not None else None
    found = editing.bugfix_points(answer.text, changed, works)
    values: dict[str, Any] = {"items": found, "features": sum(found.values()) / task.points}
    if checks is not None:
        return values | {"checks": checks}
    return values | ({"away": NOT_HERE["2.1"] if confined else NO_SANDBOX} if changed else {})


async def _coded(task: Task, answer: Answer, sandbox: Callable[[], Sandbox]) -> dict[str, Any]:
    features, languages = _FEATURES[task.id]
    code = code_in(answer, languages)
    found = features(code) if code.strip() else dict.fromkeys(features(""), False)
    penalty = 2 / 3 if task.id != "1.3" and parsed(code) is None else 1.0
    values = {"items": found, "features": _share(found), "code": code, "penalty": penalty}
    if task.id != "1.1":
        return values | {"functional": None, "away": NOT_HERE[task.id], "has_functional": True}
    if (await sandbox().confinement()).tier is None:
        return values | {"functional": None, "away": NO_SANDBOX, "has_functional": True}
    checks = await check_todo(code, sandbox())
    return values | {"checks": checks, "functional": _share(checks), "has_functional": True}


def _functional_away(task: Task, found: dict[str, bool]) -> dict[str, Any]:
    away = {"functional": None, "away": NOT_HERE[task.id], "has_functional": True}
    return {"items": found, "features": _share(found), **away}


def _share(found: Mapping[str, bool]) -> float:
    return sum(found.values()) / len(found)


def score_of(values: Mapping[str, Any]) -> Score:
    """The Score that a result's values hold."""
    return Score(
        values.get("features"),
        values.get("functional"),
        bool(values.get("has_functional")),
        values.get("penalty", 1.0),
    )
