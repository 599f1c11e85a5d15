"""An open chat: what it keeps when a turn is stopped, closed, broken or repeated, and which server answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.chat import Chat
from gpubox.agent.chat_files import chat_names, chat_path, load_chat
from gpubox.agent.chat_log import INTERRUPTED_CALL_OUTPUT, ChatLog, ChatSettings
from gpubox.agent.endpoint import ServerEndpoint, find_endpoint
from gpubox.agent.events import AgentEvent, Notice, RoundFinished, TextDelta, TurnFinished
from gpubox.config import Config
from gpubox.errors import ExitCode, GpuboxError, UsageError
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.profiles.profile import ChatDefaults as ChatDefaults
from gpubox.profiles.profile import Profile
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.server.state import InstanceState, Launch, RunningServer, save_state
from tests.scripted_server import ScriptedServer, runs, says

HANGS = says(["Once upon", " a time"], hang=True)


class Programs(Sandbox):
    """Runs nothing; a program that sleeps waits until it is cancelled."""

    def __init__(self) -> None:
        super().__init__(Config())
        self.ran: list[tuple[str, Policy]] = []
        self.asleep = asyncio.Event()
        self.killed = False

    async def run(
        self,
        code: str,
        policy: Policy = Policy(),  # noqa: B008
        *,
        stdin: bytes = b"",
        shell: bool = False,
    ) -> Outcome:
        self.ran.append((code, policy))
        if "sleep" in code:
            self.asleep.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.killed = True
        return Outcome(0, None, "42\n", "", 0.01, "bubblewrap")


class Box:
    """Opens chats that are answered by ``server``."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.server: ScriptedServer
        self.endpoint: dict[str, Any] = {"profile_name": "coder", "build": "b1"}
        self.programs = Programs()

    async def find(self) -> ServerEndpoint:
        return ServerEndpoint(self.server.url, **self.endpoint)

    def chat(self, name: str = "", **options: Any) -> Chat:
        return Chat(self.paths, Config(), name, find=self.find, sandbox=self.programs, **options)

    def log(self, name: str = "tell-me") -> ChatLog:
        return load_chat(chat_path(self.paths, name))


@pytest.fixture
def box(paths: Paths) -> Box:
    return Box(paths)


async def ask(chat: Chat, text: str = "Tell me.") -> list[AgentEvent]:
    async with aclosing(chat.send(text)) as events:
        return [event async for event in events]


def spoken(log: ChatLog) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in log.conversation().messages]


async def until_text(chat: Chat, wanted: str, then: Callable[[], Awaitable[None] | bool]) -> list[AgentEvent]:
    """The events of a turn; ``then`` is called once the model has written ``wanted``."""
    seen: list[AgentEvent] = []
    async with aclosing(chat.send("Tell me.")) as events:
        async for event in events:
            seen.append(event)
            if isinstance(event, TextDelta) and wanted in event.text:
                waiting = then()
                if isinstance(waiting, Awaitable):
                    await waiting
    return seen


