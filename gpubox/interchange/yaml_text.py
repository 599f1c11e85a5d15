"""YAML as plain texts: no types, no tags, and bounded aliases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpubox.errors import UsageError
from gpubox.interchange.import_notes import is_secret, omitted

YamlValue = str | None | list["YamlValue"] | dict[str, "YamlValue"]
_MAX_NODES = 50_000
_NULLS = {"", "~", "null", "Null", "NULL"}


def read_yaml(text: str) -> list[YamlValue]:
    """Every document of ``text``. Scalars are texts as typed (``on``, ``8080:80``, ``0644``); ``null`` is ``None``.

    Raises UsageError if it is not valid YAML, or if its aliases make it larger than any launch file.
    """
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise UsageError(f"This is not valid YAML{where}: {problem}.", "Check that the file is complete.") from None
    except ValueError as error:
        raise UsageError(f"This is not valid YAML: {error}.", "Check that the file is complete.") from None
    reader = _Reader()
    return [reader.value(node) for node in nodes if node is not None]


def mapping_of(value: YamlValue) -> dict[str, YamlValue]:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def texts_of(value: YamlValue) -> list[str]:
    """The texts of a list; a single text becomes a list of one."""
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def leaf_texts(value: YamlValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf as (path, text); secrets are ``***``."""
    if isinstance(value, Mapping):
        if not value:
            yield path, "{}"
        name = value.get("name")
        hidden = {"value"} if isinstance(name, str) and is_secret(name) else set()  # {name: X, value: Y}
        for key, inner in value.items():
            inner_path = f"{path}.{key}" if path else key
            if key in hidden or (is_secret(key) and isinstance(inner, str)):
                yield inner_path, "***"
            else:
                yield from leaf_texts(inner, inner_path)
    elif isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            yield path, ", ".join(str(item) for item in value) or "[]"
            return
        for at, inner in enumerate(value):
            yield from leaf_texts(inner, f"{path}[{at}]")
    else:
        yield path, value or ""


def omitted_leaves(value: YamlValue, reason: str = "", *, path: str = "", prefix: str = "") -> list[str]:
    """A note for each leaf of ``value``, which no profile can hold. ``path`` is where ``value`` stands."""
    leaves = leaf_texts(value, path)
    return [omitted(f"{prefix}{place} {text}", reason) for place, text in leaves if place or text not in ("", "{}")]


class _Reader:
    def __init__(self) -> None:
        self._left = _MAX_NODES
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> YamlValue:
        self._left -= 1
        if self._left < 0 or id(node) in self._open:
            raise UsageError(
                "This YAML is too large for a launch file; its aliases may be the reason.", "Paste the command line."
            )
        if isinstance(node, yaml.ScalarNode):
            return None if node.style is None and node.value in _NULLS else str(node.value)
        self._open.add(id(node))
        value: YamlValue
        if isinstance(node, yaml.SequenceNode):
            value = [self.value(item) for item in node.value]
        else:
            value = self._mapping(node.value)
        self._open.discard(id(node))
        return value

    def _mapping(self, pairs: list[tuple[yaml.Node, yaml.Node]]) -> dict[str, YamlValue]:
        merged: dict[str, YamlValue] = {}
        own: dict[str, YamlValue] = {}
        for key_node, value_node in pairs:
            key: Any = self.value(key_node)
            value = self.value(value_node)
            if key == "<<":
                for other in value if isinstance(value, list) else [value]:
                    merged = {**mapping_of(other), **merged}
            else:
                own[key if isinstance(key, str) else str(key or "null")[:100]] = value
        return {**merged, **own}
