"""SWE-mini: each task ends with what the owner asked for in his own folder, and with nothing else."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from gpubox.config import Config
from gpubox.paths import Paths
from gpubox.sandbox import workspace_run
from gpubox.sandbox.runner import Sandbox
from tests.sampling import sampled
from tests.swe import tasks_files, tasks_languages, tasks_python
from tests.swe.driver import Task, work
from tests.swe.project import MissingError

SECONDS = 300.0


def _tasks() -> list[type[Task]]:
    modules = tasks_python, tasks_languages, tasks_files
    return [
        kind for module in modules for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Task) and kind.__module__ == module.__name__
    ]  # fmt: skip


TASKS = _tasks()
QUICK = [task for task in TASKS if not task.night]


def _params() -> list[Any]:
    long = [pytest.param(task, id=task.__name__, marks=pytest.mark.nightly) for task in TASKS if task.night]
    return [*sampled([pytest.param(task, id=task.__name__) for task in QUICK], 0.25), *long]


@pytest.mark.parametrize("kind", _params())
async def test_the_owner_gets_what_he_asked_for(
    kind: type[Task], paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _done(kind, paths, tmp_path, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", QUICK, ids=lambda kind: kind.__name__)
async def test_he_gets_it_where_no_overlay_can_be_mounted(
    kind: type[Task], paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_run, "_obstacle", lambda *_: "an older bubblewrap")
    await _done(kind, paths, tmp_path, monkeypatch)


def test_there_are_twenty_tasks_and_most_need_no_toolchain_of_a_home() -> None:
    assert len(TASKS) >= 20 and len(QUICK) >= 15


async def _done(kind: type[Task], paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (await Sandbox(Config()).confinement()).isolation is None:
        pytest.skip("nothing confines programs on this machine")
    try:
        async with asyncio.timeout(SECONDS):
            await work(kind(), paths, tmp_path / "project", monkeypatch)
    except MissingError as missing:
        pytest.skip(str(missing))
