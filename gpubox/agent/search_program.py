"""Finds the lines that match a regular expression. Its text is run in the sandbox, as any program of the model is: an
expression that backtracks for ever ends at the time limit, and no link leads out of the workspace. It uses ripgrep where
there is one. Python's standard library only."""

import fnmatch
import json
import os
import re
import shutil
import stat
import subprocess
import sys

MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_LINE = 400
MAX_SORTED = 20_000


def main():  # type: ignore[no-untyped-def]
    want = json.load(sys.stdin)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    most, count = want["most"], 0
    for path, number, line in find(want):
        if count == most:
            print(f"(only the first {most} are shown)")
            return
        count += 1
        print(f"{path}:{number}: {line.strip()[:MAX_LINE]}", flush=True)
    if not count:
        print("No line matches.")


def find(want):  # type: ignore[no-untyped-def]
    pattern, path = want["pattern"], want["path"]
    flags = re.M if any(char.isupper() for char in re.sub(r"\\.", "", pattern)) else re.M | re.I
    try:
        regex = re.compile(pattern, flags)
    except (re.error, OverflowError) as error:
        sys.exit(f"{pattern!r} is no regular expression: {error}")
    if not os.path.lexists(path):
        sys.exit(f"{path} does not exist.")
    if os.path.isdir(path) and shutil.which("rg"):
        matches = ripgrep(want, regex.flags & re.I)
        if matches is not None:
            return matches
    return search(regex, want)


def ripgrep(want, ignore_case):  # type: ignore[no-untyped-def]
    """None: ripgrep does not understand the expression as Python does."""
    argv = ["rg", "--no-config", "--null", "-n", "--no-heading", "--color=never", "--hidden", "--no-ignore", "--max-filesize=8M"]
    argv += [f"-g!{name}" for name in want["skipped"]] + (["-i"] if ignore_case else [])
    argv += ["-g", want["glob"]] if want["glob"] else []
    child = subprocess.Popen(
        [*argv, "-e", want["pattern"], "--", want["path"]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    matches = []
    for raw in child.stdout:
        name, _, rest = raw.decode("utf-8", "replace").partition("\0")
        number, _, line = rest.partition(":")
        if number.isdigit():
            matches.append((os.path.normpath(name), int(number), line))
        if len(matches) == MAX_SORTED:
            child.kill()
            break
    return None if child.wait() == 2 and not matches else sorted(matches)


def search(regex, want):  # type: ignore[no-untyped-def]
    for path in files(want):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                data = file.read(MAX_FILE_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        except OSError:
            continue
        if b"\0" in data[:8192]:
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        if regex.search(text):
            for number, line in enumerate(text.split("\n"), 1):
                if regex.search(line):
                    yield path, number, line


def files(want):  # type: ignore[no-untyped-def]
    if not os.path.isdir(want["path"]):
        yield want["path"]
        return
    for folder, folders, names in os.walk(want["path"]):
        folders[:] = sorted(name for name in folders if name not in want["skipped"])
        for name in sorted(names):
            path = os.path.normpath(os.path.join(folder, name))
            if not want["glob"] or fnmatch.fnmatch(name, want["glob"]) or fnmatch.fnmatch(path, want["glob"]):
                yield path


if __name__ == "__main__":
    main()
