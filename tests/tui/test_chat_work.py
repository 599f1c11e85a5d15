"""The chat screen over a real workspace: what the owner presses decides what reaches his folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from gpubox.agent.projects import Project, save_project
from gpubox.config import Config
from gpubox.paths import Paths
from gpubox.tui.app import GpuboxApp
from gpubox.tui.chat.chat_screen import ChatScreen
from gpubox.tui.chat.chats import Chats
from tests.scripted_server import Play, ScriptedServer, call, says
from tests.tui.conftest import SIZE, app_of, shows, text, until
from tests.tui.fake import READY, FakeServices
from tests.tui.test_chat import over, say


def tool(name: str, **arguments: Any) -> Play:
    return says(calls=[call(name, json.dumps(arguments))])


PLAYS = (
    tool("edit", path="a.py", edits=[{"old": "return 1", "new": "return 2"}]),
    tool("write", path=".git/hooks/post-merge", content="#!/bin/sh\necho hi\n"),
    tool("run", command="rm b.txt && mkdir src && echo 'x = 1' > src/c.py"),
    says("I changed it."),
)


class RealChats(FakeServices):
    """The chats of this machine; a scripted model answers."""

    def __init__(self, paths: Paths, url: str) -> None:
        super().__init__(READY)
        self.chats = Chats(paths, Config(), url)

    def chat_service(self) -> Chats:
        return self.chats


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: Paths) -> Path:
    monkeypatch.setattr("gpubox.tui.chat.turn.FRAME_SECONDS", 0.005)
    monkeypatch.setattr("gpubox.tui.chat.turn.REST_FACTOR", 0)
    monkeypatch.setattr("gpubox.tui.dialogs.TYPING_PAUSE_SECONDS", 0)
    root = tmp_path / "project"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "a.py").write_text("def f():\n    return 1\n")
    (root / "b.txt").write_text("one\n")
    monkeypatch.chdir(root)
    save_project(paths, root, Project(allowed=True))
    return root


def files(root: Path) -> dict[str, str]:
    read: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # an undo may be at work
            read[str(path.relative_to(root))] = path.read_text()
    return read


@asynccontextmanager
async def working(paths: Paths, *plays: Play) -> AsyncIterator[tuple[Pilot[bool], ChatScreen, ScriptedServer]]:
    async with ScriptedServer(*plays, context=32_768) as server:
        app = GpuboxApp(RealChats(paths, server.url))
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: app.bridge.overview, "a status")
            app.action_show("chat")
            await until(pilot, lambda: app.chat and app.chat.sandbox and app.chat.settings.workdir, "the workspace")
            screen = app.chat
            assert screen
            await until(pilot, lambda: screen.composer.has_focus)
            yield pilot, screen, server


async def test_only_what_is_taken_reaches_the_folder_and_an_undo_puts_it_back(project: Path, paths: Paths) -> None:
    before = files(project)
    async with working(paths, *PLAYS, says("Fine.")) as (pilot, screen, server):
        await say(pilot, "change it @a.py")
        await over(pilot, screen)
        assert "return 1" in server.bodies[0]["messages"][-1]["content"], "the file named is read"
        await shows(pilot, "4 files changed", "! .git/hooks/post-merge", "D b.txt", "M a.py", "A src/c.py")
        await shows(pilot, "change-it-a-py", "4 changed files wait")
        assert files(project) == before
        await pilot.press("enter")
        await shows(pilot, "3 files marked")
        await pilot.press("t")
        await until(pilot, lambda: pilot.app.screen is screen)
        await shows(pilot, "✓ Taken: 3 files.", "1 changed file waits for you")
        assert files(project) == {"a.py": "def f():\n    return 2\n", "src/c.py": "x = 1\n"}
        await pilot.press("enter")
        await shows(pilot, "Runs by itself:", "+ echo hi")
        await pilot.press("space", "d")
        await shows(pilot, "Drop 1 file")
        await pilot.press(*"never", "enter")
        await until(pilot, lambda: pilot.app.screen is screen and not screen.commands.changes)
        await say(pilot, "why")
        await over(pilot, screen)
        assert "never" in server.bodies[-1]["messages"][-1]["content"]
        await say(pilot, "/undo")
        await shows(pilot, "Undone: “why”")
        await say(pilot, "/undo")
        await until(pilot, lambda: files(project) == before, "the files as before")
        await until(pilot, lambda: not screen.transcript.turns)
        await say(pilot, "/redo")
        await until(pilot, lambda: "return 2" in (project / "a.py").read_text())
        await shows(pilot, "Redone: “change it @a.py”")


async def test_a_conflict_is_said_and_never_overwritten(project: Path, paths: Paths) -> None:
    async with working(paths, *PLAYS) as (pilot, screen, _):
        await say(pilot, "change it")
        await over(pilot, screen)
        (project / "a.py").write_text("mine = True\n")
        await pilot.press("ctrl+d", "ctrl+d")  # opens it once
        await shows(pilot, "✗ a.py", "2 files marked")
        assert "■ M a.py" not in text(pilot)
        await until(pilot, lambda: not any(worker.group == "chat" for worker in pilot.app.workers if worker.is_running))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        await pilot.press("ctrl+d")
        await shows(pilot, "2 files marked")
        await pilot.press("t")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert (project / "a.py").read_text() == "mine = True\n" and (project / "src" / "c.py").exists()


async def test_at_each_turns_end_all_is_taken_but_what_is_in_doubt(project: Path, paths: Paths) -> None:
    async with working(paths, *PLAYS) as (pilot, screen, _):
        await screen.change_settings(msgspec.structs.replace(screen.settings, apply="turn"))
        await shows(pilot, "changes are taken at once")
        await say(pilot, "change it")
        await over(pilot, screen)
        assert files(project) == {"a.py": "def f():\n    return 2\n", "src/c.py": "x = 1\n"}
        await shows(pilot, "1 changed file waits for you")


async def test_while_planning_nothing_is_written(project: Path, paths: Paths) -> None:
    before = files(project)
    async with working(paths, *PLAYS) as (pilot, screen, _):
        await say(pilot, "/plan")
        await shows(pilot, "◇ plan only")
        await say(pilot, "change it")
        await over(pilot, screen)
        assert files(project) == before and not screen.commands.changes
        assert "files changed" not in text(pilot)


async def test_what_waits_is_there_when_the_chat_is_opened_again(project: Path, paths: Paths) -> None:
    async with working(paths, *PLAYS) as (pilot, screen, _):
        await say(pilot, "change it")
        await over(pilot, screen)
    async with working(paths) as (pilot, screen, _):
        await pilot.press("ctrl+l")
        await shows(pilot, "change-it")
        await pilot.press("enter")
        await shows(pilot, "! .git/hooks/post-merge", "4 changed files wait for you")
        await until(pilot, lambda: screen.composer.has_focus)
        await pilot.press("enter")
        await shows(pilot, "3 files marked")
        assert app_of(pilot).screen is not screen
