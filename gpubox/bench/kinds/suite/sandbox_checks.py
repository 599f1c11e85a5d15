"""Runs inside the sandbox: uses the programs of the suite as people and their clients do, and says what works.

Stands alone: its text is sent there (see ``programs``), followed by a call of ``main`` with one of its checks. The
program under test has a process of its own, which gets commands or requests and never learns what is checked. The
verdict is a line of JSON that begins with a secret mark from the input; the program cannot learn the mark, because the
memory of this process cannot be read.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import re
import secrets
import select
import shutil
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any


def main(checks: Callable[..., dict[str, bool] | None]) -> None:
    """Runs ``checks`` on the input from stdin. It returns ``None`` if the sandbox lacks what it needs."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    sys.path[:] = [path for path in sys.path if path and path != str(Path.cwd())]  # the program writes there
    values = json.loads(sys.stdin.read())
    for name, text in values["files"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    verdict = checks(**values["arguments"])
    os.write(1, (values["mark"] + json.dumps(verdict) + "\n").encode())


# --- 1.1: the todo app ---

COMMANDS = {
    "add": ("add", "new", "create"),
    "list": ("list", "ls", "show", "view"),
    "done": ("done", "complete", "finish", "toggle", "mark"),
    "delete": ("delete", "remove", "rm", "del"),
    "edit": ("edit", "update", "change", "rename", "modify"),
}
COMMAND_SECONDS = 20


def run(*arguments: str) -> tuple[int, str]:
    """Runs the app: its exit code (-1 if it did not end) and its output."""
    env = {**os.environ, "TODO_DB": str(Path.cwd() / "todos.db"), "COLUMNS": "200"}
    try:
        process = subprocess.run(
            [sys.executable or "python3", "todo.py", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            env=env,
            check=False,
        )
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


# --- 1.2, 2.1 and 2.2: the apps of a server ---

REPLY_SECONDS = 20.0
MAX_REPLY_BYTES = 1 << 20


class AppProcess:
    """The process of the app under test."""

    def __init__(self, *command: str) -> None:
        """Starts it in the current folder."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._unread = b""
        self.greeting = self._read_line()
        """What its driver writes first; ``None`` if it could not start."""

    def request(self, **values: Any) -> Any:
        """The driver's reply to a request; ``None`` if there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values).encode("ascii") + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        return self._read_line()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read_line(self) -> Any:
        assert self._process.stdout is not None
        fd, deadline = self._process.stdout.fileno(), time.monotonic() + REPLY_SECONDS
        while b"\n" not in self._unread and len(self._unread) < MAX_REPLY_BYTES:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(fd, 65536)
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None


class PythonApp(AppProcess):
    """An app of 1.2 or 2.2 on small shims of FastAPI or Flask."""

    def __init__(self, kind: str) -> None:
        super().__init__(sys.executable or "python3", "-I", "-S", "-B", ".shim/driver.py", kind)

    def ask(self, method: str, path: str, value: Any = None, host: str = "10.0.0.1") -> tuple[int, dict[str, str], Any]:
        """Status, headers and body as JSON (``None`` if it is not JSON); status 0 if the app does not answer."""
        headers = {"content-type": "application/json"} if value is not None else {}
        body = "" if value is None else json.dumps(value)
        reply = self.request(method=method, path=path, body=body, headers=headers, host=host)
        if not isinstance(reply, list) or len(reply) != 3:
            return 0, {}, None
        status, headers, text = reply
        try:
            return int(status), dict(headers), json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return (status if isinstance(status, int) else 0), (headers if isinstance(headers, dict) else {}), None


def check_shortener() -> dict[str, bool]:
    """1.2, seven checks; none if it does not shorten."""
    url = f"https://example.org/{secrets.token_hex(4)}/page?q=1"
    with closing(PythonApp("shortener")) as app:
        code = _shorten(app, url, "10.0.0.1")
        if not code:
            return {}
        results = {"shortens": True, "redirects": _redirects(app, code, url)}
        second = _shorten(app, url + "&r=2", "10.0.0.1")
        results["redirects"] &= _redirects(app, second, url + "&r=2")
        bodies: tuple[dict[str, str], ...] = ({"url": "no url at all"}, {"url": ""}, {})
        refusals = [app.ask("POST", "/shorten", body, "10.0.0.2")[0] for body in bodies]
        results["refuses invalid URLs"] = all(status in (400, 422) for status in refusals)
        unknown = [app.ask("GET", path + secrets.token_hex(4))[0] for path in ("/", "/stats/")]
        results["404"] = unknown == [404, 404] and results["redirects"]
        counts = []
        for _ in range(2):
            status, _, stats = app.ask("GET", f"/stats/{code}")
            counts.append({json.dumps(name): n for name, n in _numbers(stats)} if status == 200 else {})
            _redirects(app, code, url)
        results["counts visits"] = any(counts[1].get(name) == n + 1 and n == 1 for name, n in counts[0].items())
        burst = [app.ask("POST", "/shorten", {"url": f"{url}&n={n}"}, "10.0.0.3")[0] for n in range(11)]
        other_host = app.ask("POST", "/shorten", {"url": url}, "10.0.0.4")[0]
        results["10 a minute"] = all(status in (200, 201) for status in (*burst[:10], other_host)) and burst[10] == 429
    with closing(PythonApp("shortener")) as app:
        results["keeps them"] = _redirects(app, code, url)
    return results


def _shorten(app: PythonApp, url: str, host: str) -> str:
    status, _, body = app.ask("POST", "/shorten", {"url": url}, host)
    if status not in (200, 201) or not isinstance(body, dict):
        return ""
    code, short_url = body.get("short_code"), body.get("short_url")
    return code if isinstance(code, str) and code and isinstance(short_url, str) and code in short_url else ""


def _redirects(app: PythonApp, code: str, url: str) -> bool:
    status, headers, _ = app.ask("GET", "/" + code)
    return status in (302, 307) and headers.get("location") == url


def _numbers(value: Any, name: str = "") -> list[tuple[str, int]]:
    """Every whole number in a JSON object, with its path."""
    if isinstance(value, dict):
        return [number for key, inner in value.items() for number in _numbers(inner, f"{name}.{key}")]
    return [(name, value)] if isinstance(value, int) and not isinstance(value, bool) else []


def check_pagination(original: str) -> dict[str, bool]:
    """2.2, seven checks of the app and two of its tests; none if the first page is wrong. ``original``: the old app."""
    with closing(PythonApp("pagination")) as app:

        def page(query: str) -> tuple[int, list[Any], dict[str, Any]]:
            """Status, ids of the items, body."""
            status, _, body = app.ask("GET", "/books" + query)
            body = body if isinstance(body, dict) else {}
            items = body.get("items")
            ids = [item.get("id") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
            return status, ids, body

        status, ids, first = page("")
        if status != 200 or ids != list(range(1, 11)):
            return {}
        results = {"10 by default": True}
        size, number = 4 + secrets.randbelow(5), 2 + secrets.randbelow(3)
        _, ids, inner = page(f"?page={number}&per_page={size}")
        results["pages"] = ids == list(range((number - 1) * size + 1, number * size + 1))
        results["the last page"] = page("?page=5")[1] == [41, 42, 43, 44, 45] and len(page("?per_page=100")[1]) == 45
        wanted = ((first, [45, 1, 10, 5]), (inner, [45, number, size, -(-45 // size)]))
        names = ("total", "page", "per_page", "pages")
        results["metadata"] = all([body.get(name) for name in names] == values for body, values in wanted)
        queries = ("?page=0", "?page=-1", "?page=x", "?per_page=0", "?per_page=-5", "?per_page=ten")
        results["400"] = all(page(query)[0] == 400 for query in queries)
        status, _, body = page("?per_page=101")
        results["at most 100"] = status == 400 or (status == 200 and body.get("per_page") == 100)
        status, _, book = app.ask("GET", "/books/7")
        others = status, app.ask("GET", "/books/99")[0], app.ask("GET", "/health")[2]
        results["other endpoints"] = others == (200, 404, {"status": "ok"}) and (book or {}).get("title") == "Book 7"
    passed, failed = _run_tests()
    Path("app.py").write_text(original, encoding="utf-8")
    results["its tests pass"] = passed >= 5 and not failed
    results["its tests fail on the original"] = results["its tests pass"] and _run_tests()[1] > 0
    return results


def _run_tests() -> tuple[int, int]:
    """Passed and failed."""
    with closing(PythonApp("tests")) as app:
        counts = app.greeting
    return (counts[0], counts[1]) if isinstance(counts, list) and len(counts) == 2 else (0, 0)


def check_express() -> dict[str, bool] | None:
    """2.1, five checks; none if nobody can log in, ``None`` without a Node.js that runs."""
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", "0"], stdin=subprocess.DEVNULL, check=False).returncode:
        return None
    with closing(AppProcess(node, "driver.js")) as app:

        def ask(method: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any]:
            """Status and body; 0 if the app does not answer."""
            reply = app.request(method=method, path=path, headers=headers, body=body or {})
            if not isinstance(reply, list) or len(reply) != 2 or not isinstance(reply[0], int):
                return 0, None
            return reply[0], reply[1]

        user = "user" + secrets.token_hex(3)
        status, session = ask("POST", "/session", {}, {"user": user}) if app.greeting == "ready" else (0, None)
        token = session.get("token") if isinstance(session, dict) else None
        if status != 201 or not isinstance(token, str) or not token:
            return {}
        tokens = (f"Bearer {token}", "", f"Bearer {secrets.token_hex(16)}")
        (status, body), empty, wrong = [ask("GET", "/items", {"Authorization": token}) for token in tokens]
        none, _ = ask("GET", "/items", {})
    body = body if isinstance(body, dict) else {}
    return {
        "login": True,
        "accepts Bearer": status == 200,
        "items": body.get("user") == user and len(body.get("items") or ()) == 2,
        "no token: 401": (none, empty[0]) == (401, 401),
        "wrong token: 401": wrong[0] == 401,
    }


# --- 1.3: the cache ---

LRU_SECONDS = 60
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
        cache = subprocess.run(
            [*command, "lru.mjs"], input=lines, capture_output=True, timeout=LRU_SECONDS, check=False
        )
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
    """Seven checks; none if it keeps nothing or everything, ``None`` without TypeScript."""
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
    if not results["keeps"] or not results["evicts the oldest"]:
        return {}
    try:
        tests = subprocess.run(
            [*command, "lru.ts"], capture_output=True, stdin=subprocess.DEVNULL, timeout=LRU_SECONDS, check=False
        )
        results["its tests pass"] = tests.returncode == 0 and b"Assertion failed" not in tests.stderr
    except subprocess.TimeoutExpired:
        results["its tests pass"] = False
    return results
