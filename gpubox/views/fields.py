"""A value as JSON, by the names of its fields. msgspec does it, too, but its import costs half of ``gpubox status``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from enum import Enum
from pathlib import PurePath
from typing import Any


def json_fields(value: Any, *properties: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass or msgspec Struct for JSON, and its ``properties``.

    Unknown is null: None, a number that is not finite, and an empty text.
    """
    names = [*_field_names(value), *properties]
    return {name: json_value(getattr(value, name)) for name in names if name not in without}


def json_value(value: Any) -> Any:
    """Any value for JSON: dataclasses as objects, sequences as lists, enums by their value, paths as text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value or None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if isinstance(item, str) else json_value(item) for item in value]
    if isinstance(value, Set):
        return sorted(json_value(item) for item in value)
    if isinstance(value, PurePath):
        return str(value)
    return json_fields(value)


def _field_names(value: Any) -> tuple[str, ...]:
    kind = type(value)
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "__struct_fields__", None)
    if names is None:
        raise TypeError(f"{kind.__name__} has no fields")
    return tuple(names)
