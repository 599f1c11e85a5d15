"""``gpubox chat`` with a server that plays a script."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpubox.agent.chat_files import chat_names, chat_path, load_chat
from gpubox.agent.events import Notice, PrefillProgress, ReasoningDelta, TextDelta, ToolRequested, TurnFailed
from gpubox.agent.projects import remember_allowed
from gpubox.agent.tools import OwnerQuestion, ToolCall
from gpubox.cli.chat_output import TextTurnOutput
from gpubox.cli.chat_turn import ApprovalPrompt
from gpubox.cli.main import run
from gpubox.hardware.process import own_identity
from gpubox.paths import Paths
from gpubox.sandbox.policy import Outcome, Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.server.state import InstanceState, Launch, RunningServer, save_state
from tests.scripted_server import FENCED, Play, ScriptedServer, call, refuses, runs, says

Serve = Callable[..., ScriptedServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a ScriptedServer in its own event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def start(*plays: Play, kind: type[ScriptedServer] = ScriptedServer, **how: Any) -> ScriptedServer:
        server = kind(*plays, **how)
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
        started.append(server)
        return server

    started: list[ScriptedServer] = []
    yield start
    for server in started:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(30)
    asyncio.run_coroutine_threadsafe(end_all(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


async def end_all() -> None:
    """Ends answers that still wait."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Policy]]:
    """A tool call that printed 42."""
    ran: list[tuple[str, Policy]] = []

    async def pretend(self: Sandbox, code: str, policy: Policy, **more: Any) -> Outcome:
        ran.append((code, policy))
        return Outcome(0, None, "42\n", "", 0.031, "bubblewrap")

    monkeypatch.setattr(Sandbox, "run", pretend)
    return ran


class ChatResult:
    """The result of one command line."""

    def __init__(self, code: int, out: str, err: str) -> None:
        assert "Traceback" not in out + err
        self.code, self.out, self.err = code, out, err

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def kinds(self, *without: str) -> list[str]:
        left_out = {"prefill_progress", "generation_stats", *without}
        return [event["event"] for event in self.events if event["event"] not in left_out]


@pytest.fixture
def chat(capfd: pytest.CaptureFixture[str]) -> Callable[..., ChatResult]:
    def run_chat(*words: str) -> ChatResult:
        capfd.readouterr()
        code = run(["chat", *words])
        out, err = capfd.readouterr()
        return ChatResult(code, out, err)

    return run_chat


def running(paths: Paths, server: ScriptedServer, profile: str = "coder", build: str = "") -> None:
    """Records ``server`` as the active server."""
    launch = Launch(profile, ("llama-server",), "127.0.0.1", int(server.url.rpartition(":")[2]), engine_version=build)
    save_state(
        paths.instance_state("main"),
        InstanceState(RunningServer(launch, server.url, "t", own_identity(), ready_at="t")),
    )


def test_a_turn_as_text(serve: Serve, chat: Callable[..., ChatResult], programs: list[Any], paths: Paths) -> None:
    server = serve(says("Let me see.", calls=[runs("print(6 * 7)")], finish="tool_calls"), says("It is 42.\n"))

    result = chat("-p", "What is 6 * 7?", "--url", server.url)

    assert (result.code, result.out) == (0, "Let me see.\nIt is 42.\n")
    err = re.sub(r"in [\d.]+ m?s", "in TIME", re.sub(r"\S+( tok/s| with waiting)", r"RATE\1", result.err))
    assert err.splitlines() == [
        f"{server.url} (b11434-abc) answers in chat what-is-6-7",
        "  tools: the model's own calls (the chat template supports tool calls)",
        "  ▸ run",
        "  │ print(6 * 7)",
        "  ✓ exit 0  31 ms  bubblewrap",
        "  │ 42",
        "  ✓ 2 rounds  5 tokens in TIME  RATE tok/s while writing  RATE with waiting  1 tool call in TIME",
    ]
    assert [code for code, _ in programs] == ["print(6 * 7)"]
    assert chat_names(paths) == ["what-is-6-7"]


