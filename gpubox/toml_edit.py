"""Changes single values of a TOML text, in whatever form they stand there. All other characters stay as they are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from gpubox.errors import UsageError

KeyPath = tuple[str, ...]
"""Where a value stands: ``("port",)``, ``("flags", "ctx-size")``. The last name may have hyphens or underscores."""
_BOM = "\ufeff"
_STRING = r'"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\''
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_PART = re.compile(rf"(?:{_STRING}|[\w-]+)", re.S)
_INDENT = re.compile(r"[ \t]*")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_TOKEN = re.compile(rf"(?:{_STRING}|#[^\n]*|[\[\]{{}},\n]|[^\"'#\[\]{{}},\n]+)", re.S)
_FILE_COMMENT = re.compile(r"(?:#[^\n]*\n)+(?:[ \t]*\r?\n)+")
"""The comment about the whole file: an empty line is below it."""

_LITERAL = re.compile(r"[^'\x00-\x1f\x7f]*")
"""What TOML takes literally between single quotes."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One ``key = value``. Numbers are places in the text."""

    path: KeyPath
    start: int
    """Of its line; in an inline table, of its key."""
    table: int
    """How many names of the path stand in the header above it."""
    value: int
    end: int
    """Of its value."""
    inline: bool


def change_toml(text: str, changes: Mapping[KeyPath, Any], hint: str = "") -> str:
    """``text`` with some values changed; ``None`` removes a key. A key keeps its spelling and its comment.

    Raises UsageError with ``hint`` if the text is not TOML, or if it has no place for a value.
    """
    bom = _BOM if text.startswith(_BOM) else ""
    after = text.removeprefix(_BOM)
    try:
        expected = toml_values(after)
        for path, value in changes.items():
            _set(expected, path, value)
            after = _change(after, path, value)
        right = _filled(toml_values(after)) == _filled(expected)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"The text cannot be changed: {error}.", hint) from None
    if not right:
        raise UsageError("The change would touch other lines.", hint)
    return bom + after


def toml_values(text: str) -> dict[str, Any]:
    """What a TOML text says, with or without a byte order mark. Raises ValueError, RecursionError."""
    return tomllib.loads(text.removeprefix(_BOM).replace("\r\n", "\n"))


def same_name(one: str, other: str) -> bool:
    """``ctx_size`` and ``ctx-size`` are one name."""
    return one.replace("_", "-") == other.replace("_", "-")


