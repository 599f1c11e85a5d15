"""Category 2: what can be read off the changed files of 2.1 and 2.2. Pure."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from itertools import pairwise

from gpubox.bench.kinds.shared import parse_python
from gpubox.bench.kinds.suite.claims import Sentence, sentences
from gpubox.bench.kinds.suite.coding import strip_comments_and_strings
from gpubox.bench.kinds.suite.task_prompts import task_file

MIDDLEWARE, CLIENT = "middleware/auth.js", "client/api.js"
_SENT = r"(?:authorization|bearer)"
_READ = r"x-auth-token"
_MISMATCH = re.compile(
    rf"(?:client|caller|front|api\.js|login|request|send|sent|pass|set).{{0,160}}{_SENT}.{{0,160}}{_READ}"
    rf"|(?:middleware|auth\.js|server|read|look|expect|check).{{0,160}}{_READ}.{{0,160}}{_SENT}",
    re.IGNORECASE | re.DOTALL,
)
_AT_EASE = re.compile(
    rf"{_READ}[^.;]{{0,80}}(?:is correct|is fine|works|is right|matches|correctly)"
    rf"|headers? (?:are|is) (?:fine|correct|right|not the)|not (?:the|a) header|unrelated to (?:the )?header",
    re.IGNORECASE,
)
_EFFECT = r"401|undefined|never|always|missing|mismatch|unauthori[sz]ed|not found|null|empty|reject|refus|differ"


def bugfix_points(prose: str, changed: Mapping[str, str], works: bool | None = None) -> dict[str, int]:
    """2.1, of 100: found 20, fixed 50, minimal 20, explained 10. ``changed`` is of ``changed_files``.

    ``works`` is what running it showed. Where it cannot be run the middleware is read: it must take ``authorization``,
    without its ``Bearer``, and still refuse with 401.
    """
    told = sentences(prose)
    pairs = [one for one in (*told, *(Sentence(f"{a.text} {b.text}") for a, b in pairwise(told))) if one.whole]
    named = any(_MISMATCH.search(one.text) for one in pairs) and not any(_AT_EASE.search(one.text) for one in told)
    effect = any(re.search(_EFFECT, one.text, re.IGNORECASE) for one in pairs)
    fixed = _reads_bearer(changed.get(MIDDLEWARE, "")) if works is None else works
    lines = sum(_lines(task_file(f"express/{path}"), code) for path, code in changed.items())
    minimal = 0
    if fixed and set(changed) == {MIDDLEWARE}:
        minimal = 20 if lines <= 6 else 10 if lines <= 15 else 0
    found = {"found": 20 * named, "fixed": 50 * fixed, "minimal": minimal, "explained": 10 * (named and effect)}
    if _sends_token(changed.get(CLIENT, "")) and not fixed and not found["explained"]:
        found["minimal"] = 10  # it works, for this client alone
    return found


def pagination_features(files: Mapping[str, str]) -> dict[str, bool]:
    """2.2, four of them: parameters, default, metadata, bounds. Its tests are run."""
    app = files.get("app.py", "")
    strings, numbers = _constants(app)
    reads = {"page", "per_page"} <= strings and "args" in _attributes(app)
    return {
        "parameters": reads,
        "default of 10": reads and 10 in numbers,
        "metadata": {"total", "page", "per_page", "pages"} <= (strings | _keywords(app)),
        "bounds": reads and 100 in numbers and 400 in numbers,
    }


def changed_files(files: Mapping[str, str]) -> dict[str, str]:
    """Files of the app whose content is another than before."""
    return {path: code for path, code in files.items() if _lines(task_file(f"express/{path}"), code)}


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
    bare = strip_comments_and_strings(live)
    balanced = all(bare.count(left) == bare.count(right) for left, right in ("{}", "()", "[]"))
    return bool(header and taken and balanced and "401" in live and re.search(r"\bnext\s*\(", live))


def _sends_token(code: str) -> bool:
    return bool(re.search(r"['\"`]?x-auth-token['\"`]?\s*:\s*\S*token", code, re.IGNORECASE))


def _constants(code: str) -> tuple[set[str], set[int]]:
    tree = parse_python(code)
    if tree is None:
        return set(), set()
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    numbers = {value for value in values if isinstance(value, int) and not isinstance(value, bool)}
    return {value for value in values if isinstance(value, str)}, numbers


def _keywords(code: str) -> set[str]:
    tree = parse_python(code)
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg} if tree else set()


def _attributes(code: str) -> set[str]:
    tree = parse_python(code)
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} if tree else set()