def test_a_turn_as_json_lines(serve: Serve, chat: Callable[..., ChatResult], programs: list[Any], paths: Paths) -> None:
    server = serve(says(reasoning="hm", calls=[runs("print(6 * 7)")]), says("It is 42."), caps=None)
    running(paths, server)

    result = chat("-p", "What is 6 * 7?", "--json", "--name", "sums")

    assert (result.code, result.err) == (0, "")
    assert result.kinds() == [
        "chat", "message_added", "turn_started", "round_started", "reasoning_delta", "message_added", "tool_requested",
        "tool_finished", "message_added", "round_finished", "round_started", "text_delta", "text_delta",
        "message_added", "round_finished", "turn_finished",
    ]  # fmt: skip
    first, last = result.events[0], result.events[-1]
    assert (first["chat"], first["profile"], first["build"]) == ("sums", "coder", "b11434-abc")
    assert (last["reason"], last["text"], last["totals"]["rounds"]) == ("answered", "It is 42.", 2)
    assert all(event["schema_version"] == 1 for event in result.events)
    assert load_chat(chat_path(paths, "sums")).path()[0].header.profile == "coder"


def test_a_fenced_program_and_what_is_chosen(
    serve: Serve, chat: Callable[..., ChatResult], programs: list[Any]
) -> None:
    server = serve(says("```python\nprint(1)\n```"), says("One."), says("Two."), caps=FENCED)
    words = ("--system", "Be brief.", "--set", "temperature=0.2", "--no-thinking", "--max-tokens", "77")

    assert chat("-p", "One?", "--url", server.url, "--name", "n", *words).code == 0
    assert chat("-p", "Two?", "--url", server.url, "--continue", "n").code == 0

    assert [code for code, _ in programs] == ["print(1)"]
    last = server.bodies[-1]
    assert last["messages"][0]["content"].startswith("Be brief.")
    assert [message["content"] for message in last["messages"]][1] == "One?"
    assert (last["temperature"], last["max_tokens"]) == (0.2, 77)
    assert last["chat_template_kwargs"] == {"enable_thinking": False}
    assert last["messages"][: len(server.bodies[-2]["messages"])] == server.bodies[-2]["messages"]


def test_no_tools(serve: Serve, chat: Callable[..., ChatResult], programs: list[Any]) -> None:
    server = serve(says("```python\nprint(1)\n```"), *[says("Hi.")] * 3)
    url = ("--url", server.url)

    assert chat("-p", "Write it.", *url, "--no-tools", "--set", "top_k=5").code == 0
    assert chat("-p", "Again.", *url, "--continue", "write-it").code == 0
    assert programs == []
    assert chat("-p", "Now.", *url, "--continue", "write-it", "--tools").code == 0
    assert chat("-p", "Now.", *url, "--continue", "write-it", "--reset").code == 0

    assert ["tools" in body for body in server.bodies] == [False, False, True, True]
    assert ["top_k" in body for body in server.bodies] == [True, True, True, False]


def test_a_switch_in_mid_chat_keeps_the_chat(serve: Serve, chat: Callable[..., ChatResult], paths: Paths) -> None:
    first, second = serve(says("Red.")), serve(says("Blue."))
    running(paths, first, "one")
    assert chat("-p", "A colour?", "--name", "c").code == 0
    running(paths, second, "two")
    assert chat("-p", "Another?", "--continue", "c").code == 0

    assert [message["content"] for message in second.bodies[0]["messages"]][1:] == ["A colour?", "Red.", "Another?"]
    assert [turn.header.profile for turn in load_chat(chat_path(paths, "c")).path()] == ["one", "two"]
    shown = chat("show", "c").out
    assert "> A colour?\n" in shown
    assert "(two b11434-abc: answered)" in shown


WRITE = {"path": "sub/new.txt", "content": "hello\n"}


@pytest.mark.parametrize(
    ("apply", "made", "words"),
    [
        ("turn", True, "new      sub/new.txt  +1 -0"),
        ("plan", False, "Plan mode: nothing is written"),
        (None, False, "Nothing is written yet. gpubox chat take write writes it."),
    ],
)
def test_writing_a_file(
    apply: str | None, made: bool, words: str, serve: Serve, chat: Callable[..., ChatResult], tmp_path: Path,
    programs: list[tuple[str, Policy]],
) -> None:  # fmt: skip
    server = serve(says(calls=[call("write", json.dumps(WRITE)), runs("1", 1)]), says("Done."))
    work = tmp_path / "work"
    work.mkdir()

    result = chat("-p", "Write.", "--url", server.url, "--workdir", str(work), *(["--apply", apply] if apply else []))

    assert result.code == 0
    assert words in result.err
    assert (work / "sub/new.txt").is_file() == made
    assert programs[0][1].workspace == work
    assert [tool["function"]["name"] for tool in server.bodies[0]["tools"]] == [
        "list", "read", "search", "edit", "write", "run", "test", "ask", "done",
    ]  # fmt: skip


