"""The owner at a chat with default settings: he asks, answers what he is asked, reads the diff, and takes it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar

import pytest

from gpubox.agent.chat import Chat
from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import AgentEvent, TurnFailed, TurnFinished
from gpubox.agent.tools import Answer, OwnerQuestion
from gpubox.config import Config
from gpubox.paths import Paths
from tests.swe.model import Model, ModelServer, Script
from tests.swe.project import Entry, Project, differences

MOST_REQUESTS = 60


class Task:
    """One job in one project. Subclasses say what differs."""

    prompt: ClassVar[str]
    changes: ClassVar[Collection[str]]
    """The paths that differ in the owner's folder after he took the changes: all of these, and no others."""
    night: ClassVar[bool] = False
    """Too long for the quick run."""
    home: Path | None = None
    """Where its toolchain is, and so the owner's home."""
    tested_by: ClassVar[str] = ""
    """The project's test command, which the owner confirms once."""
    answers: ClassVar[Mapping[str, Answer]] = {}
    """What the owner says to the questions of the turn, by a pattern of their text."""

    def make(self, project: Project) -> None:
        """Writes the project. Raises MissingError if this machine lacks a toolchain."""
        raise NotImplementedError

    def solve(self) -> Script:
        """What the model does."""
        raise NotImplementedError

    def check(self, project: Project) -> None:
        """The owner's own look at his folder, with his own tools."""
        raise NotImplementedError

    async def talk(self, owner: Owner) -> None:
        """The whole chat: one question, and all changes are taken."""
        await owner.asks(self.prompt, self.solve())
        await owner.takes()


class Owner:
    """One owner, his project, and the chat about it."""

    def __init__(self, paths: Paths, project: Project, task: Task, server: ModelServer) -> None:
        self.project, self.task, self.server = project, task, server
        self.questions: list[str] = []
        self.unanswered: list[str] = []
        self.answer = ""
        """The model's last answer."""
        self.meanwhile: Callable[[], None] | None = None
        """What he does once while the model works."""
        self._paths = paths
        self.chat = self._open()
        self.chat.change_settings(ChatSettings(workdir=str(project.root)))

    async def asks(self, prompt: str, script: Script) -> None:
        """One turn, to its end. The folder must not change while the model works."""
        model = self.server.model = Model(script)
        before = self.project.entries()
        events: list[AgentEvent] = []
        async with aclosing(self.chat.send(prompt)) as turn:
            async for event in turn:
                events.append(event)
                if self.meanwhile and model.outputs:
                    self.meanwhile()
                    self.meanwhile = None
                    before = self.project.entries()
        end = events[-1]
        assert not model.lost, f"the model is lost: {model.lost}\n\nAll that it read:\n" + "\n---\n".join(model.outputs)
        assert not isinstance(end, TurnFailed), end
        assert isinstance(end, TurnFinished) and end.reason == "answered", end
        assert len(self.server.bodies) <= MOST_REQUESTS
        assert not self.unanswered, f"a question that the owner did not expect: {self.unanswered}"
        self.answer = end.text
        assert not differences(before, self.project.entries()), "the folder changed while the model worked"

    async def takes(self) -> None:
        """Takes all but what the screen names, and drops that."""
        await self.chat.take()
        if await self.chat.changes():
            await self.chat.drop()

    async def comes_back(self) -> None:
        """Closes gpubox, and opens the chat again later."""
        await self.chat.close()
        self.chat = self._open(self.chat.name)

    async def takes_by_verb(self) -> None:
        """Takes all by ``gpubox chat take``, while no screen has the chat open."""
        await self.chat.close()
        for verb in ("diff", "take"):
            await asyncio.to_thread(self.project.run, sys.executable, "-m", "gpubox", "chat", verb, self.chat.name)
        self.chat = self._open(self.chat.name)
        assert not await self.chat.changes()

    def _open(self, name: str = "") -> Chat:
        return Chat(self._paths, Config(), name, find=self._endpoint, ask=self._answer)

    async def _endpoint(self) -> ServerEndpoint:
        return ServerEndpoint(self.server.url, profile_name="coder")

    async def _answer(self, question: OwnerQuestion) -> Answer:
        self.questions.append(question.text)
        if question.kind == "test":  # he confirms the command of his project, and no other
            return Answer(question.text.splitlines()[-1] == self.task.tested_by)
        for pattern, answer in self.task.answers.items():
            if re.search(pattern, question.text):
                return answer
        self.unanswered.append(question.text)
        return Answer(False)


async def work(task: Task, paths: Paths, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole task through ``Chat``; AssertionError if the owner does not have what he asked for at the end.

    Raises MissingError if this machine lacks a toolchain.
    """
    project = Project(root)
    task.make(project)
    if task.home:
        monkeypatch.setenv("HOME", str(task.home))
    before = project.entries()
    async with ModelServer() as server:
        owner = Owner(paths, project, task, server)
        try:
            await task.talk(owner)
        finally:
            await owner.chat.close()
    compare(task, before, project)
    task.check(project)


def compare(task: Task, before: Mapping[str, Entry], project: Project) -> None:
    """Says whether exactly the files of the task changed, nothing of ours is left, and each owner and mode is kept."""
    after = project.entries()
    changed = differences(before, after)
    assert changed == set(task.changes), {path: (before.get(path), after.get(path)) for path in changed}
    for path in changed & before.keys() & after.keys():
        old, new = before[path], after[path]
        assert old[:3] == new[:3] or path in getattr(task, "modes", ()), f"{path}: mode or owner {old} -> {new}"
