"""Reads the arguments of a tool call, which a model may have malformed. Pure.

Arguments that a token limit cut off are not completed: half a program must not run.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from typing import Any

from gpubox.agent.code_answer import fenced_blocks
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
    if code_argument and not (isinstance(values.get(code_argument), str) and _is_python(values[code_argument])):
        return None, False  # the repair broke the program
    return values, True


def load_json(text: str) -> Any:
    """The JSON value in ``text``, which may have line breaks inside strings; ``None`` if it is none."""
    try:
        return read_json(text, strict=False)
    except ValueError:
        return None


def _repair_json(raw: str) -> Any:
    if len(raw) > MAX_REPAIR_CHARACTERS:
        return None
    from json_repair import loads

    try:
        return read_json(json.dumps(loads(raw, skip_json_loads=True)))
    except (ValueError, RecursionError, TypeError, IndexError):
        return None


def _is_python(code: str) -> bool:
    try:
        return bool(ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
