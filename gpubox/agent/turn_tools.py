"""Tools about the turn itself: ``ask`` asks the owner, ``done`` ends the turn."""

from __future__ import annotations

from typing import Any

from gpubox.agent.tools import OwnerQuestion, ToolCall, ToolOutput


class AskTool:
    """The owner's answer is the output."""

    name = "ask"
    description = "Ask the owner what you cannot find out yourself."
    parameters: dict[str, Any] = {  # noqa: RUF012 - never changed
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "options": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["question"],
    }
    parallel_safe = False
    max_characters = 0

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        """The model's question."""
        options = call.arguments.get("options")
        options = options if isinstance(options, list) else []
        text = str(call.arguments.get("question", ""))
        return OwnerQuestion("ask", text, tuple(str(option)[:200] for option in options[:9]), call)

    async def run(self, call: ToolCall) -> ToolOutput:
        """Never called: the answer is the output."""
        raise AssertionError("the owner's answer is the output")


class DoneTool:
    """Ends the turn."""

    name = "done"
    description = "End your turn, with what you did."
    parameters: dict[str, Any] = {  # noqa: RUF012 - never changed
        "type": "object",
        "properties": {"summary": {"type": "string"}},
        "required": ["summary"],
    }
    parallel_safe = False
    max_characters = 0

    def question(self, call: ToolCall) -> OwnerQuestion | None:
        """None."""

    async def run(self, call: ToolCall) -> ToolOutput:
        """The summary is the turn's answer."""
        return ToolOutput(str(call.arguments.get("summary", "")), ends_turn=True)
