"""What the updates of hosted agents become."""

from __future__ import annotations

from gpubox.acp.updates import TurnUpdates
from gpubox.agent.events import ToolFinished


def test_the_output_is_what_a_command_wrote_and_not_what_was_asked_before_it() -> None:
    updates = TurnUpdates("1", lambda: 0.0)
    call = {"toolCallId": "a", "kind": "execute", "title": "cat x", "rawInput": {"command": "cat x"}}
    asked = {"type": "content", "content": {"type": "text", "text": "Available Decisions: Approved"}}
    updates.heed({"sessionUpdate": "tool_call", **call, "status": "pending", "content": [asked]})
    raw = {"exit_code": 0, "formatted_output": "3\n", "stdout": "3\n"}
    events = updates.heed({"sessionUpdate": "tool_call_update", **call, "status": "completed", "rawOutput": raw})
    assert [event.output.text.strip() for event in events if isinstance(event, ToolFinished)] == ["3"]


def test_a_permission_shows_what_the_call_would_change() -> None:
    diff = {"type": "diff", "path": "/workspace/calc.py", "oldText": "a - b\n", "newText": "a + b\n"}
    call = {"toolCallId": "a", "kind": "edit", "title": "Edit calc.py", "content": [diff]}
    options = [{"optionId": "y", "name": "Allow", "kind": "allow_once"}]
    _, question, _ = TurnUpdates("1", lambda: 0.0).question({"toolCall": call, "options": options})
    assert question.diff.splitlines()[-2:] == ["-a - b", "+a + b"]
