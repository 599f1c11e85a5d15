"""Runs inside the sandbox: drives a todo app as a person would, eight checks. Stands alone; its text is sent there.

The app comes on stdin with the mark that the verdict is told under. Every command is a list of arguments: the
article's harness split ``add Buy milk`` into three, and failed the apps that were right.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys

MYPY = False
if MYPY:
    from typing import Any

VERBS = {
    "add": ("add", "new", "create"),
    "list": ("list", "ls", "show", "view"),
    "done": ("done", "complete", "finish", "toggle", "mark"),
    "delete": ("delete", "remove", "rm", "del"),
    "edit": ("edit", "update", "change", "rename", "modify"),
}
SECONDS = 20


def run(*arguments: str) -> tuple[int, str]:
    """The app with these arguments: exit code (-1: it did not end) and what it printed."""
    env = {**os.environ, "TODO_DB": os.path.abspath("todos.db"), "COLUMNS": "200"}  # noqa: PTH100
    try:
        done = subprocess.run(
            [sys.executable or "python3", "todo.py", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, env=env,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def verbs(said: str) -> dict[str, str]:
    """The app's own names of the five commands, as its help has them."""
    words = set(re.findall(r"[a-z]+", said.lower()))
    return {verb: next((name for name in names if name in words), names[0]) for verb, names in VERBS.items()}


def number_of(text: str, listing: str, default: str) -> str:
    """The id that the listing shows beside ``text``."""
    line = next((line for line in listing.splitlines() if text in line), "")
    found = re.search(r"\d+", line.replace(text, ""))
    return found[0] if found else default


def checks() -> dict[str, bool]:
    """All eight. An app that cannot keep and show a todo has none: help and refusals are all that a stub does."""
    code, said = run("--help")
    names = verbs(said)
    found = {"help": code == 0 and bool(said.strip())}
    first_text, second_text = (f"{word} {secrets.token_hex(3)}" for word in ("Buy milk", "Call mum"))
    added, _ = run(names["add"], first_text)
    _, listed = run(names["list"])
    found["add"] = added == 0
    found["list"] = first_text in listed
    if not (found["add"] and found["list"]):
        return {}
    run(names["add"], second_text)
    _, both = run(names["list"])
    found["keeps"] = first_text in both and second_text in both
    first, second = number_of(first_text, both, "1"), number_of(second_text, both, "2")
    code, _ = run(names["edit"], first, "Buy oat milk")
    _, edited = run(names["list"])
    found["edit"] = code == 0 and "Buy oat milk" in edited and first_text not in edited and second_text in edited
    code, _ = run(names["done"], first)
    _, after = run(names["list"])
    found["done"] = code == 0 and found["keeps"] and after != edited and second_text in after
    code, _ = run(names["delete"], second)
    _, left = run(names["list"])
    found["delete"] = code == 0 and second_text in both and second_text not in left
    code, said = run(names["delete"], "9999")
    found["unknown id"] = "Traceback" not in said and (code not in (0, -1) or bool(said.strip()))
    return found


def main() -> None:
    """Reads the app, checks it, tells."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the app cannot read the mark
    sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # noqa: PTH109 - the app writes there
    values: dict[str, Any] = json.loads(sys.stdin.read())
    with open("todo.py", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(values["code"])
    os.write(1, (values["mark"] + json.dumps(checks()) + "\n").encode())
