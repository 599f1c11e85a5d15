"""gpubox's own agent in an editor: over real pipes, with a scripted model, over a real workspace."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.acp.profile_choice import ProfileChoice
from gpubox.agent import chat as chat_module
from gpubox.agent.chat_files import load_chat
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.errors import ExitCode, GpuboxError
from gpubox.paths import Paths
from tests.acp_editor import DEFS, REQUESTS, editor
from tests.scripted_server import Play, ScriptedServer, call, says

FILES = {"fs": {"readTextFile": True, "writeTextFile": True}}
Script = Callable[..., ScriptedServer]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "a.py").write_text("def f():\n    return 1\n")
    (folder / "b.txt").write_text("one\ntwo\n")
    return folder


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Sets what the model of the running server says."""
    server = ScriptedServer()

    async def find(*_: Any, **__: Any) -> ServerEndpoint:
        if not server.url:
            raise GpuboxError("No server is running that could answer.", "Start one.", code=ExitCode.NOT_RUNNING)
        return ServerEndpoint(server.url, profile_name="coder", launch_id="a")

    def play(*plays: Play) -> ScriptedServer:
        server.plays = [*plays]
        return server

    monkeypatch.setattr(chat_module, "find_endpoint", find)
    yield play


def tool(name: str, **arguments: Any) -> Play:
    return says(calls=[call(name, json.dumps(arguments))])


EDIT_CALLS = [call("edit", json.dumps({"path": "a.py", "edits": [{"old": "return 1", "new": "return 2"}]}))]
EDIT = says(calls=EDIT_CALLS)


def chooses(*options: str) -> Callable[[str, dict[str, Any]], Any]:
    """Answers one question after the other; an editor without files."""
    left = [*options]

    def reply(method: str, params: dict[str, Any]) -> Any:
        if method != "session/request_permission":
            return GpuboxError("no")
        chosen = left.pop(0)
        assert chosen in [each["optionId"] for each in params["options"]], (chosen, params["options"])
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    return reply


async def test_a_turn_is_shown_and_its_changes_are_taken_where_the_owner_allows_it(
    paths: Paths, project: Path, script: Script
) -> None:
    async with (
        script(says(reasoning="Hm.", calls=EDIT_CALLS), says("Done.")),
        editor(paths) as (there, _),
    ):
        session = await there.start(project)
        there.reply = chooses("take")
        assert await there.turn(session, "Make it two.") == "end_turn"

        called, finished = there.of("tool_call"), there.of("tool_call_update")
        assert (called[0]["kind"], called[0]["title"]) == ("edit", "edit a.py")
        assert called[0]["locations"] == [{"path": str(project / "a.py")}]
        assert finished[0]["content"] == [
            {"type": "diff", "path": str(project / "a.py"), "oldText": "return 1", "newText": "return 2"}
        ]
        ((method, question),) = there.asked
        assert method == "session/request_permission" and question["toolCall"]["content"] == [
            {"type": "diff", "path": str(project / "a.py"), "oldText": "def f():\n    return 1\n",
             "newText": "def f():\n    return 2\n"}
        ]  # fmt: skip
        assert (project / "a.py").read_text() == "def f():\n    return 2\n"
        assert "Done." in there.said() and "Taken: a.py." in there.said()
        assert [each["content"]["text"] for each in there.of("agent_thought_chunk")] == ["Hm."]
        (usage,) = there.of("usage_update")[-1:]
        assert usage["size"] == 4096 and usage["used"] > 0
        assert [each["title"] for each in there.of("session_info_update")] == ["Make it two."]


async def test_nothing_is_written_where_the_owner_drops_it_or_is_gone_or_plans(
    paths: Paths, project: Path, script: Script
) -> None:
    before = (project / "a.py").read_text()
    plays = [EDIT, says("Done.")] * 3
    async with script(*plays) as server, editor(paths) as (there, _):
        session = await there.start(project)
        there.reply = chooses("drop")
        await there.turn(session, "Do it.")
        there.reply = lambda method, params: GpuboxError("no")
        await there.turn(session, "Do it again.")
        assert "The owner dropped your change of a.py" in json.dumps(server.bodies[2]["messages"])
        assert "/take" in there.said(), "it waits"
        await there.get("session/set_mode", sessionId=session, modeId="plan")
        await there.turn(session, "/drop")
        await there.turn(session, "And again.")
        assert (project / "a.py").read_text() == before


