"""Tools of the owner's MCP servers: a good server, many broken ones, and that none of their processes stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from gpubox.agent import mcp
from gpubox.agent.chat import Chat
from gpubox.agent.endpoint import ServerEndpoint
from gpubox.agent.events import ToolFinished
from gpubox.agent.mcp import McpServers
from gpubox.agent.tools import Answer, OwnerQuestion, ToolOutput
from gpubox.config import Config, McpServer, load_config
from gpubox.errors import UsageError
from gpubox.paths import Paths
from tests.sampling import sampled
from tests.scripted_server import ScriptedServer, call, says

SERVER = Path(__file__).parents[1] / "mcp_server.py"
Make = Callable[..., McpServers]


def settings(how: str, marker: str) -> McpServer:
    return McpServer((sys.executable, str(SERVER), how), {"MCP_TEST": marker})


@pytest.fixture
def marker(tmp_path: Path) -> str:
    return f"{tmp_path.name}-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
async def make(tmp_path: Path, marker: str) -> AsyncIterator[Make]:
    """Servers for the names of what they do. At the end nothing of them runs, and no descriptor is left."""
    made = []
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def make_servers(**how: str) -> McpServers:
        made.append(McpServers({name: settings(each, marker) for name, each in how.items()}, tmp_path / "logs"))
        return made[-1]

    yield make_servers
    for each in made:
        await each.close()
        await each.close()
    assert_gone(marker)
    for _ in range(100):  # the loop closes pipes in its next round
        if left := set(os.listdir("/proc/self/fd")) - before:  # noqa: PTH208
            await asyncio.sleep(0.01)
    assert not left


def alive(marker: str) -> list[str]:
    """The processes with this marker in their environment."""
    names = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                names.append(f"{folder.name}: {(folder / 'cmdline').read_text()}")
        except OSError:
            continue
    return names


def assert_gone(marker: str) -> None:
    deadline = time.monotonic() + 10
    while names := alive(marker):
        assert time.monotonic() < deadline, names
        time.sleep(0.02)


async def run(servers: McpServers, command: str) -> ToolOutput:
    output = await servers.run(command)
    assert output is not None
    return output


async def test_a_good_server_is_listed_and_called(make: Make) -> None:
    servers = make(good="good", other="good")

    listed = await run(servers, "mcp")
    one = await run(servers, " mcp  good ")
    explained = await run(servers, "mcp good.echo")
    called = await run(servers, 'mcp good.echo {"text": "a\\u00e9 | b", "times": 2}')
    quoted = await run(servers, 'mcp good.dotted.name \'{\n "text": "x"}\'')

    assert "good.echo {text, times?}  Says it again.\n" in listed.text and "other.sleep {}" in listed.text
    assert "Second line" not in listed.text and "other." not in one.text and "good.sleep" in one.text
    assert "Second line" in explained.text and '"required":["text"]' in explained.text
    assert (called.text, called.ok, quoted.text) == ("aé | baé | b", True, "x")


async def test_what_a_tool_returns(make: Make) -> None:
    servers = make(good="good")

    assert (await run(servers, "mcp good.parts {}")).text == (
        "one\n[image, image/png: not shown]\ninside\n[resource, file:///b: not shown]\n"
        "[resource_link, file:///c, c: not shown]\n[hologram: not shown]"
    )
    assert (await run(servers, "mcp good.structured {}")).text == '{"n":1}'
    assert (await run(servers, "mcp good.nothing {}")).text == "[the tool returned nothing]"
    failed = await run(servers, 'mcp good.fail {"text": "no"}')
    assert (failed.text, failed.ok) == ("no", False)


async def test_a_server_gets_nothing_of_the_owner(
    make: Make, monkeypatch: pytest.MonkeyPatch, marker: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUBOX_API_KEY", "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.chdir(tmp_path)

    has = json.loads((await run(make(good="good"), "mcp good.environment {}")).text)

    assert has["folder"] == str(Path.home())  # not where a project's node_modules could stand for the server
    assert set(has["environment"]) - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"} <= {"PATH", "HOME", "LANG", "MCP_TEST"}
    assert has["environment"]["MCP_TEST"] == marker


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("mcp none", "There is no server 'none'.  There are: good."),
        ("mcp good.eco {}", "Did you mean good.echo?"),
        ("mcp good.zzzzzz {}", "`mcp good` lists them."),
        ("mcp good.echo {'text': 1}", "is not one JSON object ("),
        ('mcp good.echo {"text": "x"} | head', "is not one JSON object ("),
        ("mcp good.echo [1]", "is not one JSON object."),
        ("mcp good.echo '", "is not one JSON object ("),
    ],
)
async def test_a_mistake_of_the_model_is_a_sentence(make: Make, command: str, problem: str) -> None:
    output = await run(make(good="good"), command)

    assert not output.ok
    assert problem in output.text


async def test_other_commands_are_not_taken(make: Make) -> None:
    for command in ("", "ls", "mcpx", "cat mcp", "./mcp"):
        assert await make(good="good").run(command) is None
        assert make(good="good").question(command) == ""
    assert await McpServers({}, Path("/nowhere")).run("mcp") is None


async def test_a_call_asks_the_owner_unless_he_trusts_the_server(marker: str, tmp_path: Path) -> None:
    trusted = McpServer((sys.executable, str(SERVER), "good"), ask=False)
    servers = McpServers({"good": settings("good", marker), "trusted": trusted}, tmp_path)

    assert servers.question('mcp good.echo {"text": 1}') == 'Call good.echo outside the sandbox with {"text": 1}'
    for free in ("mcp", "mcp good", "mcp good.echo", "mcp none.echo {}", "mcp trusted.echo {}"):
        assert servers.question(free) == ""


BROKEN = {
    "start-dies": "ended. Its last line: no license",
    "start-hangs": "did not answer initialize within",
    "start-refuses": "refused initialize: Unsupported protocol version",
    "start-no-result": "refused initialize",
    "start-garbage": "wrote more than 1 MiB and no answer",
    "start-empty-lines": "wrote more than 1 MiB and no answer",
    "start-closes-output": "ended",
    "start-kills-its-group": "ended",
    "start-half-line-hangs": "did not answer",
    "list-refuses": "refused tools/list: Unsupported",
    "list-odd-error": "refused tools/list",
    "list-no-result": "refused tools/list",
    "list-half-line": "ended",
    "list-no-tools": "has no tool 'echo'",
    "list-odd-tools": "has no tool 'echo'",
    "call-dies": "ended. Its last line: no license",
    "call-hangs": "did not answer tools/call within",
    "call-wrong-ids": "did not answer tools/call within",
    "call-notifications": "wrote more than 1 MiB and no answer",
    "call-questions": "wrote more than 1 MiB and no answer",
    "call-long-line": "wrote more than 1 MiB and no answer",
    "call-deep": "did not answer",
    "call-half-line": "ended",
    "call-closes-input": "did not answer",
    "call-stays": "",
    "call-leaves-a-daemon": "",
}
"""What the server does -> what the model reads."""


@pytest.mark.parametrize("how", sampled(list(BROKEN), 0.3, always=["call-leaves-a-daemon"]))
async def test_a_broken_server_is_a_sentence(
    make: Make, how: str, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.setattr(mcp, "MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(mcp, "EXIT_SECONDS", 0.3)
    slow = ("hangs", "wrong-ids", "deep", "closes-input")
    monkeypatch.setattr(mcp, "START_SECONDS", 1.0 if how.startswith("start") and how.endswith(slow) else 20.0)
    monkeypatch.setattr(mcp, "CALL_SECONDS", 1.0 if how.startswith("call") and how.endswith(slow) else 20.0)
    servers = make(broken=how, good="good")

    for _ in range(2 if BROKEN[how] else 1):  # it is started again
        output = await run(servers, 'mcp broken.echo {"text": "x"}')

        assert output.ok is (not BROKEN[how])
        assert BROKEN[how] in output.text
        assert len(output.text) < 1000
        if "refuse" not in output.text and "no tool" not in output.text and not output.ok:
            await asyncio.to_thread(assert_gone, marker)

    assert (await run(servers, 'mcp good.echo {"text": "x"}')).text == "x"
    listed = await run(servers, "mcp")
    assert listed.ok and "good.echo" in listed.text and "broken" in listed.text


async def test_a_server_that_died_between_two_calls_is_started_again(make: Make, marker: str) -> None:
    servers = make(good="good")
    await run(servers, "mcp")
    for line in alive(marker):
        os.kill(int(line.partition(":")[0]), signal.SIGKILL)
    assert_gone(marker)
    for _ in range(100):
        if (output := await run(servers, 'mcp good.echo {"text": "x"}')).ok:
            break

    assert output.text == "x"


async def test_a_missing_program_is_a_sentence(tmp_path: Path) -> None:
    servers = McpServers(
        {
            "gone": McpServer(("no-such-program-here",)),
            "folder": McpServer(("true",), cwd=tmp_path / "none"),
            "nul": McpServer(("a\0b",)),
        },
        tmp_path,
    )

    listed = await servers.listed()
    await servers.close()

    assert "no-such-program-here: " in str(listed["gone"])  # not found, or a folder of PATH is closed to this user
    assert "cannot be started" in str(listed["folder"]) and "cannot be started" in str(listed["nul"])


async def test_a_cancelled_call_leaves_the_server_usable(make: Make) -> None:
    servers = make(good="good")
    await run(servers, "mcp")
    waiting = asyncio.create_task(servers.run("mcp good.sleep {}"))
    _, pending = await asyncio.wait([waiting], timeout=0.05)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert pending and waiting.cancelled()
    assert (await run(servers, 'mcp good.echo {"text": "x"}')).text == "x"


async def test_a_cancelled_start_leaves_nothing(make: Make, marker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "EXIT_SECONDS", 0.1)
    servers = make(broken="start-hangs")
    waiting = asyncio.create_task(servers.run("mcp"))
    while not alive(marker):
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    await asyncio.to_thread(assert_gone, marker)


async def test_many_tools_are_listed_by_name_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "MAX_LISTING", 100)

    text = (await run(make(good="good"), "mcp")).text

    assert text.startswith("good: echo, environment, parts, ") and "Says" not in text


GPUBOX = """
import asyncio, sys
from pathlib import Path
from gpubox.agent.mcp import McpServers
from gpubox.config import McpServer
async def main():
    servers = McpServers({"s": McpServer(tuple(sys.argv[3:]), {"MCP_TEST": sys.argv[1]})}, Path(sys.argv[2]))
    print((await servers.run('mcp s.echo {"text": "x"}')).text, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["good", "call-stays-in-group"])
