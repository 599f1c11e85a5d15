"""4.1 and 4.2: JSON that is what the task asks for. Pure."""

from __future__ import annotations

import json
import re
from datetime import datetime
from itertools import islice
from typing import Any

from gpubox.storage import read_json

KEYS = {"id", "name", "email", "role", "active", "created_at"}
MAX_BRACKETS = 300
"""How many brackets are tried as the beginning of an array."""
MIN_KEYS, MIN_ROWS = 4, 3
"""An array with fewer of the right keys, or with them in fewer objects, is not an array of users."""
_INVENTED = re.compile(
    r"\d+(\.\d+){3}|(?!.*(?:host|example|placeholder|line))[\w-]+(\.[\w-]+)*\.[a-z]{2,}|.*\.txt", re.IGNORECASE
)
"""An address, a domain or a file, where only a placeholder can stand."""
TOOLS = {"read_file": {"path"}, "ping_host": {"host"}, "write_file": {"path", "content"}}


def structured_points(text: str) -> dict[str, int]:
    """4.1, five criteria of one point. Text around the array costs only the first; an array of other things gets 0."""
    try:
        whole: Any = read_json(text.strip())
    except ValueError:
        whole = None
    array = (whole if isinstance(whole, list) else _first_array(text)) or []
    rows = [row for row in array if isinstance(row, dict)]
    users = len(rows) == len(array) and sum(len(KEYS & set(row)) >= MIN_KEYS for row in rows) >= MIN_ROWS
    return {
        "nothing but JSON": int(users and isinstance(whole, list)),
        "five objects": int(users and len(rows) == 5),
        "the keys": int(users and all(set(row) == KEYS for row in rows)),
        "the types": int(users and all(_has_types(row) for row in rows)),
        "values": int(users and _has_values(rows)),
    }


def sequencing_points(text: str) -> dict[str, int]:
    """4.2, five criteria of one point.

    A plan for something else (another file, another order, an invented host) gets one point at most.
    """
    array = _first_array(text) or []
    calls = [call for call in array if isinstance(call, dict) and isinstance(call.get("tool"), str)]
    names = [call["tool"] for call in calls]
    known = bool(calls) and len(calls) == len(array) and all(name in TOOLS for name in names)
    steps = [list(TOOLS).index(name) for name in names] if known else []
    in_order = known and steps == sorted(steps) and names[0] == "read_file"
    right = in_order and all(_is_for_task(call) for call in calls)
    complete = right and set(names) == set(TOOLS)
    return {
        "JSON array": int(bool(calls)),
        "known tools": int(right),
        "order": int(complete),
        "arguments": int(complete and all(set(call["args"]) == TOOLS[call["tool"]] for call in calls)),
        "complete": int(complete and names.count("read_file") == names.count("write_file") == 1),
    }


def _is_for_task(call: dict[str, Any]) -> bool:
    """Whether a call uses the task's file, and a host that may be in hosts.txt: a placeholder."""
    arguments = call.get("args")
    if not isinstance(arguments, dict):
        return False
    values = {name: str(value).strip() for name, value in arguments.items()}
    if call["tool"] == "ping_host":
        return all(value and not _INVENTED.fullmatch(value) for value in values.values())
    file = "hosts.txt" if call["tool"] == "read_file" else "report.txt"
    paths = [value for name, value in values.items() if name != "content"]
    return all(path.removeprefix("./") == file for path in paths) and values.get("content", "x") != ""


def _first_array(text: str) -> list[Any] | None:
    """The first JSON array in the text that parses; else the first object, as an array of one."""
    decoder = json.JSONDecoder()
    for opening in ("[", "{"):
        for match in islice(re.finditer(re.escape(opening), text), MAX_BRACKETS):
            try:
                value, _ = decoder.raw_decode(text, match.start())
            except (ValueError, RecursionError):
                continue
            if isinstance(value, list) and value:
                return value
            if isinstance(value, dict):
                return [value]
    return None


def _has_types(row: dict[str, Any]) -> bool:
    number = row.get("id")
    return (
        isinstance(number, int)
        and not isinstance(number, bool)
        and all(isinstance(row.get(key), str) for key in ("name", "email", "role", "created_at"))
        and row.get("role") in ("admin", "user", "guest")
        and isinstance(row.get("active"), bool)
    )


def _has_values(rows: list[dict[str, Any]]) -> bool:
    emails = [str(row.get("email")) for row in rows]
    ids = [row.get("id") for row in rows]
    return (
        all(re.fullmatch(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}", email) for email in emails)
        and len(set(emails)) == len(emails)
        and all(isinstance(number, int) and 1 <= number <= 5 for number in ids)
        and len(set(ids)) == len(ids)
        and all(_is_date(str(row.get("created_at"))) for row in rows)
    )


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True
