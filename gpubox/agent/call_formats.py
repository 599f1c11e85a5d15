"""The tool calls in a text: the forms in which models write them when the server has not parsed them. Pure.

Each is what the chat template of a family teaches (llama.cpp common/chat*.cpp names them):
Hermes, Qwen  <tool_call>{"name": ..., "arguments": {...}}</tool_call>
Qwen3-Coder   <function=f><parameter=x>1</parameter></function>
GLM           <tool_call>f <arg_key>x</arg_key><arg_value>1</arg_value></tool_call>
MiniMax       <invoke name="f"><parameter name="x">1</parameter></invoke>
gpt-oss       to=functions.f<|channel|>commentary json<|message|>{...}<|call|> (harmony)
DeepSeek      <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
Kimi          <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
Llama, Mistral  <|python_tag|>{...}, [f(x=1)] as the whole text; [TOOL_CALLS]f{...}
Gemma         a tool_code fence with a Python call; <|tool_call>call:f{x:1}<tool_call|>
and a JSON object in a fence, or as the whole text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from gpubox.storage import read_json

MOST_CALLS = 80
"""Of one text that are looked at."""
TextToolCall = tuple[str, str]
"""Name and raw arguments, as the model wrote them."""
Reader = Callable[[re.Match[str], Sequence[str]], Iterable[TextToolCall | None]]


def load_json(text: str) -> Any:
    """The JSON value in ``text``, which may have line breaks inside strings; ``None`` if it is none."""
    try:
        return read_json(text, strict=False)
    except ValueError:
        return None


def text_tool_calls(text: str, names: Sequence[str], *, quoted: bool) -> tuple[str, list[TextToolCall]]:
    """``(prose, calls)``: the text before the first call, and the calls. Without calls ``prose`` is ``text``.

    ``quoted``: calls in fences and backticks count too. What has no tag around it counts as a call only if it names
    one of the tools ``names``.
    """
    if not names or not text.strip():
        return text, []
    shown_spans: list[tuple[int, int]] = []
    for pattern, read in (*_FORMS, *(_FENCES if quoted else ())):
        matches = list(islice(pattern.finditer(text), MOST_CALLS))
        if not quoted:
            shown = [match for match in matches if _is_shown(text[: match.start()])]
            shown_spans += [match.span() for match in shown]
            matches = [m for m in matches if not any(start <= m.start() < end for start, end in shown_spans)]
        if calls := [call for match in matches for call in read(match, names) if call]:
            return _OPENING.sub("", text[: matches[0].start()]).strip(), calls
    whole = text.strip()
    if whole.startswith("{") and (call := _json_call(whole, names)):
        return "", [call]
    if whole.startswith("[") and (calls := _python_calls(whole, names)):
        return "", calls
    return text, []


def _is_shown(before: str) -> bool:
    """Whether what follows ``before`` is shown rather than meant: in a fence, a span of code, a quotation, a table."""
    before = _OPENING.sub("", before)
    *lines, line = before.split("\n")
    fence = ""
    for mark in filter(None, map(_FENCE.match, lines)):
        if not fence:
            fence = mark[1]
        elif mark[1].startswith(fence) and not mark[2].strip():
            fence = ""
    tags = any(before.rfind(opens) > before.rfind(closes) for opens, closes in _SHOWING_TAGS)
    return bool(fence or tags or _SHOWING_LINE.search(line) or len(re.findall("`+", line)) % 2)


# -- the readers -----------------------------------------------------------------------------------


def _named(match: re.Match[str], _: Sequence[str]) -> Iterator[TextToolCall]:
    yield match[1], match[2].strip()


def _tagged(match: re.Match[str], names: Sequence[str]) -> Iterator[TextToolCall | None]:
    inner = match[2].strip()
    if function := _FUNCTION.search(inner):
        yield from _parameters(function, names)
    elif (keyed := re.match(r"([\w.-]+)\s*(<arg_key>.*)", inner, re.S)) or re.fullmatch(r"[\w.-]+", inner):
        name, rest = (keyed[1], keyed[2]) if keyed else (inner, "")
        yield name, json.dumps({key.strip(): value for key, value in _KEY_AND_VALUE.findall(rest)})
    else:
        yield from _marked_call(inner, names)


def _marked(match: re.Match[str], names: Sequence[str]) -> Iterator[TextToolCall | None]:
    yield from _marked_call(match[1].strip(), names)


def _marked_call(inner: str, names: Sequence[str]) -> Iterator[TextToolCall | None]:
    if mistral := re.match(r"([\w.-]+)\s*(\{.*)", inner, re.S):
        yield mistral[1], mistral[2]
    elif inner.startswith("["):
        yield from _listed(inner, names) or _python_calls(inner, names)
    else:
        yield _json_call(inner, names, strict=False)


def _parameters(match: re.Match[str], _: Sequence[str]) -> Iterator[TextToolCall]:
    parameters = dict(_PARAMETER.findall(match[2]))
    yield match[1], json.dumps(parameters) if parameters else match[2].strip()


def _gemma(match: re.Match[str], _: Sequence[str]) -> Iterator[TextToolCall]:
    """``x:<|"|>text<|"|>,n:1``: keys are bare, texts stand between marks of their own."""
    parts = match[2].split('<|"|>')
    bare = [
        re.sub(r"([\w-]+)\s*:", r'"\1":', part) if at % 2 == 0 else json.dumps(part) for at, part in enumerate(parts)
    ]
    yield match[1], "{" + "".join(bare) + "}"


def _fenced(match: re.Match[str], names: Sequence[str]) -> Iterator[TextToolCall | None]:
    inner = match[1].strip()
    yield from _listed(inner, names) or [_json_call(inner, names)]


def _listed(inner: str, names: Sequence[str]) -> list[TextToolCall | None]:
    """The calls of a JSON list."""
    items = load_json(inner) if inner.startswith("[") else None
    return [_json_call(json.dumps(item), names) for item in items] if isinstance(items, list) else []


def _tool_code(match: re.Match[str], names: Sequence[str]) -> Iterator[TextToolCall]:
    inner = match[1].strip()
    shown = re.fullmatch(r"print\((.*)\)", inner, re.S)
    yield from _python_calls(shown[1] if shown else inner, names)


def _json_call(text: str, names: Sequence[str], *, strict: bool = True) -> TextToolCall | None:
    """The call in the JSON object ``text``. Not ``strict``: any name, and JSON that is only nearly valid."""
    values = load_json(text)
    if not isinstance(values, dict):
        name_match = re.search(r'"name"\s*:\s*"([\w.-]+)"', text)
        arguments_match = re.search(r'"(?:arguments|parameters)"\s*:\s*(.*)\Z', text, re.S)
        if strict or not name_match or not arguments_match:
            return None
        return name_match[1], re.sub(r"\}\s*\Z", "", arguments_match[1])
    inner = values.get("function") or values.get("function_call")
    values = inner if isinstance(inner, dict) else values
    name = values.get("name") or values.get("tool")
    if not isinstance(name, str) or (strict and name not in names):
        return None
    arguments: Any = next((values[k] for k in ("arguments", "parameters", "args") if k in values), {})
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments)


def _python_calls(text: str, names: Sequence[str]) -> list[TextToolCall]:
    """The calls in ``f(x=1)`` or ``[f(x=1), g()]``, if that is all, and every one is of a tool; else none."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        nodes = body.elts if isinstance(body, ast.List) else [body]
        calls = []
        for node in nodes:
            if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
                return []
            name = ast.unparse(node.func).rpartition(".")[2]
            values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            calls.append((name, json.dumps(values)))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return []
    return calls if all(name in names for name, _ in calls) else []


