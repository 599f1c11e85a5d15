"""TOML files of the owner, read against one declaration: dataclass fields made with ``toml_key``.

A mistake is one error that names the file, the table, the key and the nearest known key. ``json_schema`` turns the same
declaration into a JSON Schema for editors.
"""

from __future__ import annotations

import errno
import math
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from gpubox.errors import UsageError
from gpubox.storage import NotRegularFile, read_text

MAX_TOML_BYTES = 256 * 1024
"""Parsing takes a second for each megabyte, and no settings file is as large as this."""
MAX_TOML_DEPTH = 32
"""Lists and tables within each other, and parts of a dotted key: tomllib's time grows with their square."""
_TOKENS = (
    r"""\"{3}(?:[^\\]|\\.)*?(?:\"{3,5}|\Z)|'{3}.*?(?:'{3,5}|\Z)|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?"""
    r"|\#[^\n]*+|([][{}.,=\n])"
)
"""Strings and comments, and (in the group) what nests and what ends a key."""

KeyKind = Literal["text", "path", "integer", "number", "boolean", "any", "list", "map", "table"]
_TYPES: dict[KeyKind, tuple[tuple[type, ...], str, dict[str, Any]]] = {
    "text": ((str,), "a string", {"type": "string"}),
    "path": ((str,), "a string", {"type": "string"}),
    "integer": ((int,), "a whole number", {"type": "integer"}),
    "number": ((int, float), "a number", {"type": "number"}),
    "boolean": ((bool,), "true or false", {"type": "boolean"}),
    "any": ((object,), "", {}),
    "list": ((list,), "a list of strings", {"type": "array"}),
    "map": ((dict,), "a table", {"type": "object"}),
    "table": ((dict,), "a table", {}),
}
"""Kind -> (its Python types, what an error message calls it, its JSON Schema)."""


