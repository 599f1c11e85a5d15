"""Grades what is checked without running it: the line ``ANSWER:`` of 3.1 to 3.3, and the JSON of 4.1 and 4.2. Pure.

Each grader gives points by criterion; the task says how many there are at most.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from gpubox.bench.kinds.suite.tasks import ARCHITECTURE_ANSWER, BAYES_ANSWER, DEBUG_LOG_ANSWER, STATEMENTS_ANSWER
from gpubox.storage import read_json

_ANSWER = re.compile(
    r"(?:^[^a-z0-9\n]*(?:final |my )?answer|(?<![a-z])(?-i:ANSWER))[*_`\"}\s]{0,8}[:=]", re.IGNORECASE | re.MULTILINE
)
MAX_ANSWER_CHARACTERS = 4000
MAX_BRACKETS = 300
"""How many brackets are tried as the beginning of JSON."""


def final_answer(text: str) -> str:
    """What stands behind the last ``ANSWER:``; empty if there is none."""
    matches = list(_ANSWER.finditer(text))
    return text[matches[-1].end() :][:MAX_ANSWER_CHARACTERS].strip(" \t\r\n*_`") if matches else ""


def debug_log_points(text: str) -> dict[str, int]:
    """3.1, ten points: each key of the answer is right or not."""
    values = _first_json(final_answer(text), "{")
    values = values if isinstance(values, dict) else {}
    return {key: points * (_letters(values.get(key)) == wanted) for key, (points, wanted) in DEBUG_LOG_ANSWER.items()}


def _letters(value: Any) -> str:
    """``BFG`` of ["b", "F: locks", "G"] and of "B, F, G"; ``H`` of "H: all connections"."""
    single = isinstance(value, str) and re.fullmatch(r"\W*(?:[A-Za-z]|\d)(?:\W+(?:[A-Za-z]|\d))*\W*", value)
    items = re.findall(r"\w", value) if single else value if isinstance(value, list) else [value]
    first = (re.match(r"\W*([A-Za-z]|\d+)(?!\w)", str(item)) for item in items)
    return "".join(sorted(match[1].upper() if match else "?" for match in first))


def architecture_points(text: str) -> dict[str, int]:
    """3.2, ten points: two for each calculated value, and the right statements minus the wrong ones, at most four."""
    values = _first_json(final_answer(text), "{")
    values = values if isinstance(values, dict) else {}
    points = {key: 2 * (str(values.get(key)).strip() == wanted) for key, wanted in ARCHITECTURE_ANSWER.items()}
    own = values.get("statements")
    own = list(own.values()) if isinstance(own, dict) else own if isinstance(own, list) else []
    named = [re.findall(r"[a-z]+", str(value).lower()) for value in own]
    right = sum(words[-1:] == [wanted] for words, wanted in zip(named, STATEMENTS_ANSWER, strict=False))
    complete = len(named) == len(STATEMENTS_ANSWER)
    return {**points, "statements": max(0, right - len(STATEMENTS_ANSWER) // 2) if complete else 0}


# --- 3.3: a probability, however it is written ---

_VALUE = r"(?:\d+(?:[.,]\d+)?|[.,]\d+)"
_EXPRESSION = re.compile(rf"(?<![\w.,])({_VALUE})(?:\s*/\s*({_VALUE}))?\s*(%?)")
_WORDS = {"five": "5", "seventeen": "17", "seventeenths": "17ths", "per cent": "%", "percent": "%", "pct": "%"}
TOLERANCE = 0.005


def bayes_points(text: str) -> dict[str, int]:
    """3.3, one point: every probability in the answer's line is 5/17, to TOLERANCE."""
    line = next((line for line in final_answer(text).splitlines() if any(map(str.isalnum, line))), "")
    values = probabilities(line)
    right = bool(values) and all(abs(value - BAYES_ANSWER) <= TOLERANCE for value in values)
    return {"probability": int(right and not re.search(r"\bnot\b|n't\b|\bwrong\b", line))}


def probabilities(line: str) -> list[float]:
    """Every probability in a line: fractions, decimals (point or comma), percentages, powers of ten, LaTeX, words.

    What is still being calculated (``0.1 × 0.05 / 0.017 =``) is none.
    """
    text = re.sub(r"\\[dtc]?frac\s*\{?\s*(\d[\d.,]*?)\s*\}?\s*\{?\s*(\d[\d.,]*)\s*\}?", r" \1/\2 ", line.lower())
    text = re.sub(r"\\(?:times|cdot)|(?<=\d)\s*[*·]\s*(?=[\d.])", "×", text).replace("\\approx", "≈")
    text = re.sub(r"\\[a-z]+|[\\{}$*`,;!](?!\d)|<[^>]*>|\bp\s*\([^()]*\)", " ", text)
    for word, digits in _WORDS.items():
        text = re.sub(rf"\b{word}\b", digits, text)
    text = text.translate(str.maketrans("⁄∕÷⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉٪％", "///01234567890123456789%%"))
    text = re.sub(rf"({_VALUE})[ -](?:(?:chances? )?(?:in|out of|of|over) )(?:every |the )?({_VALUE})", r"\1/\2", text)
    text = re.sub(rf"({_VALUE})[ -]({_VALUE})ths\b", r"\1/\2", text)
    text = re.sub(rf"({_VALUE})\s*×\s*10\s*\^?\s*\(?\s*[-−–⁻]\s*(\d)\)?", r"\1e-\2", text)
    text = re.sub(rf"({_VALUE})e-0?(\d)", lambda power: f"{_number(power[1]) / 10 ** int(power[2]):.9f}", text)
    values: list[float] = []
    for part in re.split(r"[=≈≃~→]", text):
        for top, bottom, percent in _EXPRESSION.findall(part) if not re.search(r"[×+]", part) else []:
            value = _number(top) / (_number(bottom) or 1.0) if bottom else _number(top)
            values.append(value / 100 if percent or 1 < value <= 100 else value)
    return values


def _number(text: str) -> float:
    return float(text.replace(",", ".")) if len(text) < 40 else 0.0


# --- 4.1 and 4.2: JSON ---

KEYS = {"id", "name", "email", "role", "active", "created_at"}
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
    array = whole if isinstance(whole, list) else _first_array(text)
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
    array = _first_array(text)
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


def _first_array(text: str) -> list[Any]:
    """The first JSON array in the text that is not empty; else the first object, as an array of one."""
    array = _first_json(text, "[")
    return array if isinstance(array, list) else [array] if (array := _first_json(text, "{")) else []


def _first_json(text: str, opening: str) -> Any:
    """The first JSON value in the text that begins with ``opening`` and is not empty."""
    for match in islice(re.finditer(re.escape(opening), text), MAX_BRACKETS):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        if value:
            return value
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


GRADERS: Mapping[str, tuple[Callable[[str], dict[str, int]], int]] = {
    "3.1": (debug_log_points, 10),
    "3.2": (architecture_points, 10),
    "3.3": (bayes_points, 1),
    "4.1": (structured_points, 5),
    "4.2": (sequencing_points, 5),
}
"""Task -> its grader, and the most points that it gives."""
