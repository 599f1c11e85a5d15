"""Category 2: what can be read off the changed files of 2.1 and 2.2. Pure."""

from __future__ import annotations

import ast
import difflib
import re

from gpubox.bench.suite.coding import without_text
from gpubox.bench.suite.prompts import EXPRESS, fixture
from gpubox.bench.syntax import parsed

MIDDLEWARE, CLIENT = "middleware/auth.js", "client/api.js"


def bugfix_points(text: str, changed: dict[str, str], works: bool | None = None) -> dict[str, int]:
    """2.1, of 100: found 30, fixed 40, minimal 20, explained 10. ``changed`` is of ``changed_files``.

    ``works`` is what running it showed. Where it cannot be run the middleware is read: it must take ``authorization``,
    without its ``Bearer``, and still refuse with 401.
    """
    prose = re.sub(r"```.*?```", " ", text, flags=re.DOTALL).lower()
    named = "x-auth-token" in prose and ("authorization" in prose or "bearer" in prose)
    fixed = _reads_bearer(changed.get(MIDDLEWARE, "")) if works is None else works
    lines = sum(_lines(fixture(f"express/{path}"), code) for path, code in changed.items())
    minimal = 0
    if fixed and set(changed) == {MIDDLEWARE}:
        minimal = 20 if lines <= 6 else 10 if lines <= 15 else 0
    elif _sends_token(changed.get(CLIENT, "")):
        minimal = 10  # it works, for this client alone
    cause = re.search(r"(sends?|uses?|passes|expects?|reads?|looks?|check\w*|header)", prose)
    effect = re.search(r"(401|undefined|never|always|missing|mismatch|unauthori[sz]ed|not found|null)", prose)
    return {
        "found": 30 * named,
        "fixed": 40 * fixed,
        "minimal": minimal,
        "explained": 10 * bool(named and cause and effect),
    }


def pagination_features(files: dict[str, str]) -> dict[str, bool]:
    """2.2, five of them: parameters, default, metadata, bounds, tests."""
    app = next((code for path, code in files.items() if path.rpartition("/")[2] == "app.py"), "")
    tests = next((code for path, code in files.items() if path.rpartition("/")[2].startswith("test_")), "")
    strings, numbers = _constants(app)
    reads = {"page", "per_page"} <= strings and bool(re.search(r"request\.args", app))
    return {
        "parameters": reads,
        "default of 10": reads and 10 in numbers,
        "metadata": {"total", "page", "per_page", "pages"} <= (strings | _keywords(app)),
        "bounds": reads and 100 in numbers and 400 in numbers,
        "tests updated": parsed(tests) is not None and "per_page" in tests and "400" in tests and "def test_" in tests,
    }


def changed_files(files: dict[str, str]) -> dict[str, str]:
    """Files of the app whose content is another than before, by the app's own paths."""
    found = {}
    for path, code in files.items():
        known = next((name for name in EXPRESS if path == name or path.endswith("/" + name)), None)
        known = known or next((name for name in EXPRESS if name.rpartition("/")[2] == path), None)
        if known and _lines(fixture(f"express/{known}"), code):
            found[known] = code
    return found


def _lines(before: str, after: str) -> int:
    """Added and removed lines, space at their ends left aside."""
    old, new = ([line.rstrip() for line in text.strip().splitlines()] for text in (before, after))
    added = removed = 0
    for line in difflib.ndiff(old, new):
        added += line.startswith("+ ")
        removed += line.startswith("- ")
    return max(added, removed)


def _reads_bearer(code: str) -> bool:
    """Whether a middleware takes the token out of ``Authorization: Bearer TOKEN`` and refuses others."""
    live = re.sub(r"//[^\n]*|/\*.*?\*/", "", code, flags=re.DOTALL)
    header = re.search(r"headers(?:\[\s*['\"`]authorization['\"`]\s*\]|\.authorization)|"
                       r"\.(?:get|header)\(\s*['\"`]authorization['\"`]", live, re.IGNORECASE)  # fmt: skip
    taken = re.search(r"split\(|slice\(\s*7|substr(?:ing)?\(\s*7|replace\(|match\(|\.exec\(|startsWith\(", live)
    bare = without_text(live)
    balanced = all(bare.count(left) == bare.count(right) for left, right in ("{}", "()", "[]"))
    return bool(header and taken and balanced and "401" in live and re.search(r"\bnext\s*\(", live))


def _sends_token(code: str) -> bool:
    return bool(re.search(r"['\"`]?x-auth-token['\"`]?\s*:\s*\S*token", code, re.IGNORECASE))


def _constants(code: str) -> tuple[set[str], set[int]]:
    tree = parsed(code)
    if tree is None:
        return set(), set()
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    numbers = {value for value in values if isinstance(value, int) and not isinstance(value, bool)}
    return {value for value in values if isinstance(value, str)}, numbers


def _keywords(code: str) -> set[str]:
    tree = parsed(code)
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg} if tree else set()
