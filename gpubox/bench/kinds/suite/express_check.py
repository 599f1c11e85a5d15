"""Runs inside the sandbox: asks the app of 2.1 as its clients do, under Node.js. Stands alone; its text is sent there.

The app has a process of its own (driver.js) that gets requests and gives answers, both as lines of JSON: it never
learns what is checked.
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

MYPY = False
if MYPY:
    from typing import Any

SECONDS = 60.0
MOST = 1 << 20


class ExpressApp:
    """The app under test, as its clients see it."""

    def __init__(self, node: str) -> None:
        """Starts it in this folder."""
        self._process = subprocess.Popen(
            [node, "driver.js"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._held = b""
        self._end = time.monotonic() + SECONDS
        self.begun = self._line() == "ready"

    def ask(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any]:
        """Status and body; 0 where it does not answer."""
        assert self._process.stdin is not None
        line = json.dumps({"method": method, "path": path, "headers": headers, "body": body or {}})
        try:
            self._process.stdin.write(line.encode("ascii") + b"\n")
            self._process.stdin.flush()
            status, found = self._line()
        except (OSError, TypeError, ValueError):
            return 0, None
        return (status if isinstance(status, int) else 0), found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._held and len(self._held) < MOST:
            if not select.select([fd], [], [], max(0.0, self._end - time.monotonic()))[0]:
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


def checks(files: dict[str, str]) -> dict[str, bool] | None:
    """Five checks; nothing where the app does not begin; ``None`` without a Node.js that runs."""
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", "0"], stdin=subprocess.DEVNULL, check=False).returncode:
        return None
    for path, text in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
    app = ExpressApp(node)
    found = told(app) if app.begun else {}
    app.end()
    return found


def told(app: ExpressApp) -> dict[str, bool]:
    """What its clients see."""
    user = "user" + secrets.token_hex(3)
    status, session = app.ask("POST", "/session", {}, {"user": user})
    token = session.get("token") if isinstance(session, dict) else None
    if status != 201 or not isinstance(token, str) or not token:
        return {}
    let_in, items = app.ask("GET", "/items", {"Authorization": f"Bearer {token}"})
    items = items if isinstance(items, dict) else {}
    refused = [
        app.ask("GET", "/items", headers)[0]
        for headers in ({}, {"Authorization": ""}, {"Authorization": f"Bearer {secrets.token_hex(16)}"})
    ]
    return {
        "login": True,
        "Bearer is let in": let_in == 200,
        "items": items.get("user") == user and len(items.get("items") or ()) == 2,
        "no token: 401": refused[:2] == [401, 401],
        "wrong token: 401": refused[2] == 401,
    }


def main() -> None:
    """Reads the files, asks the app, tells."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: the app cannot read the mark
    sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # noqa: PTH109 - the app writes there
    values: dict[str, Any] = json.loads(sys.stdin.read())
    os.write(1, (values["mark"] + json.dumps(checks(values["files"])) + "\n").encode())
