"""Runs inside the sandbox: asks the apps of 1.2 and 2.2 as their users do. Stands alone; its text is sent there.

The app has a process of its own (driver.py with the shims of its framework) that gets requests and gives answers, both
as lines of JSON: it never learns what is checked. No socket is needed.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time

MYPY = False
if MYPY:
    from typing import Any

SECONDS = 20.0
MOST = 1 << 20


class AppProcess:
    """The app under test, as its users see it."""

    def __init__(self, kind: str) -> None:
        """Starts it in this folder."""
        self._process = subprocess.Popen(
            [sys.executable or "python3", "-I", "-S", "-B", ".shim/driver.py", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._held = b""
        self.first = self._line()
        """What its process says first; ``None`` where it could not begin."""

    def ask(self, method: str, path: str, value: Any = None, host: str = "10.0.0.1") -> tuple[int, dict[str, str], Any]:
        """Status, headers and body (JSON where it is); 0 where it does not answer."""
        headers = {"content-type": "application/json"} if value is not None else {}
        body = "" if value is None else json.dumps(value)
        line = json.dumps({"method": method, "path": path, "body": body, "headers": headers, "host": host})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode("ascii") + b"\n")
            self._process.stdin.flush()
            status, found, text = self._line()
        except (OSError, TypeError, ValueError):
            return 0, {}, None
        try:
            return int(status), dict(found), json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return (status if isinstance(status, int) else 0), (found if isinstance(found, dict) else {}), None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        fd, end = self._process.stdout.fileno(), time.monotonic() + SECONDS
        while b"\n" not in self._held and len(self._held) < MOST:
            if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            part = os.read(fd, 65536)
            if not part:
                return None
            self._held += part
        line, _, self._held = self._held.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None


def shortener() -> dict[str, bool]:
    """1.2, seven checks; nothing where it shortens nothing."""
    app = AppProcess("shortener")
    asked = f"https://example.org/{secrets.token_hex(4)}/page?q=1"
    code = _shortened(app, asked, "10.0.0.1")
    if not code:
        app.end()
        return {}
    found = {"shortens": True, "redirects": _goes_to(app, code, asked)}
    other = _shortened(app, asked + "&r=2", "10.0.0.1")
    found["redirects"] &= _goes_to(app, other, asked + "&r=2")
    bad = [app.ask("POST", "/shorten", body, "10.0.0.2")[0] for body in ({"url": "no url at all"}, {"url": ""}, {})]
    found["refuses what is no URL"] = all(status in (400, 422) for status in bad)
    unknown = app.ask("GET", "/" + secrets.token_hex(4))[0], app.ask("GET", "/stats/" + secrets.token_hex(4))[0]
    found["404"] = unknown == (404, 404) and found["redirects"]
    counts = []
    for _ in range(2):
        status, _, stats = app.ask("GET", f"/stats/{code}")
        counts.append({json.dumps(k): n for k, n in _numbers(stats)} if status == 200 else {})
        _goes_to(app, code, asked)
    found["counts visits"] = any(counts[1].get(name) == n + 1 and n == 1 for name, n in counts[0].items())
    own = [app.ask("POST", "/shorten", {"url": f"{asked}&n={n}"}, "10.0.0.3")[0] for n in range(11)]
    another = app.ask("POST", "/shorten", {"url": asked}, "10.0.0.4")[0]
    found["10 a minute"] = all(status in (200, 201) for status in (*own[:10], another)) and own[10] == 429
    app.end()
    app = AppProcess("shortener")
    found["keeps them"] = _goes_to(app, code, asked)
    app.end()
    return found


def _shortened(app: AppProcess, url: str, host: str) -> str:
    status, _, found = app.ask("POST", "/shorten", {"url": url}, host)
    if status not in (200, 201) or not isinstance(found, dict):
        return ""
    code, short = found.get("short_code"), found.get("short_url")
    return code if isinstance(code, str) and code and isinstance(short, str) and code in short else ""


def _goes_to(app: AppProcess, code: str, url: str) -> bool:
    status, headers, _ = app.ask("GET", "/" + code)
    return status in (302, 307) and headers.get("location") == url


def _numbers(value: Any, name: str = "") -> list[tuple[str, int]]:
    if isinstance(value, dict):
        return [one for key, inside in value.items() for one in _numbers(inside, f"{name}.{key}")]
    return [(name, value)] if isinstance(value, int) and not isinstance(value, bool) else []


def pagination() -> dict[str, bool]:
    """2.2, seven checks, and what its own tests say of it and of the app as it was; nothing where no page comes."""
    app = AppProcess("pagination")

    def page(query: str) -> tuple[int, list[Any], dict[str, Any]]:
        status, _, found = app.ask("GET", "/books" + query)
        found = found if isinstance(found, dict) else {}
        items = found.get("items")
        return (
            status,
            [one.get("id") for one in items if isinstance(one, dict)] if isinstance(items, list) else [],
            found,
        )

    status, items, first = page("")
    found = {"10 by default": status == 200 and items == list(range(1, 11))}
    if not found["10 by default"]:
        app.end()
        return {}
    size, number = 4 + secrets.randbelow(5), 2 + secrets.randbelow(3)
    status, items, other = page(f"?page={number}&per_page={size}")
    found["pages"] = items == list(range((number - 1) * size + 1, number * size + 1))
    found["the last page"] = page("?page=5")[1] == [41, 42, 43, 44, 45] and len(page("?per_page=100")[1]) == 45
    names = ("total", "page", "per_page", "pages")
    found["metadata"] = [first.get(n) for n in names] == [45, 1, 10, 5] and [other.get(n) for n in names] == [
        45, number, size, -(-45 // size)
    ]  # fmt: skip
    bad = [page(q)[0] for q in ("?page=0", "?page=-1", "?page=x", "?per_page=0", "?per_page=-5", "?per_page=ten")]
    found["400"] = bad == [400] * len(bad)
    status, items, more = page("?per_page=101")
    found["at most 100"] = status == 400 or (status == 200 and more.get("per_page") == 100)
    book = app.ask("GET", "/books/7")
    rest = book[0], app.ask("GET", "/books/99")[0], app.ask("GET", "/health")[2]
    found["other endpoints"] = rest == (200, 404, {"status": "ok"}) and (book[2] or {}).get("title") == "Book 7"
    app.end()
    return found


def own_tests(original: str) -> dict[str, bool]:
    """Whether the answer's tests pass on its app, and fail on the app as it was."""
    passed, failed = _tested()
    with open("app.py", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(original)
    _, before = _tested()
    return {"its tests pass": passed >= 5 and not failed, "its tests tell": passed >= 5 and not failed and before > 0}


def _tested() -> tuple[int, int]:
    app = AppProcess("tests")
    app.end()
    first = app.first
    return (first[0], first[1]) if isinstance(first, list) and len(first) == 2 else (0, 0)


def main() -> None:
    """Reads the app and its shims, asks it, tells."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the app cannot read the mark
    sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # noqa: PTH109 - the app writes there
    values: dict[str, Any] = json.loads(sys.stdin.read())
    os.mkdir(".shim")  # noqa: PTH102
    for path, text in values["files"].items():
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
    if values["kind"] == "shortener":
        found = shortener()
    else:
        found = pagination()
        found |= own_tests(values["original"]) if found else {}
    os.write(1, (values["mark"] + json.dumps(found) + "\n").encode())
