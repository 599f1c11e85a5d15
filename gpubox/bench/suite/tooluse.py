"""4.1 and 4.2: JSON that is what was asked for. Pure."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

KEYS = {"id", "name", "email", "role", "active", "created_at"}
TOOLS = {"read_file": {"path"}, "ping_host": {"host"}, "write_file": {"path", "content"}}


def structured_points(text: str) -> dict[str, int]:
    """4.1, five items of one point. What stands around the array costs the first one only."""
    try:
        whole: Any = json.loads(text.strip())
    except (ValueError, RecursionError):
        whole = None
    found = whole if isinstance(whole, list) else _array(text)
    rows = [row for row in found or [] if isinstance(row, dict)]
    full = bool(rows) and len(rows) == len(found or [])
    return {
        "nothing but JSON": int(isinstance(whole, list)),
        "five objects": int(full and len(rows) == 5),
        "the keys": int(full and all(set(row) == KEYS for row in rows)),
        "the types": int(full and all(_typed(row) for row in rows)),
        "values": int(full and _values(rows)),
    }


def sequencing_points(text: str) -> dict[str, int]:
    """4.2, five items of one point. The first call alone is worth two: it is an array, of tools that there are."""
    found = _array(text)
    calls = [call for call in found or [] if isinstance(call, dict) and isinstance(call.get("tool"), str)]
    names = [call["tool"] for call in calls]
    known = bool(calls) and len(calls) == len(found or []) and all(name in TOOLS for name in names)
    complete = known and set(names) == set(TOOLS)
    steps = [list(TOOLS).index(name) for name in names] if known else []
    return {
        "JSON array": int(bool(calls)),
        "known tools": int(known),
        "order": int(complete and steps == sorted(steps)),
        "arguments": int(complete and all(_arguments(call) for call in calls)),
        "complete": int(complete and names.count("read_file") == names.count("write_file") == 1),
    }


def _array(text: str) -> list[Any] | None:
    """The first JSON array in ``text`` that can be read, wherever it stands; a single object counts as one of one."""
    decoder = json.JSONDecoder()
    for opening in ("[", "{"):
        for match in re.finditer(re.escape(opening), text):
            try:
                value, _ = decoder.raw_decode(text, match.start())
            except (ValueError, RecursionError):
                continue
            if isinstance(value, list) and value:
                return value
            if isinstance(value, dict):
                return [value]
    return None


def _typed(row: dict[str, Any]) -> bool:
    number = row.get("id")
    return (
        isinstance(number, int)
        and not isinstance(number, bool)
        and all(isinstance(row.get(key), str) for key in ("name", "email", "role", "created_at"))
        and row.get("role") in ("admin", "user", "guest")
        and isinstance(row.get("active"), bool)
    )


def _values(rows: list[dict[str, Any]]) -> bool:
    emails = [str(row.get("email")) for row in rows]
    ids = [row.get("id") for row in rows]
    return (
        all(re.fullmatch(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}", email) for email in emails)
        and len(set(emails)) == len(emails)
        and all(isinstance(one, int) and 1 <= one <= 5 for one in ids)
        and len(set(ids)) == len(ids)
        and all(_is_date(str(row.get("created_at"))) for row in rows)
    )


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True


def _arguments(call: dict[str, Any]) -> bool:
    arguments = call.get("args")
    return isinstance(arguments, dict) and set(arguments) == TOOLS[call["tool"]]
