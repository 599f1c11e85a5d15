"""From a reply to tool calls: calls that can run, and calls that are answered with an error. Pure.

A call arrives natively, as text that the template should have parsed (call_formats.py), or as a fenced program. A call
that is only quoted (in a fence or in backticks) counts if the server has no native calls, and then only a call of the
sandbox.
"""

from __future__ import annotations

import difflib
import json
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpubox.agent.call_formats import MOST_CALLS, load_json, text_tool_calls
from gpubox.agent.code_answer import fenced_blocks, fenced_program, parse_python
from gpubox.agent.completion import ModelReply, RawToolCall
from gpubox.agent.events import Notice
from gpubox.agent.tools import RUN_TOOL, Tool, ToolCall, ToolProtocol
from gpubox.storage import read_json

MAX_REPAIR_CHARACTERS = 8000
"""Longer arguments are not repaired: the time of json_repair grows with the square of the length (0.2 s here)."""

Reading = tuple[dict[str, Any] | None, bool]
"""``(arguments, repaired)``; ``(None, False)`` if the text makes no sense."""


def read_arguments(
    raw: str, code_argument: str = "", known: Collection[str] = (), *, truncated: bool = False
) -> Reading:
    """The arguments in ``raw``, by strict JSON first, then by ever more lenient readings.

    ``code_argument``: the argument that a bare program is meant for, if the tool has one. ``known``: the only names
    that a repair may produce. ``truncated``: a token limit cut the reply off, so only complete JSON counts.
    """
    raw = raw.strip()
    if not raw:
        return {}, False
    try:
        values = read_json(raw)
    except ValueError:
        return (None, False) if truncated else _repair(raw, code_argument, known)
    if isinstance(values, dict):
        return values, False
    if isinstance(values, str) and values != raw:  # a string that holds JSON or the program
        arguments, _ = read_arguments(values, code_argument, known, truncated=truncated)
        if arguments:
            return arguments, True
    return None, False


def _repair(raw: str, code_argument: str, known: Collection[str]) -> Reading:
    blocks = fenced_blocks(raw)
    if blocks and (code := blocks[0].code.strip()):
        if blocks[0].language in ("json", "") and code.startswith("{"):
            return read_arguments(code, code_argument, known)[0], True
        if code_argument and _is_python(code):
            return {code_argument: blocks[0].code}, True
    if code_argument and not raw.startswith("{") and _is_python(raw):
        return {code_argument: raw}, True
    if (start := raw.find("{")) < 0:
        return None, False
    values = load_json(raw[start:])
    if isinstance(values, dict):
        return values, True
    values = _repair_json(raw[start:])
    if not isinstance(values, dict) or not values or (known and not set(values) <= set(known)):
        return None, False
    if code_argument in values and not (isinstance(values[code_argument], str) and _is_python(values[code_argument])):
        return None, False  # the repair broke the program
    return values, True


def _repair_json(raw: str) -> Any:
    if len(raw) > MAX_REPAIR_CHARACTERS:
        return None
    from json_repair import loads

    try:
        return read_json(json.dumps(loads(raw, skip_json_loads=True)))
    except (ValueError, RecursionError, TypeError, IndexError):
        return None


def _is_python(code: str) -> bool:
    tree = parse_python(code)
    return tree is not None and bool(tree.body)


MAX_CALLS_PER_REPLY = 8
"""Later calls of one reply do not run, and the model is told so."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call. If ``error`` is not empty, the call does not run and ``error`` is its output."""

    call: ToolCall
    error: str = ""
    notice: Notice | None = None
    """What the owner should know of it."""


@dataclass(frozen=True, slots=True)
class ToolCallPlan:
    """The calls of a reply, and the content that the reply leaves in the history."""

    calls: tuple[PlannedCall, ...]
    content: str
    native: bool = False
    """Whether the history holds the calls as ``tool_calls``; otherwise ``content`` shows them."""


