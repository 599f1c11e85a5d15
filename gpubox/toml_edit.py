"""Changes single values of a TOML text, in whatever form they stand there. All other lines stay as they are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

import tomli_w

from gpubox.errors import UsageError
from gpubox.toml_table import parse_toml

KeyPath = tuple[str, ...]
"""Where a value stands: ``("port",)``, ``("flags", "ctx-size")``. The last name may have hyphens or underscores."""
_BOM = "\ufeff"
_FILE_COMMENT = re.compile(r"(?:#[^\n]*\n)+(?:[ \t]*\n)+")
"""The comment about the whole file: an empty line is below it."""
_LITERAL = re.compile(r"[^'\x00-\x1f\x7f]*")
"""What TOML takes literally between single quotes."""


def change_toml(text: str, changes: Mapping[KeyPath, Any], hint: str = "") -> str:
    """``text`` with some values changed; ``None`` removes a key. A key keeps its spelling and its comment.

    Raises UsageError with ``hint`` if the text is not TOML, or if it has no place for a value.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    bom = _BOM if text.startswith(_BOM) else ""
    body = text.removeprefix(_BOM)
    windows = "\r\n" in body and body.count("\r\n") == body.count("\n")
    if windows:
        body = body.replace("\r\n", "\n")
    try:
        expected = parse_toml(body)
        document = tomlkit.parse(_with_top_key(body, expected, changes))
        for path, value in changes.items():
            _set(document, path, value)
            _set(expected, path, value)
        after = tomlkit.dumps(document)
        right = _filled(parse_toml(after)) == _filled(expected) and _only_changes(body, after, changes)
    except (TOMLKitError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"The text cannot be changed: {error}.", hint) from None
    if not right:
        raise UsageError("The change would touch other lines.", hint)
    return bom + (after.replace("\n", "\r\n") if windows else after)


def _with_top_key(text: str, values: Mapping[str, Any], changes: Mapping[KeyPath, Any]) -> str:
    """Where only tables stand: with a line for a new key of the top, above the comment of the first table."""
    new = next((path[0] for path, value in changes.items() if len(path) == 1 and value is not None), None)
    if new is None or not any(map(_is_table, values.values())) or not all(map(_is_table, values.values())):
        return text
    at = comment.end() if (comment := _FILE_COMMENT.match(text)) else 0
    return f"{text[:at]}{new} = 0\n{text[at:]}"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def same_name(one: str, other: str) -> bool:
    """``ctx_size`` and ``ctx-size`` are one name."""
    return one.replace("_", "-") == other.replace("_", "-")


def _set(table: MutableMapping[str, Any], path: KeyPath, value: Any) -> None:
    for parent in path[:-1]:
        if parent not in table:
            if value is None:
                return
            table[parent] = {}
        table = table[parent]
    key = next((key for key in table if same_name(key, path[-1])), path[-1])
    if value is None:
        table.pop(key, None)
    else:
        _put(table, key, list(value) if isinstance(value, tuple) else value)


def _put(table: MutableMapping[str, Any], key: str, value: Any) -> None:
    """Sets a key. A new one goes below the last key of its table, above the empty lines and comments that follow."""
    if type(table) is not dict and key not in table:
        import tomlkit
        from tomlkit.container import Container
        from tomlkit.items import AbstractTable, AoT, InlineTable

        container: Any = table.value if isinstance(table, AbstractTable) else table
        if isinstance(container, Container) and not isinstance(table, InlineTable):
            names = [name for name, item in container.body if name and not isinstance(item, AbstractTable | AoT)]
            if names:
                container._insert_after(names[-1], key, tomlkit.item(value))
                return
    table[key] = value


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Without empty tables: a table of dotted keys is gone with its last key."""
    return {key: value for key, value in values.items() if value != {}}


def _only_changes(before: str, after: str, changes: Mapping[KeyPath, Any]) -> bool:
    """Whether every line that differs belongs to a changed key, or is empty: comments count, too."""
    names = {name.replace("_", "-") for path in changes for name in path}  # also of a table that stands in one line
    in_changed_value = False  # a value over several lines is replaced as a whole
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line[0] == " ":
            in_changed_value = False
        elif line[0] in "+-":
            text = line[2:].strip()
            in_changed_value |= not names.isdisjoint(re.split(r"[^\w-]+", text.replace("_", "-")))
            if text and not in_changed_value:
                return False
    return True


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
