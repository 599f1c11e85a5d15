"""Runs inside the sandbox: runs the cache of 1.3 beside a correct one.

The cache has a process of its own (lru.mjs) that takes operations and gives results, both as lines of JSON: it never
learns what is checked. Stands alone: its text is sent there, followed by ``check_main``.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
from collections import OrderedDict
from pathlib import Path
from typing import Any

SECONDS = 60
TYPESCRIPT_OPTIONS: tuple[list[str], ...] = (["--experimental-transform-types"], ["--experimental-strip-types"], [])
"""Node.js 22.7 and newer, 22.6, and versions that need no option."""
TRIAL = """class Trial<T> { constructor(private size: number) {} get(): number { return this.size } }
const trial: Trial<string> = new Trial(3);
process.stdout.write(String(trial.get()));
"""
PLAIN_TRIAL = "const t: number = 3;\nprocess.stdout.write(String(t));\n"


def node_command() -> list[str] | None:
    """The command that runs TypeScript here, if there is one."""
    pattern = re.compile(r"node(?:js)?-?\d*")
    nodes = sorted(str(path) for path in Path("/usr/bin").iterdir() if pattern.fullmatch(path.name))
    for text, node, options in itertools.product((TRIAL, PLAIN_TRIAL), nodes, TYPESCRIPT_OPTIONS):
        Path("trial.ts").write_text(text, encoding="utf-8")
        # The type stripper is WebAssembly, whose trap handler reserves more address space than the sandbox allows.
        command = [node, "--no-warnings", "--disable-wasm-trap-handler", *options]
        trial = subprocess.run([*command, "trial.ts"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
        if trial.returncode == 0 and trial.stdout == b"3":
            return command
    return None


def run_operations(command: list[str], operations: list[list[Any]]) -> list[Any]:
    """The result of each operation; empty if the cache does not run."""
    lines = "".join(json.dumps(operation) + "\n" for operation in operations).encode()
    try:
        cache = subprocess.run([*command, "lru.mjs"], input=lines, capture_output=True, timeout=SECONDS, check=False)
        replies = [json.loads(line) for line in cache.stdout.decode("utf-8", "replace").splitlines()]
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return []
    return replies[1:] if replies[:1] == ["ready"] else []


def is_correct(replies: list[Any], operations: list[list[Any]]) -> bool:
    """Whether every reply is that of a correct cache."""
    entries: OrderedDict[Any, Any] = OrderedDict()
    capacity = 0
    if len(replies) != len(operations):
        return False
    for reply, (name, *arguments) in zip(replies, operations):  # noqa: B905 - Python 3.9
        if name == "get":
            key = arguments[0]
            if key in entries:
                entries.move_to_end(key)
            missing = (None, -1)
            value = reply.get("value") if isinstance(reply, dict) else reply
            if not isinstance(reply, dict) or (value != entries[key] if key in entries else value not in missing):
                return False
            continue
        if name == "new":
            entries, capacity = OrderedDict(), arguments[0]
        else:
            key, value = arguments
            entries[key] = value
            entries.move_to_end(key)
            if len(entries) > capacity:
                entries.popitem(last=False)
        if reply not in ("made", "put"):
            return False
    return True


def check_lru() -> dict[str, bool] | None:
    """Seven checks; none if it keeps nothing, ``None`` without TypeScript."""
    command = node_command()
    if command is None:
        return None
    dice = random.SystemRandom()
    a, b, c = (f"k{dice.randrange(10**6)}" for _ in range(3))
    put = {key: ["put", key, dice.randrange(1, 10**6)] for key in (a, b, c)}
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
    replies = run_operations(command, [operation for plan in plans.values() for operation in plan])
    results: dict[str, bool] = {}
    for check, operations in plans.items():
        results[check] = is_correct(replies[: len(operations)], operations)
        replies = replies[len(operations) :]
    if not results["keeps"]:
        return {}
    try:
        tests = subprocess.run(
            [*command, "lru.ts"], capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False
        )
        results["its tests pass"] = tests.returncode == 0 and b"Assertion failed" not in tests.stderr
    except subprocess.TimeoutExpired:
        results["its tests pass"] = False
    return results
