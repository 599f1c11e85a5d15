"""What a whole Reply asks for: calls that can be made, calls that get an error for an answer, or none. Pure."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpubox.agent.arguments import read_arguments
from gpubox.agent.fenced_code import python_program
from gpubox.agent.leaks import text_tool_calls
from gpubox.agent.protocol import CODE_TOOL, ToolProtocol
from gpubox.agent.reply import ModelReply, RawCall
from gpubox.agent.tools import Tool, ToolCall

MAX_CALLS_PER_REPLY = 8
"""Calls of one reply that are made."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call; with ``error`` it is not made, and that is what the model reads."""

    call: ToolCall
    error: str = ""
    kind: str = ""
    """Of the Notice this is worth: ``repaired``, ``leaked``, ``unknown_tool``, ``bad_arguments``, ``truncated``."""
    notice: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallPlan:
    """The calls of a reply, and the content that goes into the history with them."""

    calls: tuple[PlannedCall, ...]
    content: str
    linked: bool = False
    """Whether the history holds them as ``tool_calls`` (else the content shows them)."""


class CallIds:
    """Gives each call of a conversation an id of its own: the model's, where it is new."""

    def __init__(self, taken: Iterable[str], prefix: str) -> None:
        self._taken, self._prefix = set(taken), prefix

    def new(self, wanted: str = "") -> str:
        """``wanted``, or one made up."""
        numbers = (f"{self._prefix}_{n}" for n in itertools.count(1))
        identity = wanted if wanted and wanted not in self._taken else next(n for n in numbers if n not in self._taken)
        self._taken.add(identity)
        return identity


def plan_tool_calls(reply: ModelReply, tools: Sequence[Tool], chosen: ToolProtocol, taken: CallIds) -> ToolCallPlan:
    """The Plan of a whole reply."""
    if not tools or chosen.name == "none":
        return ToolCallPlan((), reply.content)
    truncated = reply.finish_reason == "length"
    if raw := [reply.calls[index] for index in sorted(reply.calls)]:
        return ToolCallPlan(_planned(raw, tools, taken, truncated), reply.content, True)
    visible = reply.visible
    prose, found = text_tool_calls(visible, [tool.name for tool in tools])
    if found:
        raw = [RawCall("", name, arguments) for name, arguments in found]
        planned = tuple(_leaked(p) for p in _planned(raw, tools, taken, truncated))
        return ToolCallPlan(planned, prose if chosen.native else reply.content, chosen.native)
    if chosen.name == "fenced":
        code, closed = python_program(visible)
        if code:
            call = ToolCall(taken.new(), CODE_TOOL, {"code": code}, code)
            return ToolCallPlan((_cut(call) if truncated and not closed else PlannedCall(call),), reply.content)
    return ToolCallPlan((), reply.content)


def _planned(raw: list[RawCall], tools: Sequence[Tool], taken: CallIds, truncated: bool) -> tuple[PlannedCall, ...]:
    planned: list[PlannedCall] = []
    for position, item in enumerate(raw[:MAX_CALLS_PER_REPLY]):
        cut = truncated and position == len(raw) - 1  # those before it were written to their end
        one = _one(item, tools, taken, cut)
        if all((one.call.name, one.call.arguments) != (p.call.name, p.call.arguments) for p in planned):
            planned.append(one)
    return tuple(planned)


def _one(raw: RawCall, tools: Sequence[Tool], taken: CallIds, cut: bool) -> PlannedCall:
    identity = taken.new(raw.id)
    tool = _tool(raw.name, tools)
    if tool is None:
        name = re.sub(r"\W", "_", raw.name)[:40] or "unknown"
        known = ", ".join(tool.name for tool in tools)
        return PlannedCall(
            ToolCall(identity, name),
            f"There is no tool {name}. The tools are: {known}.",
            "unknown_tool",
            f"The model called a tool that does not exist ({name}).",
        )
    properties = tool.parameters.get("properties", {})
    wanted = "code" if "code" in properties else ""
    arguments, repaired = read_arguments(raw.arguments, wanted, properties, truncated=cut)
    if arguments is None and cut:
        return _cut(ToolCall(identity, tool.name))
    problem = "the arguments are no valid JSON object" if arguments is None else _problem(arguments, tool)
    if arguments is None or problem:
        return PlannedCall(
            ToolCall(identity, tool.name, arguments or {}),
            f"Not run: {problem}. Call {tool.name} again with {_shape(tool)}.",
            "bad_arguments",
            f"The model's call of {tool.name} was not made: {problem}.",
        )
    code = arguments.get(wanted) if wanted else ""
    call = ToolCall(identity, tool.name, arguments, code if isinstance(code, str) else "")
    if repaired or tool.name != raw.name:
        return PlannedCall(
            call, "", "repaired", f"The model's call of {tool.name} was malformed and has been repaired."
        )
    return PlannedCall(call)


def _cut(call: ToolCall) -> PlannedCall:
    return PlannedCall(
        ToolCall(call.id, call.name),  # never what is half written
        "Not run: your reply was cut off by its token limit. Write a shorter program.",
        "truncated",
        "The model's call was cut off by max_tokens and not made.",
    )


def _leaked(planned: PlannedCall) -> PlannedCall:
    if planned.kind:
        return planned
    return replace(planned, kind="leaked", notice=f"The model wrote its call of {planned.call.name} as text.")


_OTHER_NAMES = {"python", "run_python", "execute_python", "execute_code", "code_interpreter", "run_code", "ipython"}


def _tool(name: str, tools: Sequence[Tool]) -> Tool | None:
    names = {tool.name: tool for tool in tools}
    simple = name.rpartition(".")[2].strip().lower()
    if simple in names:
        return names[simple]
    if simple in _OTHER_NAMES and CODE_TOOL in names:
        return names[CODE_TOOL]
    near = difflib.get_close_matches(simple, names, n=1, cutoff=0.8)
    return names[near[0]] if near else None


def _problem(arguments: dict[str, Any], tool: Tool) -> str:
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    for key in tool.parameters.get("required", []):
        if key not in arguments:
            return f'"{key}" is missing'
    for key, value in arguments.items():
        kind = properties.get(key, {}).get("type")
        if kind == "string" and not isinstance(value, str):
            return f'"{key}" must be a string'
        if kind == "integer" and (not isinstance(value, int) or isinstance(value, bool)):
            return f'"{key}" must be a whole number'
    if "code" in properties and not str(arguments.get("code", "")).strip():
        return '"code" is empty'
    return ""


def _shape(tool: Tool) -> str:
    keys = ", ".join(f'"{key}": ...' for key in tool.parameters.get("properties", {}))
    return f"{{{keys}}}"