@dataclass(frozen=True, slots=True)
class TomlKey:
    """What one key of a TOML table may hold."""

    kind: KeyKind
    description: str = ""
    name: str = ""
    """In TOML; empty: the attribute's name with hyphens."""
    items: KeyKind = "any"
    """The kind of each value of a list or a map."""
    table: type | None = None
    """The dataclass that a table, or each table of a list or a map, becomes."""
    choices: Collection[str] = ()
    """The only texts, or the only names in a map, that are allowed."""
    above: float | None = None
    """Every allowed number is larger."""
    least: float | None = None
    """The smallest allowed number."""
    between: tuple[int, int] | None = None
    """The smallest and the largest allowed whole number."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """Additions to the JSON Schema."""


def toml_key(kind: KeyKind, description: str, default: Any = MISSING, **limits: Any) -> Any:
    """A dataclass field that is read from the TOML key of its name, with hyphens; required without a ``default``.

    ``default`` may be the type of an empty container. ``limits`` are the other fields of TomlKey.
    """
    metadata = {"toml": TomlKey(kind, description, **limits)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` is most likely a misspelling of."""
    import difflib  # only after a typo

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def parse_toml(text: str) -> dict[str, Any]:
    """The values in the text of a TOML file. ValueError: it is no TOML, or longer or deeper than any profile."""
    import tomllib  # most starts read no TOML before the first paint

    text = text.removeprefix("\ufeff").replace("\r\n", "\n")  # Windows editors begin a file with a BOM
    if len(text) > MAX_TOML_BYTES:
        raise ValueError(f"it is longer than {MAX_TOML_BYTES // 1024} KiB")
    flat = text.count("[") + text.count("{") <= MAX_TOML_DEPTH
    depth = parts = 0
    if not flat or max(line.count(".") for line in text.split("\n")) > MAX_TOML_DEPTH:
        for match in re.finditer(_TOKENS, text, re.S):
            if token := match[1]:
                depth += (token in "[{") - (token in "]}")
                parts = parts + 1 if token == "." else 0
                if max(depth, parts) > MAX_TOML_DEPTH:
                    raise ValueError("its lists, tables or keys are nested too deeply")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's own limit
        raise ValueError("a number is too long") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Parses one TOML file.

    Raises UsageError if it is absent, unreadable or not TOML; the message has the line and column.
    """
    text = read_toml_text(path)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None


def read_toml_text(path: Path) -> str:
    """The text of one TOML file. Raises UsageError if it is absent or unreadable."""
    try:
        return read_text(path, MAX_TOML_BYTES)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.", "Save it as UTF-8.") from None
    except NotRegularFile as error:
        hint = "gpubox reads only short TOML files." if error.errno == errno.EFBIG else ""
        raise UsageError(f"{path} cannot be used: {error.strerror}.", hint) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


@dataclass(frozen=True, slots=True)
class TomlTable:
    """One table of a TOML file."""

    path: Path
    name: str
    """Its dotted name in the file; empty for the top level."""
    values: Mapping[str, Any]

    def error(self, key: str, problem: str, hint: str = "") -> UsageError:
        """The error for a value that cannot be used; the caller raises it."""
        return UsageError(f"{self.path}: {f'[{self.name}] ' if self.name else ''}{key[:80]} {problem}.", hint)

    def read(self, kind: type) -> dict[str, Any]:
        """The constructor arguments for the dataclass ``kind``. Absent keys are left out: the class has the defaults.

        Raises UsageError for a wrong value, a missing key and an unknown key.
        """
        arguments: dict[str, Any] = {}
        for name, attribute, key, default in (keys := list(_keys_of(kind))):
            if name in self.values:
                arguments[attribute] = self._value(name, key, self.values[name])
            if default is MISSING and arguments.get(attribute, "") == "":
                raise self.error(name, "is missing", key.description)
        self._reject_unknown([name for name, *_ in keys])
        return arguments

    def _reject_unknown(self, known: Collection[str]) -> None:
        for key in self.values:
            if key not in known:
                near = closest_match(key, known)
                hint = f"Did you mean {near!r}?" if near else f"Known: {', '.join(sorted(known))}."
                raise self.error(key, "is not a known key", hint)

    def _value(self, name: str, key: TomlKey, value: Any) -> Any:
        types, noun, _ = _TYPES[key.kind]
        if key.kind == "list" and key.table:
            noun = f"written as [[{name}]]"
        fits: bool = isinstance(value, types) and not (isinstance(value, bool) and key.kind in ("integer", "number"))
        if not fits:
            raise self.error(name, f"must be {noun}, not {reprlib.repr(value)}")
        inner = TomlTable(self.path, f"{self.name}.{name}" if self.name else name, value)
        if key.kind == "list":
            if not all(isinstance(item, dict if key.table else str) for item in value):
                raise self.error(name, f"must be {noun}")
            item_key = TomlKey("table" if key.table else key.items, table=key.table, choices=key.choices)
            return tuple(self._value(name, item_key, item) for item in value)
        if key.kind == "map":
            item_key = TomlKey(key.items, table=key.table)
            items = {item: inner._value(item, item_key, each) for item, each in value.items()}
            if key.choices:
                inner._reject_unknown(key.choices)
            return items
        if key.kind == "table":
            assert key.table is not None
            return key.table(**inner.read(key.table))
        if key.kind == "path":
            try:
                return Path(value).expanduser()
            except RuntimeError:
                raise self.error(name, f"names a user that this machine does not have: {reprlib.repr(value)}") from None
        return self._scalar(name, key, value)

    def _scalar(self, name: str, key: TomlKey, value: Any) -> Any:
        if key.kind == "number":
            try:
                value = float(value)
            except OverflowError:
                value = math.inf
            if not math.isfinite(value):
                raise self.error(name, "must be a finite number")
        if key.choices and value not in key.choices:
            *others, last = (f'"{choice}"' for choice in key.choices)
            raise self.error(name, f"must be {', '.join(others)} or {last}, not {reprlib.repr(value)}")
        if key.above is not None and value <= key.above:
            raise self.error(name, f"must be more than {key.above:g}, not {reprlib.repr(value)}")
        if key.least is not None and value < key.least:
            raise self.error(name, f"must be {key.least:g} or more, not {reprlib.repr(value)}")
        if key.between and not key.between[0] <= value <= key.between[1]:
            raise self.error(name, f"must be {key.between[0]} to {key.between[1]}, not {reprlib.repr(value)}")
        return value


def _keys_of(kind: type) -> Iterator[tuple[str, str, TomlKey, Any]]:
    """Each key of a dataclass: its TOML name, its attribute, what it may hold, its default (MISSING: required)."""
    for item in fields(kind):
        if key := item.metadata.get("toml"):
            default = item.default if item.default_factory is MISSING else item.default_factory()
            yield key.name or item.name.replace("_", "-"), item.name, key, default


def given_values(instance: Any) -> dict[str, Any]:
    """TOML key -> value, for all values that are not the default."""
    keys = _keys_of(type(instance))
    return {name: value for name, attribute, _, default in keys if (value := getattr(instance, attribute)) != default}


def json_schema(kind: type) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a TOML table that becomes the dataclass ``kind``."""
    keys = list(_keys_of(kind))
    required = [name for name, _, _, default in keys if default is MISSING]
    return {
        "type": "object",
        "properties": {name: _key_schema(key, default) for name, _, key, default in keys},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _key_schema(key: TomlKey, default: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": key.description, **_TYPES[key.kind][2], **key.schema}
    inner = json_schema(key.table) if key.table else _TYPES[key.items][2]
    if key.kind == "list":
        schema["items"] = {**inner, "enum": list(key.choices)} if key.choices else inner
    elif key.kind == "table":
        schema |= inner
    elif key.kind == "map" and key.choices:
        schema |= {"properties": dict.fromkeys(key.choices, inner), "additionalProperties": False}
    elif key.kind == "map" and inner:
        schema["additionalProperties"] = inner
    elif key.choices:
        schema["enum"] = list(key.choices)
    if default != "" and isinstance(default, (bool, int, float, str)):
        schema["default"] = default
    if key.above is not None:
        schema["exclusiveMinimum"] = key.above
    if key.least is not None:
        schema["minimum"] = key.least
    if key.between:
        schema["minimum"], schema["maximum"] = key.between
    return schema
