"""`gpubox mcp`: clients over real pipes; what it reads, and a switch that is refused, asked for, allowed, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpubox import __version__
from gpubox.children import own_program
from gpubox.cli.mcp_server import TOOLS, VERSIONS
from gpubox.hardware.process import find_by_marker
from gpubox.paths import Paths, shipped
from tests.bench_runs import speed_run
from tests.conftest import until

Write = Callable[[str, str], Path]


def verb(*words: str) -> dict[str, Any]:
    """The JSON of a command line in a process of its own: this one has a loop."""
    done = subprocess.run(
        own_program("gpubox.cli.entry", *words, "--json"), capture_output=True, text=True, check=False
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


class Client:
    """A client of `gpubox mcp`. It says ``action`` when it is asked."""

    def __init__(self, process: Process) -> None:
        self.process, self.action = process, "accept"
        self.noted: list[dict[str, Any]] = []
        """Notifications and questions of the server."""
        self._last = 0

    def say(self, **message: Any) -> None:
        self.say_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def say_bytes(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)

    async def hear(self) -> dict[str, Any]:
        """The next answer. Questions and notifications before it are kept, and answered."""
        assert self.process.stdout
        while True:
            async with asyncio.timeout(60):
                message: dict[str, Any] = json.loads(await self.process.stdout.readuntil(b"\n"))
            assert message["jsonrpc"] == "2.0"
            if "method" not in message:
                return message
            self.noted.append(message)
            if message["method"] == "elicitation/create":
                if self.action == "hold":
                    return message
                self.say(id=message["id"], result={"action": self.action})

    def ask(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._last += 1
        self.say(id=self._last, method=method, params=params or {})
        return self._last

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        number = self.ask(method, params)
        answer = await self.hear()
        assert answer["id"] == number
        return answer

    async def call(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any], bool]:
        """Text, object, and whether it went well."""
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        result = answer["result"]
        (content,) = result["content"]
        return content["text"], result["structuredContent"], not result["isError"]


@asynccontextmanager
async def client(*options: str, version: str = VERSIONS[0], **capabilities: Any) -> AsyncIterator[Client]:
    process = await asyncio.create_subprocess_exec(
        *own_program("gpubox.cli.entry", "mcp", *options), stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=1 << 24
    )
    made = Client(process)
    try:
        began = await made.request("initialize", {"protocolVersion": version, "capabilities": capabilities})
        made.say(method="notifications/initialized")
        assert began["result"]["serverInfo"] == {"name": "gpubox", "title": "gpubox", "version": __version__}
        made.noted.append(began["result"])
        yield made
    finally:
        assert process.stdin and process.stderr
        process.stdin.close()
        async with asyncio.timeout(60):
            assert b"Traceback" not in await process.stderr.read()
            await process.wait()


@pytest.mark.parametrize(("asked", "answered"), [*((each, each) for each in VERSIONS), ("2099-01-01", VERSIONS[0])])
async def test_each_version_of_the_protocol_is_spoken(asked: str, answered: str) -> None:
    async with client(version=asked) as box:
        assert box.noted[0]["protocolVersion"] == answered
        assert (await box.request("ping"))["result"] == {}
        tools = (await box.request("tools/list"))["result"]["tools"]
        assert (await box.request("logging/setLevel"))["error"]["code"] == -32601

    assert [tool["name"] for tool in tools] == [*TOOLS]
    changing = [tool["name"] for tool in tools if not tool["annotations"]["readOnlyHint"]]
    assert changing == [tool["name"] for tool in tools if tool["annotations"]["destructiveHint"]] == ["switch"]
    assert all(set(tool["inputSchema"]["required"]) <= set(tool["inputSchema"]["properties"]) for tool in tools)


async def test_each_tool_answers_what_its_verb_prints(box: int, paths: Paths, write_profile: Write) -> None:
    write_profile("gone", 'model = "/no/such.gguf"\n')
    run = speed_run(paths).id
    async with client() as mcp:
        text, status, ok = await mcp.call("status")
        assert ok and "no server" in text and status["server"]["pid"] is None  # nothing runs: an answer, no error

        text, profiles, _ = await mcp.call("profiles", text="synth")
        assert [row["name"] for row in profiles["profiles"]] == ["synthetic"] and "synthetic" in text

        text, shown, _ = await mcp.call("profile", profile="b")
        assert "--ctx-size 4096" in text and shown == verb("show", "b")

        text, fits, ok = await mcp.call("fit", profile="gone", set="ctx-size=512")
        assert ok and (fits["profile"], fits["verdict"]) == ("gone", "unknown") and fits["summary"] in text

        text, runs, _ = await mcp.call("bench_runs")
        assert [each["id"] for each in runs["runs"]] == [run] and run in text
        text, report, ok = await mcp.call("bench_report", runs=["last"])
        assert ok and text and report["schema_version"] == 1

        text, pages, _ = await mcp.call("docs", query="tokens per day of a client's key")
        assert "tokens-per-day" in text and pages["sections"][0]["page"]
        assert "does not speak of" in (await mcp.call("docs", query="xyzzy"))[0]


async def test_a_mistake_says_how_to_correct_it(box: int) -> None:
    async with client() as mcp:
        unknown = (await mcp.request("tools/call", {"name": "swich"}))["error"]
        assert (unknown["code"], unknown["message"]) == (-32602, "There is no tool 'swich'. Did you mean switch?")
        assert "no tool [1]. There are: status" in (await mcp.request("tools/call", {"name": [1]}))["error"]["message"]
        for tool, arguments, problem in (
            ("fit", {}, "profile is missing. It takes: profile (the name"),
            ("fit", {"profile": ""}, "profile is missing."),
            ("profiles", {"txt": "a"}, "There is no argument 'txt'. It takes: text ("),
            ("status", {"url": "http://x"}, "There is no argument 'url'. It takes: nothing."),
            ("fit", {"profile": 3}, "profile must be a text."),
            ("fit", {"profile": "a", "set": {"x": 1}}, "set must be a text, or a list of texts."),
            ("fit", {"profile": "a", "set": "nonsense"}, "sets no flag"),
            ("fit", {"profile": "a", "solve": ["colour"]}, "colour"),
            ("profile", {"profile": "c"}, "There is no profile 'c'."),
            ("profile", {"profile": "--help"}, "There is no profile '--help'."),
            ("bench_report", {"runs": ["--output=x"]}, "There is no run yet."),
            ("switch", {"profile": "c"}, "There is no profile 'c'."),
            ("profile", {"profile": "a\0"}, "cannot be run"),
            ("profile", {"profile": "a" * 200_000}, "cannot be run"),
        ):
            text, said, ok = await mcp.call(tool, **arguments)
            assert (ok, said["ok"], problem in text) == (False, False, True), text


async def test_what_is_no_protocol_and_two_calls_at_once(box: int) -> None:
    async with client() as mcp:
        mcp.say_bytes(b"{nonsense\n[]\n")
        assert [(await mcp.hear())["error"]["code"] for _ in range(2)] == [-32700, -32700]
        mcp.say(id=7, result={"late": True})
        mcp.say(method="notifications/cancelled", params={"requestId": "unknown"})
        slow, quick = mcp.ask("tools/call", {"name": "status"}), mcp.ask("tools/call", {"name": "profiles"})
        at_once = mcp.ask("ping")
        assert (await mcp.hear())["id"] == at_once
        assert {(await mcp.hear())["id"], (await mcp.hear())["id"]} == {slow, quick}


async def test_a_line_of_40_mb_ends_it(box: int) -> None:
    async with client() as mcp:
        with contextlib.suppress(OSError):
            mcp.say_bytes(b'{"id": 1, "method": "' + b"x" * 40_000_000)
            assert mcp.process.stdin
            await mcp.process.stdin.drain()
        async with asyncio.timeout(60):
            assert await mcp.process.wait() == 0


async def test_a_switch_is_refused_where_nobody_can_be_asked(box: int, paths: Paths) -> None:
    verb("start", "a")
    async with client() as mcp:
        text, _, ok = await mcp.call("switch", profile="b")

    assert not ok and "this client cannot ask the owner. Switch from a to b? a is idle." in text
    assert "`gpubox mcp --allow switch`" in text
    assert verb("status")["server"]["profile"] == "a"


async def test_a_switch_is_done_when_the_owner_agrees(box: int) -> None:
    async with client(elicitation={}) as mcp:
        for answer in ("decline", "cancel"):
            mcp.action = answer
            text, _, ok = await mcp.call("switch", profile="a")
            assert (text, ok) == ("Nothing is changed: the owner did not agree. Go on with what runs.", False)
        mcp.action = "accept"
        _, done, ok = await mcp.call("switch", profile="a")
        assert ok and (done["operation"], done["answering"]) == ("switch", "a")
        _, done, ok = await mcp.call("switch", profile="b")
        assert ok and done["answering"] == "b"
        asked = [each["params"]["message"] for each in mcp.noted[1:]]

    assert re.fullmatch(r"Start a\? Nothing runs now\. (Memory: |Whether it fits).+", asked[0])
    assert re.fullmatch(r"Switch from a to b\? a is idle\. (Memory: |Whether it fits).+", asked[-1])
    assert verb("status")["server"]["profile"] == "b"


async def test_an_allowed_switch_reports_its_steps_and_says_why_it_fails(
    box: int, tiny_gguf: Path, write_profile: Write
) -> None:
    write_profile("bad", f'model = "{tiny_gguf}"\nport = {box}\n[flags]\nnope = 1\n')
    async with client("--allow", "switch") as mcp:
        await mcp.request(
            "tools/call", {"name": "switch", "arguments": {"profile": "a"}, "_meta": {"progressToken": "p"}}
        )
        text, said, ok = await mcp.call("switch", profile="bad")
        steps = [each["params"] for each in mcp.noted[1:]]

    assert not ok and "nope" in text and said["ok"] is False
    assert [each["progress"] for each in steps] == [*range(1, len(steps) + 1)]
    assert {each["progressToken"] for each in steps} == {"p"}
    assert any("load a" in each["message"] for each in steps)
    assert verb("status")["server"]["profile"] == "a"


@pytest.mark.parametrize("how", ["notification", "client ends", "terminated", "killed"])
async def test_whoever_ends_a_switch_half_way_gets_the_old_server_back(
    how: str, box: int, paths: Paths, tmp_path: Path, tiny_gguf: Path, write_profile: Write
) -> None:  # fmt: skip
    verb("start", "a")
    gate = tmp_path / "gate"
    write_profile(
        "slow", f'model = "{tiny_gguf}"\nport = {box}\n[env]\nFAKE_CHAT_UNTIL = "{gate}"\n[flags]\nctx-size = 512\n'
    )
    async with client("--allow", "switch") as mcp:
        number = mcp.ask("tools/call", {"name": "switch", "arguments": {"profile": "slow"}})
        await asyncio.to_thread(until, lambda: "slow" in str(find_by_marker(f"{paths.state}|")))
        if how == "notification":
            mcp.say(method="notifications/cancelled", params={"requestId": number, "reason": "enough"})
            assert (await mcp.request("ping"))["result"] == {}
            await asyncio.to_thread(until, lambda: verb("status")["server"]["state"] == "ready")
        elif how == "terminated":
            for _ in range(2):
                mcp.process.terminate()
        elif how == "killed":  # the verb goes on by itself
            mcp.process.kill()
            gate.touch()
    last = "slow" if how == "killed" else "a"
    await asyncio.to_thread(until, lambda: verb("status")["server"]["operation"] is None)
    status = verb("status")["server"]
    assert (status["profile"], status["state"]) == (last, "ready")


def test_it_speaks_to_programs_alone(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("{}\n")
    with (tmp_path / "in").open() as stdin:
        ended = subprocess.run(
            own_program("gpubox.cli.entry", "mcp"), stdin=stdin, capture_output=True, text=True, check=False
        )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no pipes" in ended.stderr and "claude mcp add gpubox -- gpubox mcp" in ended.stderr


def test_the_pages_are_those_of_the_wheel() -> None:
    packaged = re.findall(r'"docs/(.+)" = "gpubox/_shipped_docs/(.+)"', Path("pyproject.toml").read_text())

    assert packaged == [(path.name, path.name) for path in sorted(shipped("docs").glob("*.md"))]
