"""Runs inside the sandbox: drives a todo app as a person would, seven checks. Stands alone; its text is sent there.

The app comes on stdin with the mark that the verdict is told under. Every command is a list of arguments: the
article's harness split ``add Buy milk`` into three, and failed the apps that were right.
"""

from __future__ import annotations

import json
import os
import re
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
    """The app's own names of the four commands, as its help has them."""
    words = set(re.findall(r"[a-z]+", said.lower()))
    return {verb: next((name for name in names if name in words), names[0]) for verb, names in VERBS.items()}


def number_of(text: str, listing: str, default: str) -> str:
    """The id that the listing shows beside ``text``."""
    line = next((line for line in listing.splitlines() if text in line), "")
    found = re.search(r"\d+", line.replace(text, ""))
    return found[0] if found else default


def checks() -> dict[str, bool]:
    """All seven."""
    code, said = run("--help")
    names = verbs(said)
    found = {"help": code == 0 and bool(said.strip())}
    added, _ = run(names["add"], "Buy milk")
    _, listed = run(names["list"])
    found["add"] = added == 0
    found["list"] = "Buy milk" in listed
    run(names["add"], "Call mum")
    _, both = run(names["list"])
    found["keeps"] = "Buy milk" in both and "Call mum" in both
    first, second = number_of("Buy milk", both, "1"), number_of("Call mum", both, "2")
    code, _ = run(names["done"], first)
    _, after = run(names["list"])
    found["done"] = code == 0 and found["keeps"] and after != both and "Call mum" in after
    code, _ = run(names["delete"], second)
    _, left = run(names["list"])
    found["delete"] = code == 0 and "Call mum" in both and "Call mum" not in left
    code, said = run(names["delete"], "9999")
    found["unknown id"] = found["add"] and "Traceback" not in said and (code not in (0, -1) or bool(said.strip()))
    return found


def main() -> None:
    """Reads the app, checks it, tells."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the app cannot read the mark
    values: dict[str, Any] = json.loads(sys.stdin.read())
    with open("todo.py", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(values["code"])
    os.write(1, (values["mark"] + json.dumps(checks()) + "\n").encode())
