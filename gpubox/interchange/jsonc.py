"""Sets values in a JSON text that people wrote: comments, commas at an end, order and all other keys stay. Pure.

Editors and agents read such files with comments and a comma before a closing bracket (jsonc-parser's rules).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpubox.errors import UsageError
from gpubox.storage import MAX_JSON_DEPTH, read_json

_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_UNIT = "  "


@dataclass(slots=True)
class _Node:
    """Where a value stands in the text, and of an object its members."""

    start: int
    end: int = 0
    members: dict[str, _Node] | None = None
    first_key: int = 0
    comma: bool = False
    """Whether a comma follows the last member."""


@dataclass(slots=True)
class _Edits:
    text: str
    newline: str
    made: list[tuple[int, int, str]] = field(default_factory=list)


def set_values(text: str, values: Mapping[str, Any]) -> str:
    """``text`` with ``values`` in it: objects are merged, everything else is replaced.

    Raises UsageError if it is no JSON object.
    """
    if not text.strip():
        text = "{}\n"
    root, end = _read(text, _skip(text, text.startswith("\ufeff") * 1), 0)
    if _skip(text, end) != len(text) or root.members is None:
        raise _broken(text, end, "this is not one JSON object")
    edits = _Edits(text, "\r\n" if "\r\n" in text else "\n")
    _merge(edits, root, values, "")
    for start, end, new in sorted(edits.made, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _merge(edits: _Edits, node: _Node, values: Mapping[str, Any], indent: str) -> None:
    members = node.members or {}
    line = edits.text[: node.first_key].rpartition("\n")[2] if members else "-"
    inner = line if line and not line.strip() else indent + _UNIT
    added = []
    for key, value in values.items():
        old = members.get(key)
        if old is None:
            added.append(f"{edits.newline}{inner}{json.dumps(key)}: {_dump(edits, value, inner)}")
        elif old.members is not None and isinstance(value, Mapping):
            _merge(edits, old, value, inner)
        elif edits.text[old.start : old.end] != (new := _dump(edits, value, inner)):
            edits.made.append((old.start, old.end, new))
    if not added:
        return
    close = node.end - 1
    place = len(edits.text[:close].rstrip())  # behind a comment about the last member
    new, last = ",".join(added), max((member.end for member in members.values()), default=place)
    if members and not node.comma:
        new = new if last < place else f",{new}"
        edits.made += [(last, last, ",")] * (last < place)
    same_line = "\n" not in edits.text[place:close]
    edits.made.append((place, close if same_line else place, new + (edits.newline + indent) * same_line))


def _dump(edits: _Edits, value: Any, indent: str) -> str:
    lines = json.dumps(value, indent=_UNIT, ensure_ascii=False).splitlines()
    return f"{edits.newline}{indent}".join(lines)


def _read(text: str, at: int, depth: int) -> tuple[_Node, int]:
    node = _Node(at)
    first = text[at : at + 1]
    if depth > MAX_JSON_DEPTH:
        raise _broken(text, at, "it is nested too deeply")
    if first and first in "{[":
        node.end = _read_items(text, node, "}" if first == "{" else "]", depth)
    elif match := (_STRING if first == '"' else _SCALAR).match(text, at):
        node.end = match.end()
    else:
        raise _broken(text, at, "a value is expected there")
    return node, node.end


def _read_items(text: str, node: _Node, close: str, depth: int) -> int:
    members: dict[str, _Node] = {}
    at = _skip(text, node.start + 1)
    while text[at : at + 1] != close:
        key = ""
        if close == "}":
            match = _STRING.match(text, at)
            colon = _skip(text, match.end()) if match else at
            if match is None or text[colon : colon + 1] != ":":
                raise _broken(text, at, 'a "key": is expected there')
            node.first_key = node.first_key or at
            try:
                key = read_json(match[0])
            except ValueError:
                raise _broken(text, at, "this is no string") from None
            at = _skip(text, colon + 1)
        members[key], at = _read(text, at, depth + 1)
        at = _skip(text, at)
        node.comma = text[at : at + 1] == ","
        if node.comma:
            at = _skip(text, at + 1)
        elif text[at : at + 1] != close:
            raise _broken(text, at, f'a comma or "{close}" is expected there')
    node.members = members if close == "}" else None
    return at + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _broken(text: str, at: int, why: str) -> UsageError:
    return UsageError(f"line {text.count(chr(10), 0, at) + 1}: {why}.")
