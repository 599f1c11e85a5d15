"""Shared by the tests of the agent: a turn against a scripted server, and a tool that only echoes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpubox.agent.conversation import Conversation
from gpubox.agent.events import AgentEvent, Message, Notice, TextDelta, TurnFailed, TurnFinished
from gpubox.agent.loop import AgentLoop
from gpubox.agent.settings import AgentSettings
from gpubox.agent.tools import OwnerQuestion, Tool, ToolCall, ToolOutput
from gpubox.server.client import connect
from tests.scripted_server import ScriptedServer


class Echo:
    """run that returns its program instead of running it."""

    name = "run"
    max_characters = 8000
    description = "Runs Python."
    parallel_safe = True
    parameters: dict[str, Any] = {  # noqa: RUF012
        "type": "object",
        "properties": {"code": {"type": "string"}},
        "required": ["code"],
    }

    def __init__(self, text: str = "ran: {}", ok: bool = True) -> None:
        self.text, self.ok = text, ok
        self.codes: list[str] = []

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        return None

    async def run(self, call: ToolCall) -> ToolOutput:
        self.codes.append(call.code)
        return ToolOutput(self.text.replace("{}", call.code), ok=self.ok, exit_code=0 if self.ok else 1)


@dataclass
class TurnResult:
    """The events of a finished turn and the requests it sent."""

    events: list[AgentEvent]
    conversation: Conversation
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def end(self) -> TurnFinished | TurnFailed:
        last = self.events[-1]
        assert isinstance(last, TurnFinished | TurnFailed)
        return last

    @property
    def finished(self) -> TurnFinished:
        assert isinstance(self.end, TurnFinished), self.end
        return self.end

    @property
    def failed(self) -> TurnFailed:
        assert isinstance(self.end, TurnFailed), self.end
        return self.end

    @property
    def notices(self) -> list[str]:
        return [event.kind for event in self.events if isinstance(event, Notice)]

    @property
    def shown(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    def of(self, kind: type[AgentEvent]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def run_turn(
    server: ScriptedServer,
    text: str = "go",
    *,
    tools: Sequence[Tool] = (),
    settings: AgentSettings | None = None,
    conversation: Conversation | None = None,
    loop: AgentLoop | None = None,
) -> TurnResult:
    """Runs one turn to its end and checks the rules that hold for every turn."""
    conversation = conversation or Conversation()
    conversation.add(Message("user", text))
    events: list[AgentEvent] = []
    async with server, connect(server.url) as client:
        run = (loop or AgentLoop(retry_seconds=0)).run(conversation, settings or AgentSettings(), tools, client)
        async with aclosing(run):
            async for event in run:
                events.append(event)
    check_requests(server.bodies)
    check_ends_once(events)
    return TurnResult(events, conversation, server.bodies)


def check_requests(bodies: Sequence[dict[str, Any]]) -> None:
    """llama-server answers with a 500 unless arguments are valid JSON and every call is answered."""
    for body in bodies:
        open_calls: list[str] = []
        for message in body["messages"]:
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                open_calls.append(call["id"])
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            elif message["role"] == "user":
                assert not open_calls, "a call without an answer"


def check_ends_once(events: Sequence[AgentEvent]) -> None:
    ends = [event for event in events if isinstance(event, TurnFinished | TurnFailed)]
    assert len(ends) == 1, ends
    for round_event in events:
        if timing := getattr(round_event, "timing", None):
            seconds = [getattr(timing, name) for name in timing.__struct_fields__ if name.endswith("_seconds")]
            assert sum(seconds) - timing.wall_seconds == pytest.approx(timing.wall_seconds, abs=1e-6)