def _set(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    for parent in path[:-1]:
        values = values.setdefault(parent, {})
    key = next((key for key in values if same_name(key, path[-1])), path[-1])
    if value is None:
        values.pop(key, None)
    else:
        values[key] = list(value) if isinstance(value, tuple) else value


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Without empty tables: a table of dotted keys is gone with its last key."""
    return {key: value for key, value in values.items() if value != {}}


def _change(text: str, path: KeyPath, value: Any) -> str:
    entries, headers = _scan(text)
    *parents, name = path
    table = [entry for entry in entries if list(entry.path[:-1]) == parents]
    entry = next((entry for entry in table if same_name(entry.path[-1], name)), None)
    if value is None:
        return _without(text, entry, table) if entry else text
    new = f"{toml_key(name)} = {toml_value(value)}"
    if entry:
        return text[: entry.value] + toml_value(value) + text[entry.end :]
    if table and table[-1].inline:
        return f"{text[: table[-1].end]}, {new}{text[table[-1].end :]}"
    depth = len(parents)
    inner = [entry for entry in entries if list(entry.path[:depth]) == parents and len(entry.path) > depth]
    dotted = [entry for entry in inner if entry.table <= depth and not entry.inline]
    if last := next(reversed(table or dotted), None):
        written = ".".join(map(toml_key, path[last.table : -1]))  # flags.threads = 8
        indent = text[last.start : _skip(_INDENT, text, last.start)]
        return _with_line(text, last.end, f"{indent}{written}{'.' if written else ''}{new}")
    if not parents:  # below a [table] it would belong to that
        at = comment.end() if (comment := _FILE_COMMENT.match(text)) else 0
        return f"{text[:at]}{new}{_line_end(text, at)}{text[at:]}"
    empty = next((entry for entry in entries if list(entry.path) == parents), None)
    if empty and text[empty.value] == "{":
        return f"{text[: empty.value]}{{ {new} }}{text[empty.end :]}"
    if tuple(parents) in headers:
        return _with_line(text, headers[tuple(parents)], new)
    header = ".".join(map(toml_key, parents))
    text = _with_line(text, len(text), "") if text and not text.endswith("\n") else text
    newline = _line_end(text, len(text))
    return f"{text}{newline if text.strip() else ''}[{header}]{newline}{new}{newline}"


def _without(text: str, entry: _Entry, table: list[_Entry]) -> str:
    if not entry.inline:
        return text[: entry.start] + text[_next_line(text, entry.end) :]
    at = table.index(entry)
    if at + 1 < len(table):
        return text[: entry.start] + text[table[at + 1].start :]
    return text[: table[at - 1].end if at else entry.start] + text[entry.end :]


def _with_line(text: str, at: int, line: str) -> str:
    """``text`` with ``line`` below the line of the place ``at``."""
    following = _next_line(text, at)
    newline = _line_end(text, following)
    if following == len(text) and not text.endswith("\n"):
        return f"{text}{newline}{line}"
    return f"{text[:following]}{line}{newline}{text[following:]}"


def _next_line(text: str, at: int) -> int:
    return text.find("\n", at) + 1 or len(text)


def _line_end(text: str, at: int) -> str:
    """The line end of the line above ``at``; of the first line if there is none."""
    end = text.rfind("\n", 0, at)
    end = text.find("\n") if end < 0 else end
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _scan(text: str) -> tuple[list[_Entry], dict[KeyPath, int]]:
    """All keys with their values, and the place behind each table's header. The text is valid TOML."""
    entries: list[_Entry] = []
    headers: dict[KeyPath, int] = {}
    table: KeyPath = ()
    at = 0
    while (at := _skip(_BLANK, text, at)) < len(text):
        if text[at] != "[":
            at = _scan_pair(text, at, table, entries, inline=False)
            continue
        array = text.startswith("[[", at)
        names, at = _key(text, _skip(_BLANK, text, at + 1 + array))
        at = text.index("]", at) + 1 + array
        table = (*names, "[]") if array else names  # no path leads to an item of an array
        headers[table] = at
    return entries, headers


def _scan_pair(text: str, start: int, table: KeyPath, entries: list[_Entry], *, inline: bool) -> int:
    """Adds the pair at ``start``, and those inside it. Returns the place behind its value."""
    names, at = _key(text, start)
    value = _skip(_BLANK, text, text.index("=", at) + 1)
    end = _value_end(text, value, inline=inline)
    path = (*table, *names)
    begin = start if inline else text.rfind("\n", 0, start) + 1
    entries.append(_Entry(path, begin, len(table), value, end, inline))
    if text[value] == "{":
        at = _skip(_BLANK, text, value + 1)
        while text[at] != "}":
            at = _skip(_BLANK, text, _scan_pair(text, at, path, entries, inline=True))
            at = _skip(_BLANK, text, at + 1) if text[at] == "," else at
    return end


def _key(text: str, at: int) -> tuple[KeyPath, int]:
    """The parts of a key, and where it ends."""
    names: list[str] = []
    while True:
        begin, at = at, _skip(_PART, text, at)
        part = text[begin:at]
        names.append(next(iter(tomllib.loads(f"{part} = 0"))))
        if not (dot := _DOT.match(text, at)):
            return tuple(names), at
        at = dot.end()


def _value_end(text: str, at: int, *, inline: bool) -> int:
    depth, end = 0, at
    while token := _TOKEN.match(text, at):
        first = token[0][0]
        if depth == 0 and (first in "\n#" or (inline and first in ",}")):
            break
        depth += (first in "[{") - (first in "]}")
        at = token.end()
        end = token.start() + len(token[0].rstrip()) or end
    return end


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    if match is None:
        raise ValueError(f"it cannot be read at character {at}")
    return match.end()


def toml_key(key: str) -> str:
    """A name as a key, in quotes where it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)


def toml_value(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(k)} = {toml_value(v)}' for k, v in value.items())} }}" if value else "{}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # Windows paths, patterns and JSON read better between single quotes.
        return f"'{value}'" if ("\\" in value or '"' in value) and _LITERAL.fullmatch(value) else _quoted(value)
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _quoted(text: str) -> str:
    return tomli_w.dumps({"k": text}).removeprefix("k = ").rstrip("\n")
