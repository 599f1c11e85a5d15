"""4.1 and 4.2: JSON that is what was asked for. Pure."""

from __future__ import annotations

import json
import re
from datetime import datetime
from itertools import islice
from typing import Any

KEYS = {"id", "name", "email", "role", "active", "created_at"}
MOST_TRIED = 300
"""Brackets at which an array may begin."""
MOST_KEYS, FEWEST_ROWS = 4, 3
"""What an array must have of the right keys, and in how many objects, to be one of users at all."""
_MADE_UP = re.compile(
    r"\d+(\.\d+){3}|(?!.*(?:host|example|placeholder|line))[\w-]+(\.[\w-]+)*\.[a-z]{2,}|.*\.txt", re.I
)
"""An address, a domain of somebody's, or a file."""
TOOLS = {"read_file": {"path"}, "ping_host": {"host"}, "write_file": {"path", "content"}}


def structured_points(text: str) -> dict[str, int]:
    """4.1, five items of one point. What stands around the array costs the first one only; an array of something else
    is worth nothing."""
    try:
        whole: Any = json.loads(text.strip())
    except (ValueError, RecursionError):
        whole = None
    found = whole if isinstance(whole, list) else _array(text)
    rows = [row for row in found or [] if isinstance(row, dict)]
    full = len(rows) == len(found or []) and sum(len(KEYS & set(row)) >= MOST_KEYS for row in rows) >= FEWEST_ROWS
    return {
        "nothing but JSON": int(full and isinstance(whole, list)),
        "five objects": int(full and len(rows) == 5),
        "the keys": int(full and all(set(row) == KEYS for row in rows)),
        "the types": int(full and all(_typed(row) for row in rows)),
        "values": int(full and _values(rows)),
    }


def sequencing_points(text: str) -> dict[str, int]:
    """4.2, five items of one point. The first call alone is worth two: it is an array, of tools that there are.

    A plan for something else (another file, another order, a host that somebody made up) has one at most.
    """
    found = _array(text)
    calls = [call for call in found or [] if isinstance(call, dict) and isinstance(call.get("tool"), str)]
    names = [call["tool"] for call in calls]
    known = bool(calls) and len(calls) == len(found or []) and all(name in TOOLS for name in names)
    complete = known and set(names) == set(TOOLS)
    steps = [list(TOOLS).index(name) for name in names] if known else []
    ordered = known and steps == sorted(steps) and names[0] == "read_file"
    asked = ordered and all(_asked_for(call) for call in calls)
    return {
        "JSON array": int(bool(calls)),
        "known tools": int(asked),
        "order": int(complete and asked),
        "arguments": int(complete and asked and all(_arguments(call) for call in calls)),
        "complete": int(complete and asked and names.count("read_file") == names.count("write_file") == 1),
    }


def _asked_for(call: dict[str, Any]) -> bool:
    """Whether a call's file is the task's, and its host one that may stand in hosts.txt: a placeholder."""
    given = call.get("args")
    if not isinstance(given, dict):
        return False
    values = {name: str(value).strip() for name, value in given.items()}
    if call["tool"] == "ping_host":
        return all(bool(value) and not _MADE_UP.fullmatch(value) for value in values.values())
    wanted = "hosts.txt" if call["tool"] == "read_file" else "report.txt"
    others = [value for name, value in values.items() if name != "content"]
    return all(value.removeprefix("./") == wanted for value in others) and values.get("content", "x") != ""


def _array(text: str) -> list[Any] | None:
    """The first JSON array in ``text`` that can be read, wherever it stands; a single object counts as one of one."""
    decoder = json.JSONDecoder()
    for opening in ("[", "{"):
        for match in islice(re.finditer(re.escape(opening), text), MOST_TRIED):
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
