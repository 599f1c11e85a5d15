"""SWE-mini through the real screen: the owner types the task, and presses only keys that stand on the screen then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from gpubox.config import Config
from gpubox.paths import Paths
from gpubox.sandbox.runner import Sandbox
from gpubox.tui import dialogs
from gpubox.tui.app import GpuboxApp
from gpubox.tui.services import LocalServices
from tests.sampling import sampled
from tests.swe.driver import Task, compare
from tests.swe.model import Model, ModelServer
from tests.swe.project import MissingError, Project, differences
from tests.swe.tasks_files import Crlf, ScriptMode
from tests.swe.tasks_languages import MakeAndC, Node
from tests.swe.tasks_python import FailingTest, FourFiles
from tests.tui.conftest import SIZES, _quiet, settled, text, until, whole

__all__ = ["_quiet"]  # a fixture

SECONDS = 120.0
CASES = [
    *((Crlf, "80x24"), (FourFiles, "120x36"), (Node, "160x45")),
    *((MakeAndC, "80x24"), (FailingTest, "160x45"), (ScriptMode, "120x36")),
]
KEY = r"⏎|esc|space|tab|↑|↓|\^\w|F\d+|\w"
"""As the screen writes keys."""
NAMES = {"⏎": "enter", "esc": "escape", "space": "space", "tab": "tab", "↑": "up", "↓": "down"}


class Hand:
    """Presses the key that the screen names for some words, and waits for texts."""

    def __init__(self, pilot: Pilot[Any]) -> None:
        self.pilot = pilot
        self.pressed: list[str] = []

    async def press(self, words: str) -> None:
        """The key that stands before ``words``, a pattern."""
        await until(self.pilot, lambda: self._key(words), f"a key for {words}")
        await self._press(self._key(words))

    async def sees(self, words: str) -> None:
        await until(self.pilot, lambda: re.search(words, self._flat()), words)

    async def writes(self, words: str) -> None:
        await self.pilot.press(*("space" if char == " " else char for char in words))

    async def commands(self, words: str) -> None:
        """Writes and sends it: by now the owner knows the key, where a message covers the bar for some seconds."""
        await self.writes(words)
        await settled(self.pilot)
        await self._press("⏎")

    async def answers(self, task: Task, pending: Callable[[], object]) -> None:
        """Answers the question that stands there, if one does. ``pending``: what is asked."""
        if (asked := pending()) is None or "tab, then y or n" not in self._flat():
            await asyncio.sleep(0.05)
            return
        await settled(self.pilot)
        shown = self._flat()
        await self._press("tab")
        await self._decides(task, shown)
        await until(self.pilot, lambda: pending() is not asked, "the next question, or none")

    async def _decides(self, task: Task, shown: str) -> None:
        if task.tested_by and task.tested_by in shown:
            await self.press("yes")
            return
        (answer,) = [answer for pattern, answer in task.answers.items() if re.search(pattern, shown)]
        if answer.yes:
            await self.press("yes")
            return
        await self.press("no")
        await self.writes(answer.text)
        await self.press("answers")

    async def _press(self, key: str) -> None:
        self.pressed.append(key)
        await self.pilot.press(NAMES.get(key) or key.replace("^", "ctrl+"))

    def _key(self, words: str) -> str:
        match = re.search(rf"(?<!\S)({KEY}) +(?:{words})", self._flat())
        return match[1] if match else ""

    def _flat(self) -> str:
        return re.sub(r"[\s│╭╮╰╯─]+", " ", text(self.pilot))


async def code(task: Task, project: Project, hand: Hand, app: GpuboxApp, model: Model) -> None:
    """From the dashboard to the taken changes, and once back and forth."""
    before = project.entries()
    await until(hand.pilot, lambda: app.bridge.overview and app.bridge.overview.status.up, "the server")
    await hand.press("chat")
    await hand.sees("Use .* as workspace")
    await hand._press("tab")
    await hand.press("yes")
    await until(hand.pilot, lambda: app.chat and app.chat.settings.workdir and app.chat.composer.has_focus)
    await hand.writes(task.prompt)
    await hand.press("send")
    while not (model.ended and app.chat and app.chat.runner.turn and app.chat.runner.turn.over):
        await hand.answers(task, lambda: app.chat and app.chat.questions.question)
    assert not model.lost, f"the model is lost: {model.lost}"
    await hand.sees("changed files? waits? for you")
    await hand.press("diff")
    await hand.sees("Changes")
    await settled(hand.pilot)
    whole(hand.pilot)
    await hand.press("take")
    await hand.sees("Taken.*(/undo) takes the turn back")
    taken = project.entries()
    await hand.commands("/undo")
    await hand.sees("is undone.*(/redo) brings it back")
    assert not differences(before, project.entries())
    await hand.commands("/redo")
    await hand.sees("Redone")
    assert not differences(taken, project.entries())


@pytest.mark.parametrize(("kind", "size"), sampled(CASES, 0.2))
async def test_the_owner_presses_only_what_the_screen_says(
    kind: type[Task], size: str, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (await Sandbox(Config()).confinement()).isolation is None:
        pytest.skip("nothing confines programs on this machine")
    monkeypatch.setattr(dialogs, "TYPING_PAUSE_SECONDS", 0)
    task, project = kind(), Project(tmp_path / "project")
    try:
        task.make(project)
        project.commit("Begin")  # the screen offers a folder that looks like a project
    except MissingError as missing:
        pytest.skip(str(missing))
    monkeypatch.chdir(project.root)
    before = project.entries()
    async with ModelServer() as server:
        model = server.model = Model(task.solve())
        app = GpuboxApp(LocalServices(paths, Config(), server.url))
        async with asyncio.timeout(SECONDS), app.run_test(size=SIZES[size], notifications=True) as pilot:
            await code(task, project, Hand(pilot), app, model)
    compare(task, before, project)
    task.check(project)
