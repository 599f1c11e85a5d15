"""Category 1: the features of the code of 1.1 to 1.3, read off its syntax tree where there is one. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from gpubox.agent.code_answer import parse_python

Features = dict[str, bool]
MAX_STATUS_CHARACTERS = 100
"""A longer string is no status mark but SQL."""
_REFRESHES = (
    r"\.(?:delete|set|add|splice|unshift|push)\(|\w*(?:move|touch|promote|remove|refresh|link"
    r"|front|head|tail|attach|bump|recent|insert)\w*\("
)
"""Calls by which a ``get`` makes its entry the newest."""
_EXECUTES = ("execute", "executemany", "executescript")


class PythonCode:
    """The syntax tree of a program as a list of nodes; empty if it does not parse."""

    def __init__(self, code: str) -> None:
        self.nodes = list(ast.walk(parse_python(code) or ast.Module([], [])))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.called = {called_name(call) for call in self.calls}
        self.strings = set(_strings(self.nodes))
        self.numbers = {node.value for node in self.nodes if isinstance(node, ast.Constant) and type(node.value) is int}
        self.attributes = {node.attr for node in self.nodes if isinstance(node, ast.Attribute)}
        self.names = self.attributes | {node.id for node in self.nodes if isinstance(node, ast.Name)}

    def imports(self, module: str) -> bool:
        modules = [alias.name for node in self.nodes if isinstance(node, ast.Import) for alias in node.names]
        modules += [node.module or "" for node in self.nodes if isinstance(node, ast.ImportFrom)]
        return any(name.split(".")[0] == module for name in modules)

    def calls_of(self, *names: str) -> list[ast.Call]:
        return [call for call in self.calls if called_name(call) in names]

    @property
    def sql(self) -> str:
        """The strings that may be executed, in capitals: arguments of calls, and values of the names they use."""
        executed = self.calls_of(*_EXECUTES)
        if not executed:
            return ""
        not_sql = ("print", "add_argument", "add_parser", "ArgumentParser")
        nodes = [
            node
            for call in self.calls
            if called_name(call) not in not_sql
            for argument in (*call.args, *(keyword.value for keyword in call.keywords))
            for node in ast.walk(argument)
        ]
        used = [node for call in executed for argument in call.args[:1] for node in ast.walk(argument)]
        names = {getattr(node, "id", getattr(node, "attr", "")) for node in used} - {""}
        for assignment in self.nodes:
            if isinstance(assignment, ast.Assign | ast.AnnAssign) and assignment.value is not None:
                targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
                if any(getattr(target, "id", getattr(target, "attr", None)) in names for target in targets):
                    nodes += ast.walk(assignment.value)
        return "\n".join(_strings(nodes)).upper()


def _strings(nodes: Iterable[ast.AST]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def called_name(call: ast.Call) -> str:
    """``execute`` of ``db.execute(...)``."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def todo_features(code: str) -> Features:
    """1.1, ten features. SQL is what reaches the database, not any string."""
    program = PythonCode(code)
    executed, sql = program.calls_of(*_EXECUTES), program.sql
    choices = (keyword.arg == "choices" for call in program.calls_of("add_argument") for keyword in call.keywords)
    return {
        "imports sqlite3": program.imports("sqlite3"),
        "imports argparse": program.imports("argparse"),
        "subcommands": bool({"add_subparsers", "add_parser"} & program.called) or any(choices),
        "creates its table": "CREATE TABLE" in sql,
        "inserts": "INSERT INTO" in sql or "INSERT OR" in sql,
        "selects": "SELECT " in sql,
        "updates": "UPDATE " in sql,
        "deletes": "DELETE FROM" in sql,
        "parameters in SQL": bool(executed) and not any(_is_formatted(call) for call in executed),
        "pretty output": _is_pretty(program),
    }


def shortener_features(code: str) -> Features:
    """1.2, eight features."""
    program = PythonCode(code)
    names, sql, routes = program.names, program.sql, _routes(program)

    def status(code: int) -> bool:
        return code in program.numbers or any(str(code) in name for name in names)

    redirects = any(re.fullmatch(r"get /\{\w+(:\w+)?\}", route) for route in routes)
    validators = {"HttpUrl", "AnyUrl", "AnyHttpUrl", "urlparse", "urlsplit", "validators", "match", "fullmatch"}
    loops = any(isinstance(node, ast.While) for node in program.nodes)
    return {
        "FastAPI app": "FastAPI" in program.called and program.imports("fastapi"),
        "POST /shorten": any(route.startswith("post /shorten") for route in routes),
        "redirect": redirects and ("RedirectResponse" in names or "Location" in {*names, *program.strings}),
        "sqlite": program.imports("sqlite3") and "CREATE TABLE" in sql,
        "URL validation": bool(validators & names),
        "rate limit": (status(429) or "RateLimitExceeded" in names) and bool({"client", "get_remote_address"} & names),
        "safe codes": "secrets" in names or "UNIQUE" in sql or "PRIMARY KEY" in sql or loops,
        "stats and 404": any("stats" in route for route in routes) and status(404),
    }


def lru_features(code: str) -> Features:
    """1.3, six features, with comments and strings taken out."""
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
    """The body of a method; empty if there is none."""
    head = re.search(rf"(?:^|[\s;}}])(?:public\s+)?{name}\s*\([^)]*\)\s*(?::[^{{=]+)?\{{", code)
    if not head:
        return ""
    depth, start = 1, head.end()
    for place in range(start, len(code)):
        depth += (code[place] == "{") - (code[place] == "}")
        if not depth:
            return code[start:place] or " "
    return code[start:]


def _routes(program: PythonCode) -> set[str]:
    """``get /{code}`` for each decorated function."""
    functions = (node for node in program.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {
        f"{call.func.attr} {path}"
        for function in functions
        for call in function.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "post")
        for path in _strings([*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "path")])
    }


def _is_formatted(call: ast.Call) -> bool:
    """Whether the SQL is built from values instead of using parameters."""
    if not call.args:
        return False
    sql = call.args[0]
    if isinstance(sql, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in sql.values)
    if isinstance(sql, ast.BinOp):
        parts = [node for node in ast.walk(sql) if isinstance(node, ast.expr) and node is not sql]
        return not all(isinstance(part, ast.Constant) for part in parts)
    return isinstance(sql, ast.Call) and called_name(sql) == "format"


def _is_pretty(program: PythonCode) -> bool:
    """Whether the output has widths, padding, a table or status marks."""
    printed = [node for call in program.calls_of("print", "echo", "write", "append", "join") for node in ast.walk(call)]
    # A status mark may be chosen apart from where it is printed.
    printed += [side for node in program.nodes if isinstance(node, ast.IfExp) for side in (node.body, node.orelse)]
    marks = r"[✓✔✗✘☐☑☒□■●○✅❌⬜]|\[[xX ✓✔]?\]|[-=─━]{8,}|^\W*(?:done|pending|open|todo|completed)\W*$"
    strings = (text for text in _strings(printed) if len(text) < MAX_STATUS_CHARACTERS)
    if any(re.search(marks, text, re.IGNORECASE) for text in strings):
        return True
    widths = (isinstance(node, ast.FormattedValue) and node.format_spec is not None for node in program.nodes)
    return any(widths) or bool({"ljust", "rjust", "center", "tabulate"} & program.called)
