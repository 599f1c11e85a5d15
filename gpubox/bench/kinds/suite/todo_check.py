"""Runs inside the sandbox: uses a todo app (1.1) as a person would, eight checks.

Every command is a list of arguments: the article's harness split ``add Buy milk`` into three and failed correct apps.
Stands alone: its text is sent there, followed by ``check_main``.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "add": ("add", "new", "create"),
    "list": ("list", "ls", "show", "view"),
    "done": ("done", "complete", "finish", "toggle", "mark"),
    "delete": ("delete", "remove", "rm", "del"),
    "edit": ("edit", "update", "change", "rename", "modify"),
}
SECONDS = 20


def run(*arguments: str) -> tuple[int, str]:
    """Runs the app: its exit code (-1 if it did not end) and its output."""
    env = {**os.environ, "TODO_DB": str(Path.cwd() / "todos.db"), "COLUMNS": "200"}
    try:
        process = subprocess.run(
            [sys.executable or "python3", "todo.py", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, env=env,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, ""
    return process.returncode, process.stdout.decode("utf-8", "replace")


def command_names(help_text: str) -> dict[str, str]:
    """The app's own names of the five commands, from its help."""
    words = set(re.findall(r"[a-z]+", help_text.lower()))
    return {command: next((name for name in names if name in words), names[0]) for command, names in COMMANDS.items()}


def id_of(text: str, listing: str, default: str) -> str:
    """The id that the listing shows beside ``text``."""
    line = next((line for line in listing.splitlines() if text in line), "")
    number = re.search(r"\d+", line.replace(text, ""))
    return number[0] if number else default


def check_todo() -> dict[str, bool]:
    """All eight; none for an app that cannot keep and list a todo, because a stub passes the help and the refusal."""
    code, help_text = run("--help")
    names = command_names(help_text)
    first_text, second_text = (f"{word} {secrets.token_hex(3)}" for word in ("Buy milk", "Call mum"))
    add_code, _ = run(names["add"], first_text)
    _, listing = run(names["list"])
    if add_code != 0 or first_text not in listing:
        return {}
    results = {"help": code == 0 and bool(help_text.strip()), "add": True, "list": True}
    run(names["add"], second_text)
    _, listing = run(names["list"])
    has_second = second_text in listing
    results["keeps"] = first_text in listing and has_second
    first, second = id_of(first_text, listing, "1"), id_of(second_text, listing, "2")
    code, _ = run(names["edit"], first, "Buy oat milk")
    _, edited = run(names["list"])
    results["edit"] = code == 0 and "Buy oat milk" in edited and first_text not in edited and second_text in edited
    code, _ = run(names["done"], first)
    _, after = run(names["list"])
    results["done"] = code == 0 and results["keeps"] and after != edited and second_text in after
    code, _ = run(names["delete"], second)
    _, after = run(names["list"])
    results["delete"] = code == 0 and has_second and second_text not in after
    code, output = run(names["delete"], "9999")
    results["unknown id"] = "Traceback" not in output and (code not in (0, -1) or bool(output.strip()))
    return results
