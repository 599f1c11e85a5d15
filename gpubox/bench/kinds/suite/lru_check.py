"""Runs inside the sandbox: works the cache of 1.3 beside one of its own. Stands alone; its text is sent there.

The cache has a process of its own (lru.mjs) that gets operations and gives results, both as lines of JSON: it never
learns what is checked.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import OrderedDict

MYPY = False
if MYPY:
    from typing import Any

SECONDS = 60
WAYS: tuple[list[str], ...] = (["--experimental-transform-types"], ["--experimental-strip-types"], [])
"""How a Node.js runs TypeScript: 22.7 and newer, 22.6, and what needs to be told nothing."""
TRIAL = """class Trial<T> { constructor(private size: number) {} get(): number { return this.size } }
const trial: Trial<string> = new Trial(3);
process.stdout.write(String(trial.get()));
"""
PLAIN = "const t: number = 3;\nprocess.stdout.write(String(t));\n"
MISSING = (None, -1)


def node() -> list[str] | None:
    """The command that runs TypeScript here; ``None`` without one."""
    known = re.compile(r"node(?:js)?-?\d*")
    names = [name for name in os.listdir("/usr/bin") if known.fullmatch(name)]  # noqa: PTH208
    trials = [(text, name, way) for text in (TRIAL, PLAIN) for name in sorted(names) for way in WAYS]
    for text, name, way in trials:
        with open("trial.ts", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        # Its type stripper is WebAssembly, whose trap handler reserves more addresses than a program may have.
        command = [f"/usr/bin/{name}", "--no-warnings", "--disable-wasm-trap-handler", *way]
        done = subprocess.run([*command, "trial.ts"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode == 0 and done.stdout == b"3":
            return command
    return None


def worked(command: list[str], operations: list[list[Any]]) -> list[Any]:
    """What each operation gave."""
    text = "".join(json.dumps(one) + "\n" for one in operations).encode()
    try:
        done = subprocess.run([*command, "lru.mjs"], input=text, capture_output=True, timeout=SECONDS, check=False)
        lines = [json.loads(line) for line in done.stdout.decode("utf-8", "replace").splitlines()]
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return []
    return lines[1:] if lines[:1] == ["ready"] else []


def same(found: list[Any], wanted: list[Any]) -> bool:
    """Whether every get gave what it had to."""
    if len(found) != len(wanted):
        return False
    for got, want in zip(found, wanted):  # noqa: B905 - Python 3.9
        if want == "done":
            if got not in ("made", "put"):
                return False
        elif not isinstance(got, dict) or (
            got.get("value") not in MISSING if want is None else got.get("value") != want
        ):
            return False
    return True


def expected(operations: list[list[Any]]) -> list[Any]:
    """What the operations give in a right cache."""
    held: OrderedDict[Any, Any] = OrderedDict()
    size, found = 0, []
    for name, *given in operations:
        if name == "new":
            held, size = OrderedDict(), given[0]
        elif name == "put":
            held[given[0]] = given[1]
            held.move_to_end(given[0])
            if len(held) > size:
                held.popitem(last=False)
        else:
            if given[0] in held:
                held.move_to_end(given[0])
            found.append(held.get(given[0]))
            continue
        found.append("done")
    return found


def checks(code: str) -> dict[str, bool] | None:
    """Six checks; nothing where nothing is kept; ``None`` without TypeScript."""
    command = node()
    if command is None:
        return None
    name = re.search(r"\bclass\s+(\w*LRU\w*)", code, re.IGNORECASE)
    with open("lru.ts", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(code + (f"\n;(globalThis as any).LRUUnderTest = {name[1]};\n" if name else ""))
    dice = random.SystemRandom()
    a, b, c, d = (f"k{dice.randrange(10**6)}" for _ in range(4))
    put = {key: ["put", key, dice.randrange(1, 10**6)] for key in (a, b, c, d)}
    plans: dict[str, list[list[Any]]] = {
        "keeps": [["new", 2], put[a], ["get", a], ["get", b]],
        "evicts the oldest": [["new", 2], put[a], put[b], put[c], ["get", a], ["get", b], ["get", c]],
        "get refreshes": [["new", 2], put[a], put[b], ["get", a], put[c], ["get", a], ["get", b]],
        "put refreshes": [["new", 2], put[a], put[b], ["put", a, 7], put[c], ["get", a], ["get", b], ["get", c]],
        "capacity of 1": [["new", 1], put[a], put[b], ["get", a], ["get", b]],
        "any order": [["new", 5], *(
            ["put", f"k{dice.randrange(9)}", n] if dice.random() < 0.5 else ["get", f"k{dice.randrange(9)}"]
            for n in range(1, 300)
        )],
    }  # fmt: skip
    every = [one for plan in plans.values() for one in plan]
    given = worked(command, every)
    found: dict[str, bool] = {}
    for plan, operations in plans.items():
        found[plan] = same(given[: len(operations)], expected(operations))
        given = given[len(operations) :]
    if not found["keeps"]:
        return {}
    try:
        own = subprocess.run(
            [*command, "lru.ts"], capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False
        )
        found["its tests pass"] = own.returncode == 0 and b"Assertion failed" not in own.stderr
    except subprocess.TimeoutExpired:
        found["its tests pass"] = False
    return found


def main() -> None:
    """Reads the cache, works it, tells."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the cache cannot read the mark
    sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # noqa: PTH109 - the cache writes there
    values: dict[str, Any] = json.loads(sys.stdin.read())
    with open("lru.mjs", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(values["driver"])
    os.write(1, (values["mark"] + json.dumps(checks(values["code"])) + "\n").encode())
