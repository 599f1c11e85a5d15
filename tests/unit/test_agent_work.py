"""A chat over a real workspace in the real sandbox: the owner takes what it changed, and all can be undone."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent import projects
from gpubox.agent.chat import Chat
from gpubox.agent.chat_files import chat_path, layers_folder, load_chat, remove_chat
from gpubox.agent.chat_log import ChatSettings
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import (
    AgentEvent,
    Compacted,
    FilesChanged,
    Notice,
    TestFinished,
    TextDelta,
    ToolFinished,
    TurnFailed,
    TurnFinished,
)
from gpubox.agent.tools import Answer, OwnerQuestion
from gpubox.config import Config
from gpubox.errors import GpuboxError, UsageError
from gpubox.paths import Paths
from gpubox.sandbox.changes import unified
from gpubox.sandbox.runner import Sandbox
from gpubox.sandbox.steps import now_ns
from tests.scripted_server import FENCED, Play, ScriptedServer, call, says


class Desk:
    """A project, and chats over it."""

    def __init__(self, paths: Paths, folder: Path) -> None:
        self.paths, self.root, self.server = paths, folder, ScriptedServer()
        self.launch, self.questions = "a", list[OwnerQuestion]()
        self.answer = Answer(True)
        self.sandbox = Sandbox(Config())
        folder.mkdir()
        (folder / "a.py").write_text("def f():\n    return 1\n")
        (folder / "b.txt").write_text("one\ntwo\n")
        while now_ns() <= (folder / "b.txt").stat().st_ctime_ns:
            time.sleep(0.001)  # what is written in the same tick as a turn begins counts as written after it

    async def find(self) -> ServerEndpoint:
        return ServerEndpoint(self.server.url, profile_name="coder", launch_id=self.launch)

    async def ask_owner(self, question: OwnerQuestion) -> Answer:
        self.questions.append(question)
        return self.answer

    def chat(self, name: str = "", **settings: Any) -> Chat:
        chat = Chat(self.paths, Config(), name, find=self.find, ask=self.ask_owner, sandbox=self.sandbox)
        if not name:
            chat.change_settings(ChatSettings(**{"workdir": str(self.root), **settings}))
        return chat

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and ".git" not in path.parts
        }

    def model_reads(self, request: int = -1) -> list[str]:
        return [message["content"] or "" for message in self.server.bodies[request]["messages"]]


@pytest.fixture
def desk(paths: Paths, tmp_path: Path) -> Desk:
    return Desk(paths, tmp_path / "project")


def tool(name: str, **arguments: Any) -> Play:
    return says(calls=[call(name, json.dumps(arguments))])


EDIT = tool("edit", path="a.py", edits=[{"old": "return 1", "new": "return 2"}])
SHELL = tool("run", command="rm b.txt; mkdir src; echo 'x = 1' > src/c.py; chmod 700 a.py")


async def ask(chat: Chat, text: str = "Do it.") -> list[AgentEvent]:
    async with asyncio.timeout(60), aclosing(chat.send(text)) as events:
        return [event async for event in events]


def outputs(events: list[AgentEvent]) -> list[str]:
    return [event.output.text for event in events if isinstance(event, ToolFinished)]


def notices(events: list[AgentEvent]) -> dict[str, str]:
    return {event.kind: event.text for event in events if isinstance(event, Notice)}


async def test_a_turn_changes_nothing_until_it_is_taken(desk: Desk) -> None:
    before = desk.files()
    async with ScriptedServer(EDIT, SHELL, tool("read", path="a.py"), says("Done.")) as desk.server:
        chat = desk.chat()
        events = await ask(chat)
        assert outputs(events)[1].endswith("[files changed: a.py, b.txt (removed), src/, src/c.py]")
        assert outputs(events)[2] == "def f():\n    return 2", "the tools see what programs do, and they what tools do"
        assert desk.files() == before
        (changed,) = (event for event in events if isinstance(event, FilesChanged))
        assert events.index(changed) == len(events) - 2 and isinstance(events[-1], TurnFinished)
        assert {file.path: file.kind for file in changed.files} == {
            "a.py": "changed", "b.txt": "removed", "src/c.py": "new",
        }  # fmt: skip
        assert [unified(change) for change in await chat.changes() if change.path == "src/c.py"] == [
            "--- /dev/null\n+++ src/c.py\n@@ -0,0 +1,1 @@\n+x = 1\n"
        ]
        result = await chat.take({"a.py": None, "src/c.py": None})
        assert sorted(result.taken) == ["a.py", "src/c.py"], result.left
        assert desk.files() == before | {"a.py": "def f():\n    return 2\n", "src/c.py": "x = 1\n"}
        await chat.take()
        assert "b.txt" not in desk.files() and (desk.root / "a.py").stat().st_mode & 0o777 == 0o700
        assert await chat.changes() == []
        await chat.close()


async def test_a_drop_with_a_reason_is_read_by_the_model_also_after_a_restart(desk: Desk) -> None:
    async with ScriptedServer(EDIT, SHELL, says("Done."), says("Sorry.")) as desk.server:
        chat = desk.chat()
        await ask(chat)
        await chat.drop({"a.py": None}, "one is right")
        assert [change.path for change in await chat.changes()] == ["b.txt", "src/c.py"]
        await chat.drop()
        assert await chat.changes() == []
        await chat.close()
        again = desk.chat("do-it")
        await ask(again, "Go on.")
        await ask_nothing(again)
        await again.close()
    assert desk.model_reads()[-1] == (
        "(The owner dropped your change of a.py: one is right)\n\n(The owner dropped your change of b.txt, src/c.py.)"
        "\n\nGo on."
    )
    assert load_chat(chat_path(desk.paths, "do-it")).notes == [], "it is told once"


async def ask_nothing(chat: Chat) -> None:
    with pytest.raises(UsageError, match="no turn to redo"):
        await chat.redo()


async def test_undo_and_redo_of_files_and_conversation_also_after_a_restart(desk: Desk) -> None:
    start = desk.files()
    async with ScriptedServer(says("Hello."), EDIT, says("Two."), SHELL, says("Three."), says("?")) as desk.server:
        chat = desk.chat()
        for question in ("Hi.", "Edit.", "Run."):
            await ask(chat, question)
            await chat.take()
        end, turns = desk.files(), [turn.id for turn in chat.log.path()]
        result = await chat.undo()
        assert result.turns == (turns[2],) and desk.files() == start | {"a.py": "def f():\n    return 2\n"}
        await chat.close()

        chat = desk.chat("hi")
        await chat.undo(turns[1])
        assert desk.files() == start and chat.log.head == turns[0]
        await chat.redo()
        assert chat.log.head == turns[1]
        await chat.redo()
        assert desk.files() == end and chat.log.head == turns[2]
        with pytest.raises(UsageError, match="no turn to redo"):
            await chat.redo()
        await chat.undo(turns[0])
        assert desk.files() == start and chat.log.head == ""
        with pytest.raises(UsageError, match="no turn to undo"):
            await chat.undo()
        await ask(chat, "Anew.")
        with pytest.raises(UsageError, match="no turn to redo"):
            await chat.redo()
        await chat.close()
    assert desk.model_reads()[1:] == ["Anew."]


async def test_an_undo_never_overwrites_what_the_owner_wrote_since(desk: Desk) -> None:
    async with ScriptedServer(EDIT, says("Done.")) as desk.server:
        chat = desk.chat()
        await ask(chat)
        await chat.take()
        (desk.root / "a.py").write_text("mine\n")
        head = chat.log.head
        with pytest.raises(GpuboxError, match="since"):
            await chat.undo()
        assert (desk.root / "a.py").read_text() == "mine\n" and chat.log.head == head
        assert (await chat.undo(keep=["a.py"])).kept == ("a.py",)
        assert (desk.root / "a.py").read_text() == "mine\n" and chat.log.head == ""
        await chat.close()


async def test_turn_mode_takes_all_but_conflicts_and_what_runs_by_itself(desk: Desk) -> None:
    command = "echo x > new; mkdir -p .git/hooks; echo x > .git/hooks/post-commit; echo theirs >> b.txt"

    async with ScriptedServer(
        tool("run", command=command), tool("ask", question="Ready?"), says("Done.")
    ) as desk.server:
        chat = desk.chat(apply="turn")

        async def meanwhile(question: OwnerQuestion) -> Answer:
            (desk.root / "b.txt").write_text("the owner's\n")
            return Answer(True)

        chat._ask_owner = meanwhile
        events = await ask(chat)
        left = [event.text for event in events if isinstance(event, Notice) and event.kind == "left"]
        assert len(left) == 2 and left[0].startswith(".git") and left[1].startswith("b.txt waits for you")
        assert desk.files()["new"] == "x\n" and desk.files()["b.txt"] == "the owner's\n"
        assert not (desk.root / ".git").exists()
        assert len(await chat.changes()) == 2
        await chat.close()


async def test_plan_mode_writes_nothing_and_says_so(desk: Desk) -> None:
    before = desk.files()
    write = tool("write", path="new", content="x")
    plays = [EDIT, write, tool("run", command="echo x > made; ls; cat made"), says("A plan."), EDIT, says("Done.")]
    async with ScriptedServer(*plays) as desk.server:
        chat = desk.chat(apply="plan")
        events = await ask(chat)
        edit, written, ran = outputs(events)
        assert edit.startswith("Plan mode: nothing is written.") and written == edit
        assert ran.startswith("a.py\nb.txt\nmade\nx"), "a program may write: a test run needs that"
        assert not [event for event in events if isinstance(event, FilesChanged)]
        assert await chat.changes() == [] and desk.files() == before
        assert "(Plan mode:" in desk.model_reads(0)[-1]
        chat.change_settings(ChatSettings(workdir=str(desk.root)))
        await ask(chat, "Do it.")
        assert [change.path for change in await chat.changes()] == ["a.py"]
        await chat.close()


async def test_what_a_stopped_or_killed_turn_changed_is_kept(desk: Desk) -> None:
    async with ScriptedServer(EDIT, says(["Once"], hang=True), SHELL, says(["Once"], hang=True)) as desk.server:
        chat = desk.chat()
        async with asyncio.timeout(60), aclosing(chat.send("Do it.")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    chat.stop()
        assert [change.path for change in await chat.changes()] == ["a.py"]
        async with asyncio.timeout(60), aclosing(chat.send("More.")) as events:
            async for event in events:
                if isinstance(event, ToolFinished):
                    break
        kinds = [type(event) for event in chat.log.path()[-1].events[-2:]]
        assert kinds == [FilesChanged, TurnFinished], "the reader went away"
        await chat.close()
        chat = desk.chat("do-it")
        assert [change.path for change in await chat.changes()] == ["a.py", "b.txt", "src/c.py"]
        await chat.close()


async def test_the_test_command_is_asked_for_once_and_runs_after_turns_that_changed_files(desk: Desk) -> None:
    (desk.root / "Makefile").write_text("test:\n\t@echo tested; touch left; grep -q 'return 2' a.py\n")
    plays = [tool("test"), EDIT, says("Done."), says("Nothing."), tool("test"), says("Good.")]
    async with ScriptedServer(*plays) as desk.server:
        chat = desk.chat()
        assert await chat.test_command() == ("", "make test")
        with pytest.raises(UsageError, match="no turn yet"):
            await chat.run_test()
        events = await ask(chat)
        assert [(q.kind, q.text) for q in desk.questions] == [
            ("test", "Is this the command that tests the project?\nmake test")
        ]
        assert "tested" in outputs(events)[0] and "[exit code 2]" in outputs(events)[0]
        (tested,) = (event for event in events if isinstance(event, TestFinished))
        assert (tested.command, tested.output.ok) == ("make test", True)
        assert not [event for event in await ask(chat, "Nothing?") if isinstance(event, TestFinished)]
        await ask(chat, "Again.")
        assert len(desk.questions) == 1
        assert (await chat.run_test()).output.ok
        await chat.close()
    assert projects.load_project(desk.paths, desk.root).test_command == "make test"


async def test_a_test_after_the_turn_leaves_nothing_and_can_be_stopped(desk: Desk) -> None:
    projects.save_project(desk.paths, desk.root, projects.Project(test_command="touch left; sleep 100"))
    async with ScriptedServer(EDIT, says("Done.")) as desk.server:
        chat = desk.chat()
        async with asyncio.timeout(60), aclosing(chat.send("Do it.")) as events:
            seen = []
            async for event in events:
                seen.append(event)
                if isinstance(event, FilesChanged):
                    asyncio.get_running_loop().call_later(0.2, chat.stop)
        assert notices(seen)["stopped"] == "The tests were stopped."
        assert isinstance(seen[-1], TurnFinished) and seen[-1].text == "Done."
        assert [change.path for change in await chat.changes()] == ["a.py"]
        await chat.close()


async def test_a_turn_that_is_cancelled_in_its_tests_ends_at_once(desk: Desk) -> None:
    projects.save_project(desk.paths, desk.root, projects.Project(test_command="sleep 100"))
    async with ScriptedServer(EDIT, says("Done.")) as desk.server:
        chat = desk.chat()
        seen: list[AgentEvent] = []

        async def watch() -> None:
            async with aclosing(chat.send("Do it.")) as events:
                async for event in events:
                    seen.append(event)
                    if isinstance(event, FilesChanged):
                        asyncio.get_running_loop().call_later(0.2, watching.cancel)

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(60):
            await asyncio.wait([watching])
        assert watching.cancelled() and isinstance(seen[-1], FilesChanged)
        assert [change.path for change in await chat.changes()] == ["a.py"]
        await chat.close()


async def test_the_rules_of_a_project_come_first_and_stay(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sesame")
    (desk.root / "AGENTS.md").symlink_to(tmp_path / "secret")
    (desk.root / "CLAUDE.md").write_text("Use tabs.\n" + "long line\n" * 2000)
    async with ScriptedServer(says("Yes."), says("Yes.")) as desk.server:
        chat = desk.chat()
        events = await ask(chat)
        assert notices(events) == {"rules": "CLAUDE.md: ~2,009 tokens."}
        (desk.root / "CLAUDE.md").write_text("Use blanks.\n")
        await ask(chat, "And now?")
        await chat.close()
    first, second = desk.model_reads(0), desk.model_reads(1)
    assert second[:4] == first and first[2:] == ["Understood.", "Do it."]
    assert first[1].startswith("CLAUDE.md of this project:\n\nUse tabs.\n")
    assert "(the rest is left out: read CLAUDE.md)" in first[1] and "sesame" not in first[1]


async def test_the_network_is_asked_for_by_command(desk: Desk) -> None:
    desk.answer = Answer(False, "not today")
    async with ScriptedServer(tool("run", command="curl x", network=True), says("Well.")) as desk.server:
        chat = desk.chat()
        assert outputs(await ask(chat)) == ["The owner said no: not today"]
        await chat.close()
    assert desk.questions[0].kind == "network" and "curl x" in desk.questions[0].text


async def test_done_and_a_question_of_the_model(desk: Desk) -> None:
    desk.answer = Answer(True, "blue")
    plays = [tool("ask", question="Which?", options=["red", "blue"]), tool("done", summary="It is blue.")]
    async with ScriptedServer(*plays) as desk.server:
        chat = desk.chat()
        events = await ask(chat)
        await chat.close()
    assert outputs(events)[0] == "blue" and desk.questions[0].options == ("red", "blue")
    assert isinstance(events[-1], TurnFinished) and events[-1].text == "It is blue."


async def test_a_chat_without_a_workspace_keeps_its_files(desk: Desk) -> None:
    plays = [tool("run", code="open('x', 'w').write('1')"), says("."), tool("run", command="cat x"), says(".")]
    async with ScriptedServer(*plays) as desk.server:
        chat = desk.chat(workdir="")
        assert [tool.name for tool in (await chat_tools(chat))] == ["run"]
        await chat.close()
        chat = desk.chat("do-it")
        assert outputs(await ask(chat, "And?"))[0] == "1"
        with pytest.raises(UsageError, match="no workspace"):
            await chat.changes()
        await chat.undo()
        await chat.close()
        remove_chat(desk.paths, "do-it")
    assert list(desk.paths.chats.iterdir()) == []


async def chat_tools(chat: Chat) -> list[Any]:
    await ask(chat)
    assert chat._files.opened is not None
    return chat._files.opened.tools


async def test_a_model_without_calls_works_by_fences(desk: Desk) -> None:
    plays = [says("```bash\nsed -i 's/return 1/return 3/' a.py && cat a.py\n```\n"), says("It returns three.")]
    async with ScriptedServer(*plays, caps=FENCED) as desk.server:
        chat = desk.chat()
        events = await ask(chat)
        assert "return 3" in outputs(events)[0]
        assert [change.path for change in await chat.changes()] == ["a.py"]
        await chat.close()


async def test_another_server_says_what_it_reads_anew(desk: Desk) -> None:
    async with ScriptedServer(says("One.", prompt=700), says("Two.")) as desk.server:
        chat = desk.chat()
        assert "reread" not in notices(await ask(chat))
        desk.launch = "b"
        assert notices(await ask(chat, "More."))["reread"] == "coder reads the whole conversation anew: ~700 tokens."
        await chat.close()


async def test_renaming_takes_the_layers_along(desk: Desk) -> None:
    async with ScriptedServer(EDIT, says("Done.")) as desk.server:
        chat = desk.chat()
        await ask(chat)
        chat.rename_to("other")
        assert [change.path for change in await chat.changes()] == ["a.py"]
        await chat.close()
    assert not layers_folder(chat_path(desk.paths, "do-it")).exists()
    remove_chat(desk.paths, "other")
    assert list(desk.paths.chats.iterdir()) == []


async def test_a_branch_says_that_untaken_changes_stay_behind(desk: Desk) -> None:
    async with ScriptedServer(says("Hm."), EDIT, says("Done."), says("I see.")) as desk.server:
        chat = desk.chat()
        await ask(chat)
        first = chat.log.head
        await ask(chat)
        assert chat.branch("early", first) == ""
        assert chat.branch("late") == "Changes that you have not taken stay in do-it."
        await chat.close()
        late = desk.chat("late")
        await ask(late, "Go on.")
        assert await late.changes() == []
        await late.close()
    assert "of your changes it has only those that the owner took" in desk.model_reads()[-1]


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
async def test_git_is_read_by_the_model_and_committed_by_the_owner(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "O")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "o@example.com")

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=desk.root, capture_output=True, text=True, check=True).stdout

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "begin")
    (desk.root / "staged").write_text("by the owner\n")
    git("add", "staged")
    (desk.root / ".gitignore").write_text("*.log\n")
    look = tool("run", command="git log --oneline && git blame a.py && git commit -qam mine && git status --short")
    make = tool("run", command="echo x > run.log; rm b.txt; echo y > new.py")
    plays = [look, make, EDIT, says("Done."), says("```\nReturn two\n```")]
    async with ScriptedServer(*plays) as desk.server:
        chat = desk.chat()
        events = await ask(chat)
        assert "begin" in outputs(events)[0] and "return 1" in outputs(events)[0]
        assert git("log", "--format=%s").split() == ["begin"], "its commit stays in the layer"
        await chat.take()
        with pytest.raises(GpuboxError, match="still answering"):
            async with aclosing(chat.send("Meanwhile?")) as turn:
                async for _ in turn:
                    await chat.changes()
        await chat.close()
        chat = desk.chat("do-it")
        assert await chat.commit_message() == "Return two"
        said = await chat.commit("Return two\n\nWhy: it is more.")
        assert "Return two" in said
        assert git("show", "--stat", "--format=%B").split()[:2] == ["Return", "two"]
        assert git("status", "--short").split() == ["A", "staged", "??", ".gitignore"]
        assert git("show", "--name-status", "--format=").split() == ["M", "a.py", "D", "b.txt", "A", "new.py"]
        with pytest.raises(UsageError, match="Nothing was taken"):
            await chat.commit("again")
        await chat.close()


async def test_a_long_conversation_is_summed_up_at_the_end_of_a_turn(desk: Desk) -> None:
    read = tool("run", command="seq 2000")
    plays = [read, says("Long."), read, says("More.", prompt=3500), says("We counted."), says(""), says("Yes.")]
    async with ScriptedServer(*plays) as desk.server:
        chat = desk.chat()
        await ask(chat, "Count.")
        assert (await chat.compaction_cost()).startswith("The model sums up what was said: about 1,")
        events = await ask(chat, "Again.")
        kinds = [type(event) for event in events]
        assert kinds.index(Compacted) < kinds.index(TurnFinished) == len(kinds) - 1
        assert [event.kind for event in events if isinstance(event, Notice)] == ["compacting", "compacted"]
        await ask(chat, "Still there?")
        await chat.close()
        again = desk.chat("count")
        assert [m.content for m in again.log.conversation().messages][-3:] == ["We counted.", "Still there?", "Yes."]
        with pytest.raises(GpuboxError, match="nothing to compact"):
            await again.compact()
        await again.close()
    assert not any("1999" in text for text in desk.model_reads())


async def test_images_are_kept_with_the_chat(desk: Desk, tmp_path: Path) -> None:
    picture = tmp_path / "shot.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 20)
    async with ScriptedServer(says("A cat.")) as desk.server:
        chat = desk.chat()
        with pytest.raises(GpuboxError, match="does not see images"):
            events = [event async for event in chat.send("What is it?", [picture])]
            raise GpuboxError(events[-1].message if isinstance(events[-1], TurnFailed) else "it was asked")
        with pytest.raises(GpuboxError, match="cannot be read"):
            await anext(chat.send("And this?", [tmp_path / "none.png"]))
        await chat.close()
    stored = list(chat_path(desk.paths, "what-is-it").with_suffix(".images").iterdir())
    assert [path.read_bytes() for path in stored] == [picture.read_bytes()]
    remove_chat(desk.paths, "what-is-it")
    assert list(desk.paths.chats.iterdir()) == []
