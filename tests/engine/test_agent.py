"""Real turns: the demo model writes a program, the sandbox runs it, the model reads the output."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator

import pytest

from gpubox.agent.chat_files import chat_path, load_chat
from gpubox.agent.chat_log import ChatSettings, SettingsChanged
from gpubox.agent.conversation import Conversation
from gpubox.agent.events import AgentEvent, Message, RoundFinished, TextDelta, ToolFinished, TurnFinished, TurnStarted
from gpubox.agent.journal import ChatJournal
from gpubox.agent.loop import AgentLoop
from gpubox.agent.run_tools import Programs, RunTool
from gpubox.agent.settings import AgentSettings
from gpubox.cli.main import run
from gpubox.config import Config
from gpubox.sandbox.policy import Policy
from gpubox.sandbox.runner import Sandbox
from gpubox.server.client import connect
from tests.engine.conftest import Box

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("patient")]

GREEDY = {"temperature": 0.0, "seed": 1}
PROGRAM = 'root ::= "```python\\nprint(" [1-9] [0-9] " * " [1-9] [0-9] ")\\n```\\n"'
"""The demo model is too small to write programs by itself: a grammar makes it."""


@pytest.fixture(scope="module")
def server(box: Box) -> Iterator[str]:
    box.profile("demo", {"ctx-size": 2048, "parallel": 1, "threads": 1})
    assert run(["start", "demo"]) == 0
    yield f"http://127.0.0.1:{box.port}"
    assert run(["stop"]) == 0


async def _turn(url: str, conversation: Conversation, text: str, settings: AgentSettings) -> list[AgentEvent]:
    sandbox = Sandbox(Config())
    if (await sandbox.confinement()).isolation is None:
        pytest.skip("nothing confines programs on this machine")
    conversation.add(Message("user", text))
    tool = RunTool(Programs(sandbox, policy=Policy(wall_seconds=60)))
    async with asyncio.timeout(200), connect(url) as client:
        return [event async for event in AgentLoop().run(conversation, settings, [tool], client)]


async def test_a_turn_runs_programs_and_processes_no_token_twice(server: str) -> None:
    conversation = Conversation()
    settings = AgentSettings(rounds=3, max_tokens=60, sampling={**GREEDY, "grammar": PROGRAM})
    events = await _turn(server, conversation, "What is 6 * 7?", settings)
    started = next(event for event in events if isinstance(event, TurnStarted))
    assert started.protocol == "fenced" and started.context_size_tokens == 2048
    outputs = [event.output for event in events if isinstance(event, ToolFinished)]
    assert outputs and outputs[0].ok and outputs[0].text.isdigit() and outputs[0].isolation
    assert isinstance(events[-1], TurnFinished) and events[-1].reason in ("rounds", "answered", "repetition")
    timings = [event.timing for event in events if isinstance(event, RoundFinished)]
    assert len(timings) >= 2 and all(timing.from_server for timing in timings)
    for before, timing in itertools.pairwise(timings):
        whole = (before.context_tokens or 0) - before.generated_tokens
        assert (timing.cached_tokens or 0) >= whole > 0, "the prompt of the round before is processed again"
        assert timing.prefill_reprocessed_tokens is not None and timing.prefill_reprocessed_tokens <= 8, (
            "only where the answer's text has other tokens than it was made of"
        )
    assert sum(timing.tool_seconds for timing in timings) > 0


async def test_the_next_turn_starts_with_the_same_prefix(server: str) -> None:
    conversation = Conversation()
    settings = AgentSettings(rounds=2, max_tokens=24, sampling=GREEDY, protocol="none")
    await _turn(server, conversation, "Say hello.", settings)
    events = await _turn(server, conversation, "And goodbye.", settings)
    timing = next(event.timing for event in events if isinstance(event, RoundFinished))
    assert (timing.cached_tokens or 0) > 40 and (timing.prefill_reprocessed_tokens or 0) <= 8
    assert [message.role for message in conversation.messages] == ["user", "assistant"] * 2


async def test_a_stopped_turn_frees_the_server(server: str) -> None:
    conversation = Conversation([Message("user", "Count.")])
    settings = AgentSettings(
        max_tokens=1500, sampling={**GREEDY, "ignore_eos": True, "grammar": 'root ::= ([a-z] " ")+'}
    )
    loop = AgentLoop()
    async with asyncio.timeout(200), connect(server, timeout=60) as client:
        async for event in loop.run(conversation, settings, [], client):
            if isinstance(event, TextDelta):
                loop.stop()
        assert isinstance(event, TurnFinished) and event.reason == "stopped"
        while (slots := await client.slots()) is None or any(slot.busy for slot in slots):
            await asyncio.sleep(0.05)
    assert conversation.messages[-1].partial


def test_gpubox_chat_prints_a_turn_as_json_lines(server: str, box: Box, capfd: pytest.CaptureFixture[str]) -> None:
    if asyncio.run(Sandbox(Config()).confinement()).isolation is None:
        pytest.skip("nothing confines programs on this machine")
    sampling = {**GREEDY, "grammar": PROGRAM}
    with contextlib.closing(ChatJournal(chat_path(box.paths, "sums"))) as journal:
        journal.add(SettingsChanged(ChatSettings(sampling=sampling, rounds=2, max_tokens=60), "now"))
    capfd.readouterr()
    code = run(["chat", "--continue", "sums", "-p", "What is 6 * 7?", "--json"])
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (events[0]["event"], events[0]["profile"], bool(events[0]["build"])) == ("chat", "demo", True)
    tool_output = next(event["output"] for event in events if event["event"] == "tool_finished")
    assert tool_output["ok"] and tool_output["text"].isdigit() and tool_output["isolation"]
    end = next(event for event in events if event["event"] == "turn_finished")
    assert (code == 0) == (end["reason"] == "answered")
    assert end["totals"]["timing"]["generated_tokens"] > 0
    (turn,) = load_chat(chat_path(box.paths, "sums")).path()
    assert turn.state == end["reason"]
    assert [message.role for message in turn.messages()][:3] == ["user", "assistant", "tool"]