# -- the forms -------------------------------------------------------------------------------------

_OPENING = re.compile(
    r"(?:<[|｜]?(?:minimax:)?tool[▁_]calls?[^<>]*>\s*|<\|start\|>assistant\s*|<\|channel\|>\w+\s*)+\Z"
)
"""What opens a list of calls."""
_FENCE = re.compile(r"\s*(?:(?:[-*+>]|\d+[.)])\s+)*(`{3,}|~{3,})(.*)")
_SHOWING_TAGS = (("<pre", "</pre"), ("<code", "</code"), ("<!--", "-->"))
_SHOWING_LINE = re.compile(r"^(?: {4}|\t| {0,3}[>|])|[\"'“”‘„«]\s*\Z")
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.S)
_PARAMETER = re.compile(r"<parameter(?:=|\s+name=\")([\w.-]+)\"?>\n?(.*?)\n?(?:</parameter>|(?=<parameter)|\Z)", re.S)
_KEY_AND_VALUE = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|\Z)", re.S)
_FORMS: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (
        re.compile(r"\bto=(?:functions\.)?([\w.-]+)[^{`]{0,80}<\|message\|>(.*?)(?:<\|(?:call|end|start)\|>|\Z)", re.S),
        _named,
    ),
    (
        re.compile(
            r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]+)\s*(?:<｜tool▁sep｜>)?\s*(?:```json\s*)?"
            r"(\{.*?)\s*(?:```\s*)?(?:<｜tool▁call▁end｜>|\Z)",
            re.S,
        ),
        _named,
    ),
    (
        re.compile(
            r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>(.*?)"
            r"(?:<\|tool_call_end\|>|\Z)",
            re.S,
        ),
        _named,
    ),
    (re.compile(r"<\|tool_call>\s*call:([\w.-]+)\s*\{(.*?)\}\s*(?:<tool_call\|>|\Z)", re.S), _gemma),
    (re.compile(r"<invoke name=\"([\w.-]+)\">(.*?)(?:</invoke>|\Z)", re.S), _parameters),
    (re.compile(r"<(tool_call|tool_code|function_call)>(.*?)(?:</\1>|\Z)", re.S), _tagged),
    (_FUNCTION, _parameters),
    (
        re.compile(r"(?:<\|python_tag\|>|<\|python_start\|>|\[TOOL_CALLS\])\s*(.*?)(?:<\|python_end\|>|\Z)", re.S),
        _marked,
    ),
)
_FENCES: tuple[tuple[re.Pattern[str], Reader], ...] = (
    (re.compile(r"```tool_code[ \t]*\n(.*?)\n?```", re.S), _tool_code),
    (re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n(\s*[\[{].*?)\n?```", re.S), _fenced),
)
