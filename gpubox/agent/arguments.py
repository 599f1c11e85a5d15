"""The arguments a model wrote -> a dict, by a ladder of ever kinder readings. Pure.

Nothing is completed that a limit cut off: half a program must not run.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from typing import Any

from gpubox.agent.fenced_code import fenced_blocks

MEND_CHARACTERS = 8000
"""More is not mended: json_repair takes the square of the length over some texts (0.2 s here, at worst)."""


def read_arguments(
    raw: str, wanted: str = "", known: Collection[str] = (), *, truncated: bool = False
) -> tuple[dict[str, Any] | None, bool]:
    """``(arguments, repaired)``; ``(None, False)`` where no reading makes sense.

    ``wanted`` names the one argument that a bare program is meant for (``code``), if there is one; ``known`` are the
    names that may come out of a repair. ``truncated``: a limit cut the reply, so only what is whole by itself counts.
    """
    raw = raw.strip()
    if not raw:
        return {}, False
    try:
        values = json.loads(raw)
        if isinstance(values, dict):
            return values, False
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, str):  # JSON in a string, or the program itself in one
        inner, _ = read_arguments(values, wanted, known, truncated=truncated) if values != raw else (None, False)
        return (inner, True) if inner else (None, False)
    if values is not None:
        return None, False
    if truncated:
        return None, False
    return _repaired(raw, wanted, known)


def _repaired(raw: str, wanted: str, known: Collection[str]) -> tuple[dict[str, Any] | None, bool]:
    fenced = fenced_blocks(raw)
    if fenced and fenced[0].code.strip():
        inner = fenced[0].code.strip()
        if fenced[0].language in ("json", "") and inner.startswith("{"):
            return read_arguments(inner, wanted, known)[0], True
        if wanted and parses(inner):
            return {wanted: fenced[0].code}, True
    if wanted and not raw.startswith("{") and parses(raw):
        return {wanted: raw}, True
    if (start := raw.find("{")) < 0:
        return None, False
    try:
        values = json.loads(raw[start:], strict=False)  # line breaks inside strings
        if isinstance(values, dict):
            return values, True
    except (ValueError, RecursionError):
        pass
    values = _mended(raw[start:])
    if not isinstance(values, dict) or not values or (known and not set(values) <= set(known)):
        return None, False
    if wanted and not (isinstance(values.get(wanted), str) and parses(values[wanted])):
        return None, False  # a program that a repair broke is worse than none
    return values, True


def _mended(raw: str) -> Any:
    if len(raw) > MEND_CHARACTERS:
        return None
    from json_repair import loads

    try:
        return loads(raw, skip_json_loads=True)
    except (ValueError, RecursionError, TypeError, IndexError):
        return None


def parses(code: str) -> bool:
    """Whether it is Python with something in it."""
    try:
        return bool(ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