def plan_tool_calls(
    reply: ModelReply, tools: Sequence[Tool], protocol: ToolProtocol, used_ids: set[str]
) -> ToolCallPlan:
    """The calls of a complete reply. ``used_ids``: the call ids of the conversation; those of the plan are added."""
    if not tools or protocol.name == "none":
        return ToolCallPlan((), reply.content)
    truncated = reply.finish_reason == "length"
    if native_calls := [reply.tool_calls[index] for index in sorted(reply.tool_calls)]:
        return ToolCallPlan(_planned_calls(native_calls, tools, used_ids, truncated), reply.content, True)
    visible = reply.visible
    tools = [tool for tool in tools if tool.name in protocol.tool_names]  # without native calls: the sandbox alone
    prose, text_calls = text_tool_calls(visible, [tool.name for tool in tools], quoted=not protocol.native)
    if text_calls:
        raw_calls = [RawToolCall("", name, arguments) for name, arguments in text_calls]
        planned = tuple(
            item
            if item.notice
            else replace(item, notice=Notice("text_call", f"The model wrote its call of {item.call.name} as text."))
            for item in _planned_calls(raw_calls, tools, used_ids, truncated)
        )
        return ToolCallPlan(planned, prose if protocol.native else reply.content, protocol.native)
    if protocol.name == "fenced":
        code, closed, shell = fenced_program(visible)
        if code:
            call = ToolCall(_new_id("", used_ids), RUN_TOOL, {"command" if shell else "code": code}, code)
            return ToolCallPlan((_cut_off(call) if truncated and not closed else PlannedCall(call),), reply.content)
    return ToolCallPlan((), reply.content)


def _planned_calls(
    raw_calls: list[RawToolCall], tools: Sequence[Tool], used_ids: set[str], truncated: bool
) -> tuple[PlannedCall, ...]:
    planned: list[PlannedCall] = []
    for index, raw in enumerate(raw_calls[:MOST_CALLS]):
        last = index == len(raw_calls) - 1  # only the last call can be cut off
        new = _planned_call(raw, tools, used_ids, truncated and last)
        if sum(not each.error for each in planned) >= MAX_CALLS_PER_REPLY and not new.error:
            new = replace(new, error=f"Not run: a reply may hold {MAX_CALLS_PER_REPLY} calls. Call it again.")
        if all((new.call.name, new.call.arguments) != (old.call.name, old.call.arguments) for old in planned):
            planned.append(new)
    return tuple(planned)


def _planned_call(raw: RawToolCall, tools: Sequence[Tool], used_ids: set[str], truncated: bool) -> PlannedCall:
    call_id = _new_id(raw.id, used_ids)
    tool = _find_tool(raw.name, tools)
    if tool is None:
        name = re.sub(r"\W", "_", raw.name)[:40] or "unknown"
        return PlannedCall(
            ToolCall(call_id, name),
            f"There is no tool {name}. The tools are: {', '.join(tool.name for tool in tools)}.",
            Notice("unknown_tool", f"The model called a tool that does not exist ({name})."),
        )
    properties = tool.parameters.get("properties", {})
    code_argument = "code" if "code" in properties else ""
    known = {*properties, *(name for name, ours in _ARGUMENTS.items() if ours in properties or "edits" in properties)}
    arguments, repaired = read_arguments(raw.arguments, code_argument, known, truncated=truncated)
    if arguments is None and truncated:
        return _cut_off(ToolCall(call_id, tool.name))
    if arguments:
        arguments = _renamed(arguments, properties)
        arguments = {key: _as_declared(value, properties.get(key, {})) for key, value in arguments.items()}
    problem = "the arguments are not a valid JSON object" if arguments is None else _problem(arguments, tool)
    if arguments is None or problem:
        shape = ", ".join(f'"{key}": ...' for key in properties)
        return PlannedCall(
            ToolCall(call_id, tool.name, arguments or {}),
            f"Not run: {problem}. Call {tool.name} again with {{{shape}}}.",
            Notice("bad_arguments", f"The model's call of {tool.name} was not run: {problem}."),
        )
    code = (arguments.get("code") or arguments.get("command")) if code_argument else ""
    call = ToolCall(call_id, tool.name, arguments, code if isinstance(code, str) else "")
    if repaired or tool.name != raw.name:
        notice = Notice("repaired", f"The model's call of {tool.name} was malformed and has been repaired.")
        return PlannedCall(call, notice=notice)
    return PlannedCall(call)


