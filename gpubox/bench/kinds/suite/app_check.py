"""Runs inside the sandbox: asks the apps of 1.2, 2.1 and 2.2 as their clients do.

The app has a process of its own (driver.py or driver.js, with shims of its framework) that takes requests and gives
replies, both as lines of JSON: it never learns what is checked, and needs no socket. Stands alone: its text is sent
there, followed by ``check_main``.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

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