def test_the_diff_is_part_of_the_output(serve: Serve, chat: Callable[..., ChatResult], tmp_path: Path) -> None:
    server = serve(says(calls=[call("write", json.dumps(WRITE))]), says("Done."))
    work = tmp_path / "work"
    work.mkdir()

    result = chat("-p", "Write.", "--url", server.url, "--workdir", str(work), "--json")

    (finished,) = [event for event in result.events if event["event"] == "tool_finished"]
    assert finished["output"]["diff"] == "--- /dev/null\n+++ sub/new.txt\n@@ -0,0 +1,1 @@\n+hello"
    assert [event["files"] for event in result.events if event["event"] == "files_changed"] == [
        [{"path": "sub/new.txt", "kind": "new", "added": 1, "removed": 0}]
    ]


def test_a_home_as_workspace_needs_a_word(
    serve: Serve, chat: Callable[..., ChatResult], own_home: Path, paths: Paths
) -> None:
    server = serve(says("Done."))

    result = chat("-p", "Hi.", "--url", server.url, "--workdir", str(own_home))

    assert result.code == 2
    assert "is the home folder" in result.err
    assert "--any-workdir" in result.err
    assert (chat_names(paths), server.bodies) == ([], [])
    assert chat("-p", "Hi.", "--url", server.url, "--workdir", str(own_home), "--any-workdir").code == 0


def test_nobody_answers(chat: Callable[..., ChatResult], paths: Paths) -> None:
    for words in ((), ("--url", "http://127.0.0.1:9")):
        result = chat("-p", "Anyone?", *words)
        assert result.code == 3
        assert result.out == ""
    result = chat("-p", "Anyone?", "--json")
    (error,) = result.events
    assert (result.code, error["event"], error["ok"], error["exit_code"]) == (3, "error", False, 3)
    assert chat_names(paths) == []


class Dies(ScriptedServer):
    """Stops listening after its first answer."""

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._play(reader, writer)
        self._server.close()


def test_a_server_that_goes_in_mid_turn_is_exit_3_and_keeps_what_was_said(
    serve: Serve, chat: Callable[..., ChatResult], paths: Paths
) -> None:
    server = serve(says("Once upon", drop=True), kind=Dies)

    result = chat("-p", "Tell me.", "--url", server.url, "--json", "--name", "t")

    assert result.code == 3
    assert result.kinds()[-2:] == ["turn_failed", "error"]
    (turn,) = load_chat(chat_path(paths, "t")).path()
    assert (turn.state, turn.answer) == ("failed", "Once upon")


def test_a_server_that_refuses_is_one_sentence(serve: Serve, chat: Callable[..., ChatResult]) -> None:
    server = serve(*[refuses(500, "kaboom")] * 5)

    result = chat("-p", "Hi.", "--url", server.url)

    assert result.code == 1
    assert "kaboom" in result.err
    assert result.out == ""


def test_a_limit_is_exit_1_and_says_which(serve: Serve, chat: Callable[..., ChatResult], programs: list[Any]) -> None:
    server = serve(says(calls=[runs("print(1)")]), says(calls=[runs("print(2)")]), says("So far."))

    result = chat("-p", "Hi.", "--url", server.url, "--max-rounds", "2")

    assert result.code == 1
    assert "used all its rounds" in result.err and "So far." in result.out
    assert "--max-rounds" in result.err


def test_hostile_text_reaches_no_terminal(serve: Serve, chat: Callable[..., ChatResult], programs: list[Any]) -> None:
    bad = "[/foo] \x1b]0;owned\x07\x1b[2J \u202eevil 👩‍👧 \x9b31m"
    server = serve(says([bad, "\n" + "".join(map(str, range(20_000)))], calls=[runs(f"print({bad!r})")]), says("ok"))

    result = chat("-p", bad, "--url", server.url)

    assert result.code == 0
    assert not set("\x1b\x07\x9b\u202e") & set(result.out + result.err)
    assert "[/foo]  �evil 👩" in result.out and "owned" not in result.out
    assert "👩‍👧" in result.out
    shown = chat("show", chat_names(Paths.default())[0])
    assert not set("\x1b\x07\x9b\u202e") & set(shown.out)
    assert "👩‍👧" in shown.out