_DECLARED: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
}  # fmt: skip


def _as_declared(value: Any, schema: dict[str, Any]) -> Any:
    """The value; what a tag or a quote has made a string is read as the type that the tool declares."""
    if not isinstance(value, str) or schema.get("type") in (None, "string"):
        return value
    read = load_json(value.strip().lower() if schema["type"] == "boolean" else value.strip())
    return read if isinstance(read, _DECLARED.get(schema["type"], ())) else value


def _new_id(wanted: str, used_ids: set[str]) -> str:
    """The model's id if it is new, else a random one."""
    call_id = wanted if wanted and wanted not in used_ids else f"call_{secrets.token_hex(4)}"
    used_ids.add(call_id)
    return call_id


def _cut_off(call: ToolCall) -> PlannedCall:
    return PlannedCall(
        ToolCall(call.id, call.name),  # without the arguments: half a program must not run
        "Not run: your reply was cut off by its token limit. Write a shorter program.",
        Notice("truncated", "The model's call was cut off by max_tokens and not run."),
    )


_NAMES = {
    RUN_TOOL: "python run_python execute_python execute_code code_execution code_interpreter run_code ipython bash "
    "shell terminal execute run_command execute_command run_shell_command run_terminal_cmd",
    "list": "ls list_files list_dir list_directory",
    "read": "read_file view view_file open_file cat",
    "search": "grep search_files grep_search ripgrep rg",
    "edit": "edit_file str_replace replace replace_in_file search_replace apply_edit",
    "write": "write_file create_file write_to_file save_file",
    "test": "run_tests run_test tests",
    "ask": "ask_user ask_owner ask_followup_question question",
    "done": "finish attempt_completion submit task_complete",
}
"""The names of other agents for what our tools do."""
_ALIASES = {alias: name for name, aliases in _NAMES.items() for alias in aliases.split()}
_ARGUMENTS = {
    "file_path": "path", "filepath": "path", "filename": "path", "file": "path", "directory": "path",
    "cmd": "command", "program": "code", "timeout": "seconds", "query": "pattern", "regex": "pattern",
    "include": "glob", "contents": "content", "file_text": "content", "offset": "first_line",
    "start_line": "first_line", "limit": "lines",
    "old": "old", "new": "new", "old_string": "old", "new_string": "new", "old_str": "old", "new_str": "new",
}  # fmt: skip
"""And of their arguments."""


def _renamed(arguments: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    """The arguments by our names; a single edit is a list of one."""
    renamed = {key: value for key, value in arguments.items() if key in properties}
    edit: dict[str, Any] = {}
    for key, value in arguments.items():
        ours = _ARGUMENTS.get(key, key)
        target = edit if "edits" in properties and ours in ("old", "new") else renamed
        target.setdefault(ours if target is edit or ours in properties else key, value)
    return renamed | ({"edits": [edit]} if edit and "edits" not in renamed else edit)


def _find_tool(name: str, tools: Sequence[Tool]) -> Tool | None:
    by_name = {tool.name: tool for tool in tools}
    simple = name.rpartition(".")[2].strip().lower()
    if simple not in by_name and _ALIASES.get(simple) in by_name:
        simple = _ALIASES[simple]
    close = [simple] if simple in by_name else difflib.get_close_matches(simple, by_name, n=1, cutoff=0.8)
    return by_name[close[0]] if close else None


def _problem(arguments: dict[str, Any], tool: Tool) -> str:
    """What is wrong with ``arguments``, as the end of a sentence; empty: nothing."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    for key in tool.parameters.get("required", []):
        if key not in arguments:
            return f'"{key}" is missing'
    for key, value in arguments.items():
        expected = properties.get(key, {}).get("type")
        if expected == "string" and not isinstance(value, str):
            return f'"{key}" must be a string'
        if expected == "integer" and (not isinstance(value, int) or isinstance(value, bool)):
            return f'"{key}" must be a whole number'
    if "code" in properties and not str(arguments.get("code") or arguments.get("command") or "").strip():
        return '"command" is empty'
    return ""
