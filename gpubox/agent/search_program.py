"""Finds the lines that match a regular expression. Its text is run in the sandbox, as any program of the model is.

So an expression that backtracks for ever ends at the time limit, and no link leads out of the workspace. It uses
ripgrep where there is one, and else Python's standard library alone.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_LINE = 400
MAX_SORTED = 20_000
Match = tuple[str, int, str]
"""Path, number of the line, the line."""


def main() -> None:
    """Prints the matches that stdin asks for."""
    want = json.load(sys.stdin)
    most, count = want["most"], 0
    for path, number, line in find(want):
        if count == most:
            say(f"(only the first {most} are shown)")
            break
        count += 1
        say(f"{path}:{number}: {line.strip()[:MAX_LINE]}")
    if not count:
        say("No line matches.")


def say(line: str) -> None:
    """Writes the line at once: the time limit may end the program."""
    os.write(1, line.encode("utf-8", "replace") + b"\n")


def find(want: dict[str, Any]) -> Iterable[Match]:
    """The matches in the order of the paths. Ends the program where the question makes no sense."""
    pattern, path = want["pattern"], want["path"]
    ignore = 0 if any(char.isupper() for char in re.sub(r"\\.", "", pattern)) else re.IGNORECASE
    try:
        regex = re.compile(pattern, re.MULTILINE | ignore)
    except (re.error, OverflowError, RecursionError) as error:
        sys.exit(f"{pattern!r} is no regular expression: {error}")
    if not os.path.lexists(path):
        sys.exit(f"{path} does not exist.")
    if os.path.isdir(path) and shutil.which("rg"):  # noqa: PTH112
        matches = ripgrep(want, bool(ignore))
        if matches is not None:
            return matches
    return search(regex, want)


def ripgrep(want: dict[str, Any], ignore_case: bool) -> list[Match] | None:
    """``None``: it does not understand the expression."""
    argv = ["rg", "--no-config", "--null", "-n", "--no-heading", "--color=never", "--hidden", "--no-ignore"]
    argv += ["--max-filesize=8M", *(["-i"] if ignore_case else []), *(["-g", want["glob"]] if want["glob"] else [])]
    argv += [f"-g!{name}" for name in want["skipped"]]
    child = subprocess.Popen(
        [*argv, "-e", want["pattern"], "--", want["path"]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None
    matches = []
    for raw in child.stdout:
        name, _, rest = decode(raw.rstrip(b"\n")).partition("\0")
        number, _, line = rest.partition(":")
        if number.isdigit():
            matches.append((os.path.normpath(name), int(number), line))
        if len(matches) == MAX_SORTED:
            child.kill()
            break
    return None if child.wait() == 2 and not matches else sorted(matches)


def search(regex: re.Pattern[str], want: dict[str, Any]) -> Iterator[Match]:
    """The same by Python."""
    for path in files(want):
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                data = file.read(MAX_FILE_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        except OSError:
            continue
        if b"\0" in data[:8192]:
            continue
        text = decode(data)
        if regex.search(text):
            for number, line in enumerate(text.split("\n"), 1):
                if regex.search(line):
                    yield path, number, line


def decode(data: bytes) -> str:
    """UTF-8, else Latin-1."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def files(want: dict[str, Any]) -> Iterator[str]:
    """The files to search, in order."""
    start, glob = want["path"], want["glob"]
    if not os.path.isdir(start):  # noqa: PTH112
        yield start
        return
    for folder, folders, names in os.walk(start):
        folders[:] = sorted(name for name in folders if name not in want["skipped"])
        for name in sorted(names):
            path = os.path.normpath(os.path.join(folder, name))  # noqa: PTH118
            if not glob or fnmatch.fnmatch(name, glob) or fnmatch.fnmatch(path, glob):
                yield path


if __name__ == "__main__":
    main()
