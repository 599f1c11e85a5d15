"""Tool calls that a template should have turned into ``tool_calls`` and that came as text instead. Pure.

The forms: Hermes and Qwen (``<tool_call>{...}</tool_call>``), Qwen3-Coder (``<function=...>``), Llama 3
(``<|python_tag|>``), Mistral (``[TOOL_CALLS]``), a JSON object in a fence or as the whole text.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TAGGED = re.compile(r"<(tool_call|tool_code|function_call)>(.*?)(?:</\1>|\Z)", re.S)
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.S)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.S)
_MARKED = re.compile(r"(?:<\|python_tag\|>|\[TOOL_CALLS\])\s*(.*)\Z", re.S)
_FENCED = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n(\s*[\[{].*?)\n?```", re.S)

Found = tuple[str, str]
"""Name and raw arguments, as the model wrote them."""


def text_tool_calls(text: str, names: list[str]) -> tuple[str, list[Found]]:
    """``(prose, calls)``: the text before the first call, and the calls of tools named ``names``; none, the text."""
    if not names or not text.strip():
        return text, []
    for pattern in (_TAGGED, _FUNCTION, _MARKED, _FENCED):
        matches = list(pattern.finditer(text))
        found = [call for match in matches for call in _calls(match, pattern, names)]
        if found:
            return text[: matches[0].start()].strip(), found
    whole = text.strip()
    if whole.startswith("{") and (call := _json_call(whole, names)):
        return "", [call]
    return text, []


def _calls(match: re.Match[str], pattern: re.Pattern[str], names: list[str]) -> list[Found]:
    if pattern is _FUNCTION:
        return _tags(match[1], match[2])
    inner = match[match.lastindex or 1].strip()
    if pattern is _TAGGED and (function := _FUNCTION.search(inner)):
        return _tags(function[1], function[2])
    if pattern is not _FENCED and (mistral := re.match(r"([\w.-]+)\s*(\{.*)", inner, re.S)):
        return [(mistral[1], mistral[2])]
    if inner.startswith("["):
        items = _loaded(inner)
        calls = [_json_call(json.dumps(item), names) for item in items] if isinstance(items, list) else []
        return [call for call in calls if call]
    call = _json_call(inner, names, strict=pattern is _FENCED)
    return [call] if call else []


def _tags(name: str, inner: str) -> list[Found]:
    values = {key: value for key, value in _PARAMETER.findall(inner)}
    return [(name, json.dumps(values))] if values else [(name, inner.strip())]


def _json_call(text: str, names: list[str], *, strict: bool = True) -> Found | None:
    """The call that the JSON object ``text`` is. Not ``strict``: also one that only nearly is JSON."""
    values = _loaded(text)
    if not isinstance(values, dict):
        name = re.search(r'"name"\s*:\s*"([\w.-]+)"', text)
        rest = re.search(r'"(?:arguments|parameters)"\s*:\s*(.*)\Z', text, re.S)
        if strict or not name or not rest:
            return None
        return name[1], re.sub(r"\}\s*\Z", "", rest[1])
    inner = values.get("function")
    values = inner if isinstance(inner, dict) else values
    name_of = values.get("name") or values.get("tool")
    if not isinstance(name_of, str) or (strict and name_of not in names):
        return None
    arguments: Any = next((values[k] for k in ("arguments", "parameters", "args") if k in values), {})
    return name_of, arguments if isinstance(arguments, str) else json.dumps(arguments)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