async def test_mode_turn_takes_but_asks_for_what_runs_by_itself(paths: Paths, project: Path, script: Script) -> None:
    hook = tool("write", path=".vscode/tasks.json", content="{}\n")
    async with script(EDIT, hook, says("Done.")), editor(paths) as (there, _):
        session = await there.start(project)
        options = await there.get("session/set_config_option", sessionId=session, configId="mode", value="turn")
        assert options["configOptions"][0]["currentValue"] == "turn"
        assert there.of("current_mode_update") == [{"sessionUpdate": "current_mode_update", "currentModeId": "turn"}]
        there.reply = chooses("later")
        await there.turn(session, "Do it.")
        assert len(there.asked) == 1 and ".vscode" in there.asked[0][1]["toolCall"]["title"]
        assert (project / "a.py").read_text() == "def f():\n    return 2\n"
        assert not (project / ".vscode").exists()
        there.reply = chooses("take")
        await there.turn(session, "/take")
        assert (project / ".vscode/tasks.json").exists()
        await there.turn(session, "/undo")
        assert not (project / ".vscode").exists() and (project / "a.py").read_text() == "def f():\n    return 1\n"
        await there.turn(session, "/redo")
        assert (project / "a.py").read_text() == "def f():\n    return 2\n"


async def test_file_by_file(paths: Paths, project: Path, script: Script) -> None:
    other = tool("edit", path="b.txt", edits=[{"old": "two", "new": "2"}])
    async with script(EDIT, other, says("Done.")), editor(paths) as (there, _):
        session = await there.start(project)
        there.reply = chooses("each", "drop", "take")
        await there.turn(session, "Do it.")
        assert (project / "a.py").read_text() == "def f():\n    return 1\n"
        assert (project / "b.txt").read_text() == "one\n2\n"
        await there.turn(session, "/diff")
        assert "Nothing waits." in there.said()


class Buffers:
    """An editor with files open; what it has not saved is only here."""

    def __init__(self, project: Path, **unsaved: str) -> None:
        self.texts = {str(project / path): text for path, text in unsaved.items()}
        self.written: dict[str, str] = {}

    def __call__(self, method: str, params: dict[str, Any]) -> Any:
        if method == "fs/read_text_file":
            path = params["path"]
            try:
                return {"content": self.texts.get(path) or Path(path).read_text()}
            except OSError:
                return GpuboxError("no")
        if method == "fs/write_text_file":
            self.written[params["path"]] = self.texts[params["path"]] = params["content"]
            return {}
        return {"outcome": {"outcome": "selected", "optionId": "take"}}


async def test_unsaved_changes_are_read_and_never_overwritten(paths: Paths, project: Path, script: Script) -> None:
    mine = "def f():\n    return 1  # mine\n"
    async with script(EDIT, says("Done.")) as server, editor(paths) as (there, _):
        session = await there.start(project, **FILES)
        there.reply = buffers = Buffers(project, **{"a.py": mine})
        link = {"type": "resource_link", "uri": f"file://{project}/a.py".replace(" ", "%20"), "name": "a.py"}
        await there.turn(session, "Look at", link)
        assert mine.strip() in server.bodies[0]["messages"][-1]["content"]
        assert "a.py has unsaved changes" in there.said()
        assert "a.py is left: it has unsaved changes in your editor" in there.said()
        assert (project / "a.py").read_text() == "def f():\n    return 1\n" and not buffers.written
        buffers.texts = {}  # saved away: the editor shows the file again
        await there.turn(session, "/take")
        assert (project / "a.py").read_text() == "def f():\n    return 2\n" and not buffers.written


