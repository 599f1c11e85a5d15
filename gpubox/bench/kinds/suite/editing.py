"""Category 2: the points that can be read off the changed files of 2.1 and 2.2. Pure."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from itertools import pairwise

from gpubox.bench.kinds.suite.claims import Sentence, sentences
from gpubox.bench.kinds.suite.coding import PythonCode, strip_comments_and_strings
from gpubox.bench.kinds.suite.task_prompts import task_file

MIDDLEWARE, CLIENT = "middleware/auth.js", "client/api.js"
_SENT = r"(?:authorization|bearer)"
_READ = r"x-auth-token"
_MISMATCH = re.compile(
    rf"(?:client|caller|front|api\.js|login|request|send|sent|pass|set).{{0,160}}{_SENT}.{{0,160}}{_READ}"
    rf"|(?:middleware|auth\.js|server|read|look|expect|check).{{0,160}}{_READ}.{{0,160}}{_SENT}",
    re.IGNORECASE | re.DOTALL,
)
_HEADER_IS_FINE = re.compile(
    rf"{_READ}[^.;]{{0,80}}(?:is correct|is fine|works|is right|matches|correctly)"
    rf"|headers? (?:are|is) (?:fine|correct|right|not the)|not (?:the|a) header|unrelated to (?:the )?header",
    re.IGNORECASE,
)
_EFFECT = r"401|undefined|never|always|missing|mismatch|unauthori[sz]ed|not found|null|empty|reject|refus|differ"


def bugfix_points(prose: str, changed: Mapping[str, str], works: bool | None = None) -> dict[str, int]:
    """2.1, of 100: found 20, fixed 50, minimal 20, explained 10. ``changed``: see ``changed_files``.

    ``works`` is the outcome of running the app. ``None``: the middleware is read instead; it must take the token out of
    ``Authorization: Bearer`` and still refuse with 401.
    """
    single = sentences(prose)
    pairs = (Sentence(f"{first.text} {second.text}") for first, second in pairwise(single))
    parts = [part for part in (*single, *pairs) if part.is_real]
    dismissed = any(_HEADER_IS_FINE.search(sentence.text) for sentence in single)
    named = any(_MISMATCH.search(part.text) for part in parts) and not dismissed
    effect = any(re.search(_EFFECT, part.text, re.IGNORECASE) for part in parts)
    fixed = _reads_bearer(changed.get(MIDDLEWARE, "")) if works is None else works
    minimal = 0
    if fixed and set(changed) == {MIDDLEWARE}:
        lines = _changed_lines(task_file(f"express/{MIDDLEWARE}"), changed[MIDDLEWARE])
        minimal = 20 if lines <= 6 else 10 if lines <= 15 else 0
    explained = 10 * (named and effect)
    if _sends_token(changed.get(CLIENT, "")) and not fixed and not explained:
        minimal = 10  # it works, but for this client only
    return {"found": 20 * named, "fixed": 50 * fixed, "minimal": minimal, "explained": explained}


def pagination_features(files: Mapping[str, str]) -> dict[str, bool]:
    """2.2, four features: parameters, default, metadata, bounds."""
    app = PythonCode(files.get("app.py", ""))
    keywords = {node.arg for node in app.nodes if isinstance(node, ast.keyword) and node.arg}
    reads = {"page", "per_page"} <= app.strings and "args" in app.attributes
    return {
        "parameters": reads,
        "default of 10": reads and 10 in app.numbers,
        "metadata": {"total", "page", "per_page", "pages"} <= (app.strings | keywords),
        "bounds": reads and {100, 400} <= app.numbers,
    }


def changed_files(files: Mapping[str, str]) -> dict[str, str]:
    """The files of the Express app that differ from the original."""
    return {path: code for path, code in files.items() if _changed_lines(task_file(f"express/{path}"), code)}


def _changed_lines(before: str, after: str) -> int:
    """The number of added or of removed lines, whichever is larger; trailing space is ignored."""
    old, new = ([line.rstrip() for line in text.strip().splitlines()] for text in (before, after))
    marks = [line[:2] for line in difflib.ndiff(old, new)]
    return max(marks.count("+ "), marks.count("- "))


def _reads_bearer(code: str) -> bool:
    """Whether a middleware takes the token out of ``Authorization: Bearer TOKEN`` and refuses all else."""
    live = re.sub(r"//[^\n]*|/\*.*?\*/", "", code, flags=re.DOTALL)
    header = re.search(
        r"headers(?:\[\s*['\"`]authorization['\"`]\s*\]|\.authorization)|\.(?:get|header)\(\s*['\"`]authorization['\"`]",
        live,
        re.IGNORECASE,
    )
    token = re.search(r"split\(|slice\(\s*7|substr(?:ing)?\(\s*7|replace\(|match\(|\.exec\(|startsWith\(", live)
    bare = strip_comments_and_strings(live)
    balanced = all(bare.count(left) == bare.count(right) for left, right in ("{}", "()", "[]"))
    return bool(header and token and balanced and "401" in live and re.search(r"\bnext\s*\(", live))


def _sends_token(code: str) -> bool:
    return bool(re.search(r"['\"`]?x-auth-token['\"`]?\s*:\s*\S*token", code, re.IGNORECASE))