def test_servers_end_with_a_gpubox_that_is_killed(how: str, marker: str, tmp_path: Path) -> None:
    server = (sys.executable, str(SERVER), how)
    with subprocess.Popen(
        [sys.executable, "-c", GPUBOX, marker, str(tmp_path), *server], stdout=subprocess.PIPE, text=True
    ) as gpubox:
        try:
            assert gpubox.stdout and gpubox.stdout.readline() == "x\n"
            assert alive(marker)
        finally:
            gpubox.kill()
    assert_gone(marker)


async def test_the_chat_calls_a_tool_after_the_owners_yes(paths: Paths, marker: str) -> None:
    questions, answers = list[OwnerQuestion](), [Answer(False, "not this"), Answer(True)]

    async def ask_owner(question: OwnerQuestion) -> Answer:
        questions.append(question)
        return answers.pop(0)

    command = 'mcp good.echo {"text": "x"}'
    plays = [says(calls=[call("run", json.dumps({"command": each}))]) for each in (command, "mcp", command)]
    async with ScriptedServer(*plays, says("Done.")) as server:

        async def find() -> ServerEndpoint:
            return ServerEndpoint(server.url, profile_name="coder", launch_id="a")

        chat = Chat(paths, Config(mcp={"good": settings("good", marker)}), find=find, ask=ask_owner)
        try:
            async with asyncio.timeout(60), aclosing(chat.send("Do it.")) as events:
                outputs = [event.output async for event in events if isinstance(event, ToolFinished)]
            assert alive(marker)
        finally:
            await chat.close()

    assert [question.text for question in questions] == ['Call good.echo outside the sandbox with {"text": "x"}'] * 2
    assert "not this" in outputs[0].text and "good.echo {text, times?}" in outputs[1].text
    assert (outputs[2].text, outputs[2].isolation) == ("x", "")
    (run_tool,) = (each["function"] for each in server.bodies[0]["tools"] if each["function"]["name"] == "run")
    assert mcp.PROMPT in run_tool["description"]
    assert_gone(marker)


def test_servers_in_the_config(paths: Paths, own_home: Path) -> None:
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(
        '[mcp.my-files]\ncommand = ["npx", "-y", "server"]\nenv = {A = "b"}\ncwd = "~/x"\nask = false\n'
    )

    assert load_config(paths).mcp == {"my-files": McpServer(("npx", "-y", "server"), {"A": "b"}, own_home / "x", False)}

    for text, problem in (
        ("[mcp.x]\n", "[mcp.x] command is missing"),
        ("[mcp.x]\ncommand = []\n", "command is empty"),
        ('[mcp."../x"]\ncommand = ["a"]\n', "needs a name of letters"),
        ('[mcp."a.b"]\ncommand = ["a"]\n', "needs a name of letters"),
        ('[mcp.x]\ncommand = ["a"]\nurl = "b"\n', "[mcp.x] url is not a known key"),
        ("[mcp]\nx = 1\n", "must be a table"),
        ('[mcp.x]\ncommand = "npx"\n', "must be a list of strings"),
    ):
        paths.config_file.write_text(text)
        with pytest.raises(UsageError) as caught:
            load_config(paths)
        assert problem in str(caught.value)