async def test_of_many_files_each_with_unsaved_changes_is_left(
    paths: Paths, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubox.acp.editor_session._MAX_READ", 1)
    other = tool("edit", path="b.txt", edits=[{"old": "two", "new": "2"}])
    async with script(EDIT, other, says("Done.")), editor(paths) as (there, _):
        session = await there.start(project, **FILES)
        there.reply = Buffers(project, **{"b.txt": "one\ntwo\nmine\n"})
        await there.turn(session, "Do it.")
        assert (project / "b.txt").read_text() == "one\ntwo\n" and "b.txt is left" in there.said()


async def test_an_editor_that_still_shows_the_old_text_gets_the_new_one(
    paths: Paths, project: Path, script: Script
) -> None:
    async with script(EDIT, says("Done.")), editor(paths) as (there, _):
        session = await there.start(project, **FILES)
        there.reply = buffers = Buffers(project, **{"a.py": "def f():\r\n    return 1\r\n"})
        await there.turn(session, "Do it.")
        assert buffers.written == {str(project / "a.py"): "def f():\n    return 2\n"}


async def test_what_a_prompt_brings(paths: Paths, project: Path, script: Script) -> None:
    inside, outside = f"file://{project}/b.txt".replace(" ", "%20"), "zed:///agent/selection?path=x"
    picture = base64.b64encode(b"no picture").decode()
    async with script(says("Yes.")) as server, editor(paths) as (there, _):
        session = await there.start(project)
        await there.turn(
            session, "See", {"type": "resource_link", "uri": inside, "name": "b.txt"}, "and",
            {"type": "resource", "resource": {"uri": outside, "text": "the selection"}},
        )  # fmt: skip
        asked = server.bodies[0]["messages"][-1]["content"]
        assert "--- b.txt\none\ntwo" in asked and f"--- {outside}\nthe selection" in asked
        broken: tuple[dict[str, Any], ...] = (
            {"type": "audio", "data": "", "mimeType": "a/b"}, {"type": "image", "data": "§", "mimeType": "image/png"},
            {"type": "image", "data": picture, "mimeType": "image/png"}, {"type": "text"},
            {"type": "text", "text": " "},
        )  # fmt: skip
        picture_alone = {
            "type": "image",
            "data": base64.b64encode(b"\x89PNG\r\n\x1a\n").decode(),
            "mimeType": "image/png",
        }
        assert "does not see images" in (await there.prompt(session, picture_alone))["error"]["message"]
        for block in broken:
            assert (await there.prompt(session, block))["error"]["message"]
        assert len(server.bodies) == 1


async def test_questions_of_the_model(paths: Paths, project: Path, script: Script) -> None:
    network = tool("run", command="true", network=True)
    choice = tool("ask", question="Which?", options=["left", "right"])
    plays = [network, choice, says("Done."), tool("ask", question="What is your name?"), says("Hello.")]
    async with script(*plays) as server, editor(paths) as (there, _):
        session = await there.start(project)
        there.reply = chooses("no", "1")
        assert await there.turn(session, "Ask me.") == "end_turn"
        outputs = [each["content"] for each in server.bodies[2]["messages"] if each["role"] == "tool"]
        assert outputs[1] == "right" and outputs[0] == "The owner said no.", outputs
        assert [each[1]["toolCall"]["title"].split("\n")[0][:20] for each in there.asked][1] == "Which?"
        assert await there.turn(session, "Again.") == "end_turn", "the next prompt is the answer"
        assert "What is your name?" in there.said()
        assert await there.turn(session, "Ada.") == "end_turn"
        assert server.bodies[-1]["messages"][-1]["content"] == "Ada."


async def test_a_file_that_is_no_utf_8_is_taken_as_it_is(paths: Paths, project: Path, script: Script) -> None:
    (project / "old.txt").write_bytes(b"caf\xe9\nbar\n")
    edit = tool("edit", path="old.txt", edits=[{"old": "bar", "new": "bistro\u00e9"}])
    async with script(edit, says("Done.")), editor(paths) as (there, _):
        session = await there.start(project, **FILES)
        there.reply = buffers = Buffers(project, **{"old.txt": "caf\u00e9\nbar\n"})
        await there.turn(session, "Do it.")
        assert (project / "old.txt").read_bytes() == b"caf\xe9\nbistro\xe9\n" and not buffers.written


async def test_sessions_are_listed_loaded_and_closed(
    paths: Paths, project: Path, script: Script, tmp_path: Path
) -> None:
    async with script(EDIT, says("Done."), says("Again.")):
        async with editor(paths) as (there, _):
            session = await there.start(project)
            there.reply = chooses("take")
            await there.turn(session, "Do it.")
            assert session.startswith("my-project-")
        async with editor(paths) as (there, _):
            await there.get("initialize", protocolVersion=1)
            (listed,) = (await there.get("session/list", cwd=str(project)))["sessions"]
            assert (listed["sessionId"], listed["title"], listed["cwd"]) == (session, "Do it.", str(project))
            assert (await there.get("session/list", cwd=str(tmp_path)))["sessions"] == []
            where = {"sessionId": session, "cwd": str(project), "mcpServers": []}
            assert (await there.get("session/load", **where))["modes"]["currentModeId"] == "ask"
            kinds = [each["update"]["sessionUpdate"] for each in there.updates]
            assert kinds[:4] == ["user_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk"]
            assert await there.turn(session, "And?") == "end_turn"
            await there.get("session/close", sessionId=session)
            assert (await there.error("session/prompt", sessionId=session, prompt=[]))["code"] == -32002
            await there.get("session/resume", sessionId=session, cwd=str(project))
            assert "works in" in (await there.error("session/load", **{**where, "cwd": str(tmp_path)}))["message"]
            assert (await there.error("session/load", **{**where, "sessionId": "../x"}))["code"] == -32002
        assert len(load_chat(paths.chats / f"{session}.jsonl").turns) == 2


async def test_a_turn_is_cancelled_at_any_point(paths: Paths, project: Path, script: Script) -> None:
    hangs = says("Well")
    hangs.hang = True
    plays = [hangs, EDIT, says("Done."), tool("run", command="true", network=True), says("Fine.")]
    async with script(*plays) as server, editor(paths) as (there, _):
        session = await there.start(project)
        there.say({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
        there.reply = lambda method, params: None
        for text, test in {
            "While it writes": lambda: bool(there.said()),
            "While the owner decides": lambda: len(there.asked) == 1,
            "While he is asked": lambda: len(there.asked) == 2,
        }.items():
            answer = there.prompt(session, text)
            await there.until(test)
            second = await there.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "2"}])
            assert "still answering" in second["message"]
            there.say({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
            assert (await asyncio.wait_for(answer, 30))["result"]["stopReason"] == "cancelled"
        assert (project / "a.py").read_text() == "def f():\n    return 1\n"
        server.plays = [says("I am here.")]
        assert await there.turn(session, "And now?") == "end_turn"


@pytest.mark.parametrize("moment", ["text", "permission"])
async def test_an_editor_that_dies_leaves_nothing_running(
    paths: Paths, project: Path, script: Script, moment: str
) -> None:
    hangs = says("Well")
    hangs.hang = True
    async with script(*([hangs] if moment == "text" else [EDIT, says("Done.")])) as server:
        async with editor(paths) as (there, agent):
            session = await there.start(project)
            there.reply = lambda method, params: None
            there.prompt(session, "Do it.")
            await there.until(lambda: bool(there.said() if moment == "text" else there.asked))
            there.writer.close()
            assert await asyncio.wait_for(agent, 30) == "The editor ended."
            if moment == "text":
                await asyncio.wait_for(server.left.wait(), 10)
        assert (project / "a.py").read_text() == "def f():\n    return 1\n"
        assert len(load_chat(paths.chats / f"{session}.jsonl").turns) == 1
        async with editor(paths) as (there, _):  # the chat is free again
            await there.get("initialize", protocolVersion=1)
            await there.get("session/load", sessionId=session, cwd=str(project), mcpServers=[])


async def test_two_sessions_at_once(paths: Paths, project: Path, script: Script, tmp_path: Path) -> None:
    async with script(says("One."), says("Two.")), editor(paths) as (there, _):
        first = await there.start(project)
        second = (await there.get("session/new", cwd=str(project), mcpServers=[]))["sessionId"]
        assert first != second
        answers = await asyncio.gather(there.prompt(first, "1"), there.prompt(second, "2"))
        assert [each["result"]["stopReason"] for each in answers] == ["end_turn"] * 2
        texts = {
            each["sessionId"] for each in there.updates if each["update"]["sessionUpdate"] == "agent_message_chunk"
        }
        assert texts == {first, second}


_REFUSALS = (-32602, -32601, -32002, -32603)


def _example(schema: dict[str, Any]) -> Any:
    """Parameters as the schema wants them."""
    if "$ref" in schema:
        return _example(DEFS[schema["$ref"].rsplit("/", 1)[1]])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema and "properties" not in schema:
            return _example(schema[key][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        values = {name: _example(each) for name, each in schema.get("properties", {}).items()}
        for inner in (*schema.get("allOf", ()), *schema.get("oneOf", ())[:1], *schema.get("anyOf", ())[:1]):
            values |= _example(inner)
        return values
    return schema.get("const", {"string": "/x", "integer": 1, "boolean": True, "array": []}.get(str(kind)))


async def test_each_request_of_the_protocol_is_answered(paths: Paths, project: Path, script: Script) -> None:
    methods = {name: DEFS[kind] for name, kind in REQUESTS.items() if DEFS[kind]["x-side"] == "agent"}
    async with editor(paths) as (there, _):
        for method in ("session/new", "session/list"):
            assert (await there.error(method))["message"] == "initialize comes first."
        assert (await there.error("initialize", protocolVersion="one"))["code"] == -32602
        assert (await there.get("initialize", protocolVersion=7))["protocolVersion"] == 1
        for method, schema in methods.items():
            for params in (_example(schema), {}, {name: [1] for name in schema["properties"]}, {"sessionId": None}):
                answer = await asyncio.wait_for(there.ask(method, **params), 30)
                assert "result" in answer or answer["error"]["code"] in (-32602, -32601, -32002, -32603), (
                    method,
                    answer,
                )
                assert "gpubox failed" not in json.dumps(answer), (method, params, answer)
        assert (await there.error("session/fly"))["code"] == -32601
        odd = [{"name": 1}, 2, {"name": "a", "command": "b", "args": [], "env": 3}]
        session = (await there.get("session/new", cwd=str(project), mcpServers=odd))["sessionId"]
        assert "absolute path" in (await there.error("session/new", cwd="/a\0b", mcpServers=[]))["message"]
        for wrong in (("mode", "fly"), ("model", "no-such"), ("speed", "1")):
            chosen = dict(zip(("configId", "value"), wrong, strict=True))
            assert await there.error("session/set_config_option", sessionId=session, **chosen)
        assert "cannot be used" in (await there.error("session/new", cwd="/no/such", mcpServers=[]))["message"]
        assert "is a system folder" in (await there.error("session/new", cwd="/etc", mcpServers=[]))["message"]
        error = (await there.prompt(session, {"type": "resource_link", "uri": "file://[a", "name": "a"}))["error"]
        assert error["message"] == "No server is running that could answer. Start one."


async def test_another_profile_answers_from_the_next_prompt_on(
    paths: Paths, project: Path, script: Script, write_profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile("other", 'model = "/models/x.gguf"\n')
    runs, switches, broken = ["coder"], list[tuple[str, ...]](), list[str]()

    async def switch(*words: str, note: Callable[[str], None]) -> None:
        switches.append(words)
        note("✓ load other  1.0 s")
        if broken:
            raise GpuboxError("It is broken.")
        runs.append(words[-1])

    monkeypatch.setattr("gpubox.acp.profile_choice.run_json_verb", switch)
    monkeypatch.setattr(ProfileChoice, "_running", lambda _: runs[-1])
    async with script(says("I am other.")), editor(paths) as (there, _):
        session = await there.start(project)
        chosen = await there.get("session/set_config_option", sessionId=session, configId="model", value="other")
        assert chosen["configOptions"][1]["currentValue"] == "other" and not switches
        assert await there.turn(session, "Who are you?") == "end_turn"
        assert switches == [("switch", "--json", "--", "other")]
        assert there.of("tool_call")[0]["title"] == "Switch to other"
        shown = there.of("tool_call_update")
        assert shown[-1]["status"] == "completed" and "✓ load other" in json.dumps(shown, ensure_ascii=False)
        broken.append("yes")
        await there.get("session/set_config_option", sessionId=session, configId="model", value="demo")
        assert (await there.prompt(session, "And now?"))["error"]["message"] == "It is broken."
        assert there.of("tool_call_update")[-1]["status"] == "failed"
        assert there.of("config_option_update")[-1]["configOptions"][1]["currentValue"] == "other"


async def test_garbage_and_floods(paths: Paths, project: Path, script: Script) -> None:
    async with script(says("Yes.")), editor(paths) as (there, agent):
        for line in (b"hello\n", b"{\n", b"[]\n", b'{"id": 1}\n', b"\xff\n", b'"' + b"x" * 100_000 + b'"\n'):
            there.say(line)
        session = await there.start(project)
        assert there.garbage == 6
        assert await there.turn(session, "Hello") == "end_turn"
        there.say(b"x" * (40 << 20) + b"\n")
        assert "more than 32 MiB" in await asyncio.wait_for(agent, 60)


def test_stdout_carries_the_protocol_and_nothing_else(paths: Paths) -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    ran = subprocess.run([sys.executable, "-m", "gpubox", "acp"], input=line, capture_output=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, b"The editor ended.\n")
    assert json.loads(ran.stdout)["result"]["protocolVersion"] == 1
    alone = [sys.executable, "-m", "gpubox", "acp"]
    ran = subprocess.run(alone, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert ran.returncode == ExitCode.USAGE and b"no pipes" in ran.stderr and not ran.stdout
