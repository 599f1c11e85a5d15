"""Tools about the turn itself: ``ask`` asks the owner, ``done`` ends the turn."""

from __future__ import annotations

import threading

from gpubox.agent.file_tools import BlockingTool
from gpubox.agent.tools import OwnerQuestion, Tool, ToolCall, ToolOutput, argument, arguments


def turn_tools() -> list[Tool]:
    """``ask``, whose output is the owner's answer, and ``done``, whose summary is the turn's answer."""
    options = argument("array", items={"type": "string"})
    ask = BlockingTool(
        "ask",
        "Ask the owner what you cannot find out yourself.",
        arguments(["question"], question=argument("string"), options=options),
        lambda call, stop: ToolOutput(""),  # never run: the answer is the output
        writes=True,
        question=_question,
    )
    summary = arguments(["summary"], summary=argument("string"))
    return [ask, BlockingTool("done", "End your turn, with what you did.", summary, _end, writes=True)]


def _question(call: ToolCall) -> OwnerQuestion:
    options = call.arguments.get("options")
    options = options if isinstance(options, list) else []
    text = str(call.arguments.get("question", ""))
    return OwnerQuestion("ask", text, tuple(str(option)[:200] for option in options[:9]), call)


def _end(call: ToolCall, stop: threading.Event) -> ToolOutput:
    return ToolOutput(str(call.arguments.get("summary", "")), ends_turn=True)