async def test_a_stopped_turn_is_kept_and_the_chat_continues(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(HANGS, says("there was.")) as box.server:
        chat = box.chat()
        events = await until_text(chat, "a time", chat.stop)
        assert isinstance(events[-1], TurnFinished) and events[-1].reason == "stopped"
        await box.server.left.wait()
        await ask(chat, "Go on.")
        await chat.close()

    wanted = [("user", "Tell me."), ("assistant", "Once upon a time"), ("user", "Go on."), ("assistant", "there was.")]
    assert spoken(box.log()) == wanted
    sent = box.server.bodies[-1]["messages"]
    assert [(m["role"], m["content"]) for m in sent[1:]] == wanted[:-1]
    assert [turn.state for turn in box.log().path()] == ["stopped", "answered"]


async def test_a_turn_with_a_closed_or_cancelled_reader_is_kept(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(HANGS, HANGS) as box.server:
        chat = box.chat()
        async with aclosing(chat.send("Tell me.")) as events:
            async for event in events:
                if isinstance(event, TextDelta) and "time" in event.text:
                    break
        assert box.log().path()[0].state == "stopped"
        assert not chat.busy

        here = asyncio.Event()

        async def follow() -> None:
            async with aclosing(chat.send("Again.")) as events:
                async for event in events:
                    if isinstance(event, TextDelta) and "time" in event.text:
                        here.set()

        task = asyncio.create_task(follow())
        await here.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await chat.close()

    assert spoken(box.log()) == [
        ("user", "Tell me."), ("assistant", "Once upon a time"), ("user", "Again."), ("assistant", "Once upon a time"),
    ]  # fmt: skip
    assert [turn.state for turn in box.log().path()] == ["stopped", "stopped"]


async def test_closing_in_mid_turn_ends_it_and_the_program_it_runs(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(says(calls=[runs("sleep")])) as box.server:
        chat = box.chat()
        turn = asyncio.create_task(ask(chat))
        await box.programs.asleep.wait()
        scratch = box.programs.ran[0][1].workspace
        assert scratch is not None and list(scratch.iterdir()) == []

        await chat.close()

        assert box.programs.killed
        events = await turn
        assert isinstance(events[-1], TurnFinished) and events[-1].reason == "stopped"
        await chat.close()
    log = box.log()
    assert log.path()[0].state == "stopped"
    assert log.conversation().unanswered_calls() == []


async def test_deltas_reach_the_file_within_a_second(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(HANGS) as box.server:
        chat = box.chat()
        async with aclosing(chat.send("Tell me.")) as events:
            async for event in events:
                if isinstance(event, TextDelta) and "time" in event.text:
                    break
            while b"a time" not in chat_path(box.paths, "tell-me").read_bytes():
                await asyncio.sleep(0.01)  # nothing more comes: a timer writes it
            assert box.log().path()[0].state == "cut off"
        await chat.close()


async def test_a_chat_that_was_cut_off_at_a_call_continues(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(says(calls=[runs("sleep")]), says("Well.")) as box.server:
        chat = box.chat()
        turn = asyncio.create_task(ask(chat))
        await box.programs.asleep.wait()
        killed = chat_path(box.paths, "killed")
        killed.write_bytes(chat_path(box.paths, "tell-me").read_bytes())  # what a kill -9 would have left
        await chat.close()
        await turn
        again = box.chat("killed")
        await ask(again, "What came out?")
        await again.close()

    roles = [message["role"] for message in box.server.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert box.server.bodies[-1]["messages"][3]["content"] == INTERRUPTED_CALL_OUTPUT


async def test_a_retry_and_a_branch(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(says("One."), says("Two."), says("Three.")) as box.server:
        chat = box.chat()
        await ask(chat)
        await ask(chat, "Again?")
        last = chat.log.path()[-1]
        assert last.header.text == "Again?"
        chat.rewind(last.parent_id)
        await ask(chat, "Once more?")
        chat.branch("other", chat.log.path()[0].id)
        with pytest.raises(UsageError, match="There is a chat other already"):
            chat.branch("other")
        with pytest.raises(UsageError, match="no turn nope"):
            chat.rewind("nope")
        chat.rename_to("new name")
        await chat.close()

    first = [("user", "Tell me."), ("assistant", "One.")]
    assert spoken(box.log("new name")) == [*first, ("user", "Once more?"), ("assistant", "Three.")]
    assert len(box.log("new name").turns) == 3
    assert spoken(box.log("other")) == first
    assert [m["content"] for m in box.server.bodies[-1]["messages"][1:]] == ["Tell me.", "One.", "Once more?"]
    assert sorted(chat_names(box.paths)) == ["new name", "other"]


async def test_one_turn_at_a_time_in_one_gpubox(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(HANGS) as box.server:
        chat = box.chat()

        async def meanwhile() -> None:
            with pytest.raises(GpuboxError, match="still answering"):
                await ask(chat)
            with pytest.raises(GpuboxError, match="still answering"):
                chat.rewind()
            with pytest.raises(GpuboxError, match="Another gpubox"):
                box.chat("tell-me")
            chat.stop()

        await until_text(chat, "a time", meanwhile)
        await chat.close()
        await box.chat("tell-me").close()


async def test_settings_come_from_the_profile_and_can_be_changed(box: Box) -> None:
    box.endpoint["profile"] = Profile("coder", "m.gguf", chat=ChatDefaults(system="Answer in verse."))
    async with asyncio.timeout(60), ScriptedServer(*[says("Yes.")] * 3) as box.server:
        chat = box.chat()
        chat.change_settings(ChatSettings(sampling={"top_k": 3}, tools=False))
        await ask(chat)
        chat.change_settings(ChatSettings(system_prompt="In prose.", thinking=True, tools=False))
        await ask(chat, "And now?")
        await chat.close()
        again = box.chat("tell-me")
        assert again.settings == ChatSettings(system_prompt="In prose.", thinking=True, tools=False)
        await again.close()

    first, second = box.server.bodies
    assert first["messages"][0]["content"] == "Answer in verse."
    assert (first["top_k"], "tools" in first) == (3, False)
    assert second["messages"][0]["content"] == "In prose."
    assert "top_k" not in second


async def test_a_chat_that_cannot_be_saved_reports_it_once_and_continues(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(says("One."), says("Two.")) as box.server:
        chat = box.chat()
        await ask(chat)
        chat_path(box.paths, "tell-me").unlink()
        events = await ask(chat, "Again?")
        assert [event.text for event in events if isinstance(event, Notice)] == [
            "The chat is not saved any more: its file was deleted."
        ]
        assert isinstance(events[-1], TurnFinished) and events[-1].text == "Two."
        assert chat.problem
        await chat.close()
    assert chat_names(box.paths) == []


async def test_the_turns_end_is_the_last_event_wherever_saving_fails(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(says("One.")) as box.server:
        chat = box.chat()
        seen: list[AgentEvent] = []
        async with aclosing(chat.send("Tell me.")) as events:
            async for event in events:
                seen.append(event)
                if isinstance(event, RoundFinished):
                    chat_path(box.paths, "tell-me").unlink()
        await chat.close()
    assert [type(event) for event in seen[-2:]] == [Notice, TurnFinished]


async def test_a_missing_workspace_is_reported_before_the_request(box: Box, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with asyncio.timeout(60), ScriptedServer(says("One."), says("Two.")) as box.server:
        chat = box.chat()
        chat.change_settings(ChatSettings(workdir=str(work)))
        await ask(chat)
        await chat.close()
        work.rmdir()
        again = box.chat("tell-me")
        with pytest.raises(UsageError, match="cannot be used"):
            await ask(again, "Still there?")
        assert not again.busy
        again.change_settings(ChatSettings())
        await ask(again, "And now?")
        await again.close()
    assert len(box.log().turns) == 2


async def test_another_server_in_mid_chat(box: Box) -> None:
    chat = box.chat()
    async with asyncio.timeout(60), ScriptedServer(says("One.")) as box.server:
        await ask(chat)
    async with asyncio.timeout(60), ScriptedServer(says("Two.")) as box.server:
        box.endpoint = {"profile_name": "big", "build": "b2", "launch_id": "x"}
        await ask(chat, "Again?")
        await chat.close()
    assert [m["content"] for m in box.server.bodies[0]["messages"][1:]] == ["Tell me.", "One.", "Again?"]
    assert [(t.header.profile, t.header.build) for t in box.log().path()] == [("coder", "b1"), ("big", "b2")]


async def test_without_a_server_nothing_is_recorded(box: Box) -> None:
    async def nobody() -> ServerEndpoint:
        raise GpuboxError("Nothing is running.", code=ExitCode.NOT_RUNNING)

    chat = Chat(box.paths, Config(), find=nobody)
    with pytest.raises(GpuboxError, match="Nothing is running"):
        await ask(chat)
    await chat.close()
    assert chat_names(box.paths) == []


async def test_two_chats_with_the_same_question_get_two_names(box: Box) -> None:
    async with asyncio.timeout(60), ScriptedServer(says("One."), says("Two.")) as box.server:
        for _ in range(2):
            chat = box.chat()
            await ask(chat)
            await chat.close()
    assert sorted(chat_names(box.paths)) == ["tell-me", "tell-me-2"]


async def test_the_endpoint_of_the_active_server(paths: Paths) -> None:
    with pytest.raises(GpuboxError) as nobody:
        await find_endpoint(paths, Config())
    assert nobody.value.code == ExitCode.NOT_RUNNING
    with pytest.raises(GpuboxError) as gone:
        await find_endpoint(paths, Config(), url="http://127.0.0.1:9")
    assert gone.value.code == ExitCode.NOT_RUNNING
    paths.profiles.mkdir(parents=True)
    (paths.profiles / "coder.toml").write_text('model = "m.gguf"\n[chat]\nsystem = "Be brief."\n')
    async with ScriptedServer() as server:
        port = int(server.url.rpartition(":")[2])
        launch = Launch("coder", ("llama-server",), "127.0.0.1", port, model_path="/models/m.gguf")
        running = RunningServer(launch, "id1", "t", own_identity(), ready_at="t")
        save_state(paths.instance_state("main"), InstanceState(running))
        endpoint = await find_endpoint(paths, Config())
    assert (endpoint.profile_name, endpoint.build, endpoint.model, endpoint.system_prompt) == (
        "coder", "b11434-abc", "m.gguf", "Be brief.",
    )  # fmt: skip
    assert endpoint.launch_id == "id1"
    assert "key" not in repr(endpoint)
