"""Category 1: what can be read off the code of 1.1 to 1.3, on its syntax tree where there is one. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gpubox.bench.kinds.shared import parse_python

Features = dict[str, bool]
LONGEST_SHOWN = 100
_REFRESHES = (
    r"\.(?:delete|set|add|splice|unshift|push)\(|\w*(?:move|touch|promote|remove|refresh|link"
    r"|front|head|tail|attach|bump|recent|insert)\w*\("
)
"""What a ``get`` calls that makes its entry the newest."""


def todo_features(code: str) -> Features:
    """1.1, ten of them; SQL is what reaches the database, not what stands in some string."""
    tree = parse_python(code)
    calls = list(_calls(tree))
    executed = [call for call in calls if _name(call) in ("execute", "executemany", "executescript")]
    sql = _sql(tree, executed)
    return {
        "imports sqlite3": _imports(tree, "sqlite3"),
        "imports argparse": _imports(tree, "argparse"),
        "subcommands": any(_name(c) in ("add_subparsers", "add_parser") for c in calls) or _has_choices(calls),
        "creates its table": "CREATE TABLE" in sql,
        "inserts": "INSERT INTO" in sql or "INSERT OR" in sql,
        "selects": "SELECT " in sql,
        "updates": "UPDATE " in sql,
        "deletes": "DELETE FROM" in sql,
        "parameters in SQL": bool(executed) and not any(_built(call) for call in executed),
        "pretty output": _pretty(tree),
    }


def shortener_features(code: str) -> Features:
    """1.2, eight of them."""
    tree = parse_python(code)
    calls = list(_calls(tree))
    names = {_name(call) for call in calls} | _words(tree)
    sql = _sql(tree, [call for call in calls if _name(call) in ("execute", "executemany", "executescript")])
    routes = _routes(tree)
    numbers = {n.value for n in _constants(tree) if isinstance(n.value, int)}
    return {
        "FastAPI app": any(_name(call) == "FastAPI" for call in calls) and _imports(tree, "fastapi"),
        "POST /shorten": any(route.startswith("post /shorten") for route in routes),
        "redirect": bool({"RedirectResponse", "Location"} & names) and any(
            re.fullmatch(r"get /\{\w+(:\w+)?\}", route) for route in routes
        ),
        "sqlite": _imports(tree, "sqlite3") and "CREATE TABLE" in sql,
        "URL validation": bool(
            {"HttpUrl", "AnyUrl", "AnyHttpUrl", "urlparse", "urlsplit", "validators", "match", "fullmatch"} & names
        ),
        "rate limit": (429 in numbers or any("429" in name for name in names) or "RateLimitExceeded" in names) and bool(
            {"client", "get_remote_address"} & names
        ),
        "safe codes": "secrets" in names or "UNIQUE" in sql or "PRIMARY KEY" in sql or any(
            isinstance(node, ast.While) for node in (ast.walk(tree) if tree else ())
        ),
        "stats and 404": any("stats" in route for route in routes) and (
            404 in numbers or any("404" in name for name in names)
        ),
    }  # fmt: skip


def lru_features(code: str) -> Features:
    """1.3, six of them, with comments and strings taken out."""
    bare = strip_comments_and_strings(code)
    get = _method(bare, "get")
    return {
        "generic class": bool(re.search(r"class\s+\w*LRU\w*\s*<\s*\w+[^>]*,\s*\w+[^>]*>", bare, re.IGNORECASE)),
        "Map or linked list": bool(re.search(r"new Map\b|\b(prev|next)\b\s*[?!]?\s*[:=]", bare)),
        "get and put": bool(get) and bool(_method(bare, "put") or _method(bare, "set")),
        "evicts": bool(re.search(r"size\s*(>=?|===?)\s*(this\.)?#?_?(capacity|max\w*|limit)", bare, re.IGNORECASE)),
        "get refreshes": bool(re.search(_REFRESHES, get)),
        "five assertions": len(re.findall(r"\b(?:console\.)?assert\w*(?:\.\w+)?\s*\(|\bexpect\s*\(", bare)) >= 5,
    }


def strip_comments_and_strings(code: str) -> str:
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


def _constants(tree: ast.Module | None) -> Iterator[ast.Constant]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant)) if tree else iter(())


def _words(tree: ast.Module | None) -> set[str]:
    """Every name and attribute that is used, and each string that names a header."""
    found: set[str] = set()
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and node.value == "Location":
            found.add("Location")
    return found


def _sql(tree: ast.Module | None, executed: list[ast.Call]) -> str:
    """The text of what is executed: strings given to calls, and what a name in an executed call stands for."""
    if tree is None or not executed:
        return ""
    given = [
        call for call in _calls(tree) if _name(call) not in ("print", "add_argument", "add_parser", "ArgumentParser")
    ]
    inside = [node for call in given for argument in (*call.args, *(k.value for k in call.keywords))
              for node in ast.walk(argument)]  # fmt: skip
    first = [node for call in executed for argument in call.args[:1] for node in ast.walk(argument)]
    names = {node.id for node in first if isinstance(node, ast.Name)}
    names |= {node.attr for node in first if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(getattr(one, "id", getattr(one, "attr", None)) in names for one in targets):
                inside += ast.walk(node.value)
    return "\n".join(n.value for n in inside if isinstance(n, ast.Constant) and isinstance(n.value, str)).upper()


def _routes(tree: ast.Module | None) -> set[str]:
    """``get /{code}`` of each decorated function."""
    found = set()
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in node.decorator_list:
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("get", "post")
            ):
                given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "path")]
                paths = [n.value for n in given if isinstance(n, ast.Constant)]
                found |= {f"{call.func.attr} {path}" for path in paths if isinstance(path, str)}
    return found


def _imports(tree: ast.Module | None, module: str) -> bool:
    for node in ast.walk(tree) if tree else ():
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


def _pretty(tree: ast.Module | None) -> bool:
    """A width in an f-string, padding, a table, or a mark of the status in what is printed."""
    if tree is None:
        return False
    calls = [call for call in _calls(tree) if _name(call) in ("print", "echo", "write", "append", "join")]
    shown = [node for call in calls for node in ast.walk(call)]
    # A mark that is chosen apart from where it is printed is short; what is longer is SQL.
    shown += [side for node in ast.walk(tree) if isinstance(node, ast.IfExp) for side in (node.body, node.orelse)]
    strings = [n.value for n in shown if isinstance(n, ast.Constant) and len(str(n.value)) < LONGEST_SHOWN]
    marks = r"[✓✔✗✘☐☑☒□■●○✅❌⬜]|\[[xX ✓✔]?\]|[-=─━]{8,}|^\W*(?:done|pending|open|todo|completed)\W*$"
    if any(isinstance(s, str) and re.search(marks, s, re.IGNORECASE) for s in strings):
        return True
    widths = (n for n in ast.walk(tree) if isinstance(n, ast.FormattedValue) and n.format_spec is not None)
    return any(True for _ in widths) or any(_name(c) in ("ljust", "rjust", "center", "tabulate") for c in _calls(tree))