def test_usage(chat: Callable[..., ChatResult], serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (
        (), ("-p", "  "), ("-p", "x", "--continue", "a", "--name", "b"), ("-p", "x", "--set", "temprature=1"),
        ("-p", "x", "--set", "top_p=nan"), ("-p", "x", "ls"), ("-p", "x", "--continue", "none"),
        ("-p", "x", "--name", "a/b"), ("show", "none"), ("wrong",), ("-p", "x", "--max-rounds", "0"),
    ):  # fmt: skip
        assert chat(*words).code == 2, words


def test_the_prompt_from_stdin(serve: Serve) -> None:
    server = serve(says("Fine."))
    command = [sys.executable, "-m", "gpubox", "chat", "-p", "-", "--url", server.url]

    done = subprocess.run(command, input="How are\nyou?", capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "Fine.\n"
    assert server.bodies[0]["messages"][-1]["content"] == "How are\nyou?"


def test_the_chats_there_are(serve: Serve, chat: Callable[..., ChatResult], paths: Paths) -> None:
    assert "no chats yet" in chat("ls").out
    server = serve(says("Red."), says("Blue."), says("Green."))
    url = ("--url", server.url)
    chat("-p", "A colour?", "--name", "c", *url)
    chat("-p", "Another?", "--continue", "c", *url)
    (row,) = json.loads(chat("ls", "--json").out)["chats"]
    assert (row["name"], row["turns"], row["title"]) == ("c", 2, "A colour?")
    assert "A colour?" in chat("ls").out

    assert chat("search", "BLUE").out.split()[0] == "c"
    assert chat("search", "violet").code == 1
    assert json.loads(chat("search", "red", "--json").out)["hits"][0]["role"] == "assistant"

    turns = json.loads(chat("show", "c", "--json").out)["turns"]
    assert [turn["answer"] for turn in turns] == ["Red.", "Blue."]
    assert chat("branch", "c", "d", "--at", turns[0]["turn_id"]).code == 0
    assert chat("branch", "c", "d").code == 2
    assert [turn.answer for turn in load_chat(chat_path(paths, "d")).path()] == ["Red."]

    assert chat("rewind", "c").code == 0
    assert chat("rewind", "c", "nope").code == 2
    chat("-p", "A third?", "--continue", "c", *url)
    assert [m["content"] for m in server.bodies[-1]["messages"]][1:] == ["A colour?", "Red.", "A third?"]
    listed = chat("show", "c", "--turns").out
    assert [line.split()[1] for line in listed.splitlines()[1:]] == ["*", "answered", "*"]

    assert chat("rename", "c", "colours").code == 0
    assert chat("rm", "colours", "none").code == 2
    assert json.loads(chat("rm", "colours", "d", "--json").out)["ok"] is True
    assert chat_names(paths) == []


def ask_beside(server: ScriptedServer, *words: str) -> subprocess.Popen[str]:
    """A chat in another process; its answer stops after the first part."""
    command = [sys.executable, "-m", "gpubox", "chat", "-p", "Tell me.", "--url", server.url, "--name", "t", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_said(number: int, serve: Serve, paths: Paths) -> None:
    server = serve(says(["Once upon", " a time"], hang=True))
    with ask_beside(server, "--json") as process:
        assert process.stdout is not None
        while " a time" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(number)
        out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert err == "gpubox: interrupted\n"
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events][-2:] == ["turn_finished", "error"]
    assert (events[-2]["reason"], events[-1]["exit_code"]) == ("stopped", 130)
    (turn,) = load_chat(chat_path(paths, "t")).path()
    assert (turn.state, turn.answer) == ("stopped", "Once upon a time")


def test_a_killed_gpubox_keeps_what_was_said_a_second_before(
    serve: Serve, paths: Paths, chat: Callable[..., ChatResult]
) -> None:
    server = serve(says(["Once upon", " a time"], hang=True), says("there was."))
    path = chat_path(paths, "t")
    with ask_beside(server) as process:
        end = time.monotonic() + 60
        while not (path.is_file() and b"a time" in path.read_bytes()):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)

    (turn,) = load_chat(path).path()
    assert (turn.state, turn.answer) == ("cut off", "Once upon a time")
    assert chat("-p", "Go on.", "--continue", "t", "--url", server.url).code == 0
    sent = [(message["role"], message["content"]) for message in server.bodies[-1]["messages"]]
    assert sent[1:] == [("user", "Tell me."), ("assistant", "Once upon a time"), ("user", "Go on.")]


def test_lines_that_cannot_be_read_are_counted(serve: Serve, paths: Paths, chat: Callable[..., ChatResult]) -> None:
    chat("-p", "x", "--name", "c", "--no-tools", "--url", serve(says("ok")).url)
    assert "not shown" not in chat("show", "c").out

    with chat_path(paths, "c").open("a") as file:
        file.write('{"torn": \n')
    assert chat("show", "c").out.endswith("(not shown: 1 line, damaged)\n")
    with chat_path(paths, "c").open("a") as file:
        file.write('torn\n{"record":"of next year"}\n')
    assert chat("show", "c").out.endswith("(not shown: 2 lines, damaged)\n(not shown: 1 line, of a newer gpubox)\n")


@pytest.mark.parametrize(
    ("typed", "allowed"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
async def test_the_owner_is_asked_at_the_terminal(
    typed: str, allowed: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))

    approval = ApprovalPrompt(True)
    approval.call_shown.set()
    assert (await approval(OwnerQuestion("network", "+\x1b[2Jnew\n-old"))).yes is allowed
    assert capfd.readouterr().err.startswith("+␛[2Jnew\n-old\nType y for yes, or why not, and Enter.")


async def test_the_end_of_the_input_is_no_answer_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    approval = ApprovalPrompt(True)
    approval.call_shown.set()
    assert not (await approval(OwnerQuestion("go_on", "Go on?"))).yes
    assert not approval.can_ask, "a later question waits for nobody"


def test_on_a_terminal_what_is_going_on_is_one_line_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpubox.cli.diagnostics.stderr_is_terminal", lambda: True)
    lines = TextTurnOutput()
    for event in (
        PrefillProgress(10, 5000, 0), ReasoningDelta("hm"), ReasoningDelta("hm"), TextDelta("Half a line"),
        ReasoningDelta("hm"), Notice("x", "A notice."), TextDelta("More\n"), TurnFailed("It broke."),
    ):  # fmt: skip
        lines.show(event)

    out, err = capfd.readouterr()
    assert out == "Half a line\nMore\n"
    assert err.split("\r\x1b[2K") == [
        "", "  reading the prompt … 10 of 5,000 tokens", "  thinking … ~1 tokens", "  thinking … ~2 tokens",
        "  ! A notice.\n",
    ]  # fmt: skip


@pytest.mark.parametrize(("one_screen", "times"), [(True, 1), (False, 2)])
def test_where_answer_and_remarks_are_one_screen_a_fenced_program_stands_there_once(
    one_screen: bool, times: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpubox.cli.diagnostics.stderr_is_terminal", lambda: one_screen)
    monkeypatch.setattr("gpubox.cli.output.is_terminal", lambda: one_screen)
    lines = TextTurnOutput()
    lines.show(TextDelta("I run it:\n```python\nprint(1)\n```\n"))
    lines.show(ToolRequested(ToolCall("c", "run", {}, "print(1)")))

    out, err = capfd.readouterr()
    assert (out + err).count("print(1)") == times and "▸ run" in err


def test_looking_at_chats_needs_no_http_and_no_screen(paths: Paths) -> None:
    script = "import sys\nfrom gpubox.cli.main import run\nrun(['chat', 'ls'])\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert {name.partition(".")[0] for name in done.stderr.split()} & {"textual", "rich", "httpx", "yaml"} == set()


def test_the_project_that_one_stands_in_is_the_workspace_once_it_is_allowed(
    serve: Serve, chat: Callable[..., ChatResult], tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(*[says("Done.")] * 4)
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    monkeypatch.chdir(project)
    at = ("-p", "Hi.", "--url", server.url)
    assert chat(*at, "--name", "a").code == 0, "there is no terminal to ask at"
    assert load_chat(chat_path(paths, "a")).settings.workdir == ""
    remember_allowed(paths, project, True)
    chat(*at, "--name", "b")
    assert load_chat(chat_path(paths, "b")).settings.workdir == str(project)
    chat(*at, "--name", "c", "--workdir", "")
    assert load_chat(chat_path(paths, "c")).settings.workdir == ""
    remember_allowed(paths, project, False)
    chat(*at, "--name", "d")
    assert load_chat(chat_path(paths, "d")).settings.workdir == ""
