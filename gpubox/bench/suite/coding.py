"""Category 1: what can be read off the code of 1.1 to 1.3, on its syntax tree where there is one. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gpubox.bench.syntax import parsed

Features = dict[str, bool]


def todo_features(code: str) -> Features:
    """1.1, ten of them."""
    tree = parsed(code)
    calls, strings = list(_calls(tree)), _strings(tree, code)
    sql = strings.upper()
    executed = [call for call in calls if _name(call) in ("execute", "executemany")]
    return {
        "imports sqlite3": _imports(tree, code, "sqlite3"),
        "imports argparse": _imports(tree, code, "argparse"),
        "subcommands": any(_name(c) in ("add_subparsers", "add_parser") for c in calls) or _has_choices(calls),
        "creates its table": "CREATE TABLE" in sql,
        "inserts": "INSERT INTO" in sql or "INSERT OR" in sql,
        "selects": "SELECT " in sql,
        "updates": "UPDATE " in sql,
        "deletes": "DELETE FROM" in sql,
        "parameters in SQL": bool(executed) and not any(_built(call) for call in executed),
        "pretty output": _pretty(tree, strings),
    }


def shortener_features(code: str) -> Features:
    """1.2, eight of them."""
    tree = parsed(code)
    strings = _strings(tree, code)
    calls = [_name(call) for call in _calls(tree)]
    routes = {f"{m} {p}" for m, p in re.findall(r"@\w+\.(get|post)\(\s*[rf]?[\"']([^\"']+)", code)}
    return {
        "FastAPI app": "FastAPI" in calls,
        "POST /shorten": any(route.startswith("post /shorten") for route in routes),
        "redirect": "RedirectResponse" in code and any(re.fullmatch(r"get /\{\w+(:\w+)?\}", r) for r in routes),
        "sqlite": _imports(tree, code, "sqlite3") and "CREATE TABLE" in strings.upper(),
        "URL validation": bool(re.search(r"HttpUrl|AnyUrl|AnyHttpUrl|urlparse|urlsplit|validators?\.", code)),
        "rate limit": "429" in code and bool(re.search(r"request\.client|get_remote_address|client\.host", code)),
        "safe codes": "secrets" in code or bool(re.search(r"while\b", code)) or "UNIQUE" in strings.upper()
        or "PRIMARY KEY" in strings.upper(),
        "stats and 404": any("stats" in route for route in routes) and "404" in code,
    }  # fmt: skip


def lru_features(code: str) -> Features:
    """1.3, six of them, with comments and strings taken out."""
    bare = without_text(code)
    get = _method(bare, "get")
    return {
        "generic class": bool(re.search(r"class\s+\w*LRU\w*\s*<\s*\w+[^>]*,\s*\w+[^>]*>", bare, re.IGNORECASE)),
        "Map or linked list": bool(re.search(r"new Map\b|\b(prev|next)\b\s*[?!]?\s*[:=]", bare)),
        "get and put": bool(get) and bool(_method(bare, "put") or _method(bare, "set")),
        "evicts": bool(re.search(r"size\s*(>=?|===?)\s*(this\.)?#?_?(capacity|max\w*|limit)", bare, re.IGNORECASE)),
        "get refreshes": bool(re.search(r"\.delete\(|\.(set|add)\(|move|touch|promote|remove|refresh", get)),
        "five assertions": len(re.findall(r"\b(?:console\.)?assert\w*(?:\.\w+)?\s*\(|\bexpect\s*\(", bare)) >= 5,
    }


def without_text(code: str) -> str:
    """TypeScript or JavaScript without comments and the content of strings."""
    pattern = r"//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|`(?:\\.|[^`\\])*`"
    return re.sub(pattern, lambda m: "" if m[0].startswith("/") else "''", code, flags=re.DOTALL)


def _method(code: str, name: str) -> str:
    """The body of a method; empty where there is none."""
    found = re.search(rf"(?:^|[\s;}}])(?:public\s+)?{name}\s*\([^)]*\)\s*(?::[^{{=]+)?\{{", code)
    if not found:
        return ""
    depth, start = 1, found.end()
    for place in range(start, len(code)):
        depth += (code[place] == "{") - (code[place] == "}")
        if not depth:
            return code[start:place] or " "
    return code[start:]


def _calls(tree: ast.Module | None) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree else iter(())


def _name(call: ast.Call) -> str:
    found = call.func
    return found.attr if isinstance(found, ast.Attribute) else found.id if isinstance(found, ast.Name) else ""


def _strings(tree: ast.Module | None, code: str) -> str:
    """Every string of the program, docstrings among them; of one that does not parse, its whole text."""
    if tree is None:
        return code
    return "\n".join(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def _imports(tree: ast.Module | None, code: str, module: str) -> bool:
    if tree is None:
        return bool(re.search(rf"^\s*(import|from)\s+{module}\b", code, re.MULTILINE))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == module for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == module:
            return True
    return False


def _has_choices(calls: list[ast.Call]) -> bool:
    return any(_name(call) == "add_argument" and any(k.arg == "choices" for k in call.keywords) for call in calls)


def _built(call: ast.Call) -> bool:
    """Whether the SQL is put together from values."""
    if not call.args:
        return False
    first = call.args[0]
    if isinstance(first, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in first.values)
    if isinstance(first, ast.BinOp):
        return not all(
            isinstance(n, ast.Constant) for n in ast.walk(first) if isinstance(n, ast.expr) and n is not first
        )
    return isinstance(first, ast.Call) and _name(first) == "format"


def _pretty(tree: ast.Module | None, strings: str) -> bool:
    """A width in an f-string, padding, a table, or a mark of the status."""
    if re.search(r"[✓✔✗✘☐☑□■●○]|\[[xX ✓]\]|[-=]{8,}", strings):
        return True
    if tree is None:
        return False
    widths = (n for n in ast.walk(tree) if isinstance(n, ast.FormattedValue) and n.format_spec is not None)
    return any(True for _ in widths) or any(_name(c) in ("ljust", "rjust", "center", "tabulate") for c in _calls(tree))
