"""Where the code in a reply is: its blocks, however they are marked, and the program that they make. Pure.

The chat runs only what a fence calls Python or shell (``fenced_program``). Benchmarks, which grade an answer that has
to have code in it, look further: unlabelled and unclosed fences, tags, and code in the prose without any mark.
"""

from __future__ import annotations

import ast
import builtins
import html
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

PYTHON, SCRIPT = "python", "script"
_NAMES = {
    PYTHON: ("python", "py", "python3", "py3", "ipython"),
    SCRIPT: ("typescript", "ts", "tsx", "mts", "cts", "javascript", "js", "jsx", "mjs", "cjs", "node", "ecmascript"),
    "": ("code", "text", "txt", "plain", "plaintext"),
}
_LANGUAGE_OF = {name: language for language, names in _NAMES.items() for name in names}
PROGRAM_LANGUAGES = frozenset({PYTHON, "tool_code", "execute", "run"})
SHELL_LANGUAGES = frozenset({"bash", "sh", "shell"})
"""What the chat runs."""
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_TAG_SEPARATOR = re.compile(r"[\s:={}\"',;()\[\]]+")
_PATH = re.compile(r"(?<![\w/])(?:\./)?((?:[\w.-]+/)*[\w.-]+\.(?:py|tsx?|mts|m?js|cjs))(?![\w/])", re.IGNORECASE)
MAX_HEADING_CHARACTERS = 200
"""A longer line is not searched for a file name."""
MAX_RUNS, MAX_ENDS = 40, 40
"""How many lines are tried as the first line of code without a mark, and how many as the last one of each."""
_CODE_START = re.compile(
    r"[ \t]*(?:import |from \w|def |class |async |#!|@\w|\w+ ?= ?\S|export |const |let |function |interface "
    r"|type \w+ ?[=<]|'use strict|\"use strict|module\.exports|#|//|/\*|\"\"\"|''')"
)
_SCRIPT_END = re.compile(r"[;})\]]\s*(?://.*)?$")
_MARKS = re.compile(r"`+(?:\{?\.?python\d?\}?)?|~{3,}|</?\w+[^<>\n]*>|\[/?[A-Z]{2,}\]|^[ \t]*(?:>>>|\.\.\.|>) ?", re.M)
_TESTS = frozenset({"unittest", "doctest", "pytest"})


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """One piece of code in a text."""

    code: str
    language: str = ""
    """PYTHON, SCRIPT, or the word of its fence in lower case; empty if it is not said."""
    path: str = ""
    """Of the file that it is: from its heading, its fence or its first line."""
    closed: bool = True
    """Whether the text goes on after its closing fence."""
    start: int = 0
    """Position of the opening fence in the text."""
    end: int = 0

    @property
    def is_program(self) -> bool:
        """Whether it is marked as Python or as shell commands."""
        return self.language in PROGRAM_LANGUAGES | SHELL_LANGUAGES and bool(self.code.strip())

    @property
    def name(self) -> str:
        """The file's name without its folders."""
        return self.path.rpartition("/")[2].lower()


def fenced_blocks(text: str) -> list[CodeBlock]:
    """The fenced blocks in order. As in CommonMark, a block ends at a fence at least as long as its opening fence."""
    blocks: list[CodeBlock] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    start = position = 0

    def add_block(fence: re.Match[str], closed: bool) -> None:
        code = "".join(line.removeprefix(fence[1]) for line in lines)
        words = [word for word in _TAG_SEPARATOR.split(fence[3]) if word]
        path = next((match[1] for word in words if (match := _PATH.fullmatch(word))), "")
        language = words[0].lower().lstrip(".") if words and not _PATH.fullmatch(words[0]) else ""
        language = _LANGUAGE_OF.get(language, language)
        blocks.append(CodeBlock(code, language, path, closed, start, position))

    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line.rstrip("\r\n"))
        line_start, position = position, position + len(line)
        if opening is None:
            if fence:
                opening, lines, start = fence, [], line_start
        elif fence and fence[2].startswith(opening[2]) and not fence[3].strip():
            add_block(opening, True)
            opening = None
        else:
            lines.append(line)
    if opening is not None:
        add_block(opening, False)
    return blocks


def python_program(text: str) -> tuple[str, bool]:
    """``(code, closed)``: the Python blocks of ``text`` joined to one program; ``code`` is empty if there is none.

    The blocks of one reply belong together: the second often calls what the first defines.
    """
    return _joined(fenced_blocks(text), PROGRAM_LANGUAGES)


def fenced_program(text: str) -> tuple[str, bool, bool]:
    """``(code, closed, shell)`` of the program that a reply wants to run: of the kind of its first block."""
    programs = [block for block in fenced_blocks(text) if block.is_program]
    shell = bool(programs) and programs[0].language in SHELL_LANGUAGES
    return (*_joined(programs, SHELL_LANGUAGES if shell else PROGRAM_LANGUAGES), shell)


def _joined(blocks: Sequence[CodeBlock], languages: frozenset[str]) -> tuple[str, bool]:
    programs = [block for block in blocks if block.language in languages and block.code.strip()]
    return "\n".join(block.code.rstrip() for block in programs), all(block.closed for block in programs)


def ends_with_program(text: str) -> bool:
    """Whether the last complete line of ``text`` closes a program's block."""
    complete = text[: text.rfind("\n") + 1].rstrip()
    if complete.rpartition("\n")[2].strip().strip("`~"):
        return False
    blocks = fenced_blocks(complete)
    return bool(blocks) and blocks[-1].closed and blocks[-1].is_program


def parse_python(code: str) -> ast.Module | None:
    """The syntax tree of a Python program; ``None`` if it does not parse."""
    return _parsed(code)[0]


def _parsed(code: str) -> tuple[ast.Module | None, int]:
    """The tree, or the number of the line that is wrong (0 if that is not known)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
            compile(tree, "<answer>", "exec", dont_inherit=True)  # finds `return` outside of a function, too
            return tree, 0
    except SyntaxError as error:
        return None, error.lineno or 0
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return None, 0


# --- Files and programs of any language, for the suite ---


def code_in(text: str, language: str, name: str) -> str:
    """The program in an answer; empty if there is none.

    Of several blocks it is the one called ``name``, else the last of those that are at least half as long as the
    longest, because a correction stands below what it corrects. What it lacks is taken from the others.
    """
    blocks = [block for block in code_blocks(text) if block.language in (language, "") and block.code.strip()]
    if language == SCRIPT:  # a class may be in one block and its tests in the next
        return "\n".join(block.code for block in blocks)
    longest = max((len(block.code) for block in blocks), default=0)
    rated = [(block.name == name, len(block.code) * 2 >= longest, n) for n, block in enumerate(blocks)]
    if not rated:
        return ""
    place = max(rated)[2]
    codes = [block.code for block in blocks]
    tree = parse_python(codes[place])
    if tree is None:
        return codes[place]
    used = {name for statement in tree.body for name in _uses(statement)}
    known = {name for node in ast.walk(tree) if isinstance(node, ast.stmt) for name in _binds(node)}
    return _hoisted(_missing_from(codes, place, used, known) + codes[place])


def code_blocks(text: str) -> list[CodeBlock]:
    """Every piece of code in order, with its file if it is named: fenced, else in tags, else without any mark."""
    text = plain_text(text)
    blocks, end = [], 0
    for block in fenced_blocks(text):
        path = block.path or _path_above(text[end : block.start]) or _path_in(block.code)
        language = block.language or _LANGUAGE_OF.get(path.rpartition(".")[2].lower(), "")
        blocks.append(replace(block, path=path, language=language))
        end = block.end
    return blocks or list(_bare_files(_without_marks(text) if "</pre>" in text else text))


def plain_text(text: str) -> str:
    """Without what editors and web pages put between the characters; a fence at the end of a line gets its own."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    text = re.sub("[\ufeff\u200b\u2060]", "", text)
    return re.sub(r"(?<=[^\s`])(`{3,})[ \t]*$", r"\n\1", text, flags=re.MULTILINE)


def _bare_files(text: str) -> Iterator[CodeBlock]:
    """Code without a fence: below lines that name a file, else the longest run of code in the prose."""
    lines = text.splitlines()
    headings = [place for place, line in enumerate(lines) if _is_heading(line)] or [-1]
    for place, end in zip(headings, [*headings[1:], len(lines)], strict=True):
        if code := _longest_code(lines[place + 1 : end]):
            path = _path_in_line(lines[place]) if place >= 0 else _path_in(code)
            yield CodeBlock(code, "", path)


def _longest_code(lines: list[str]) -> str:
    """The longest run of lines that parses as Python, else everything from the first to the last line like code."""
    longest = max(_python_runs("\n".join(lines)), key=len, default="")
    if longest.count("\n") >= 2 and re.search(r"^\s*(?:import|from|def|class)\b", longest, re.MULTILINE):
        return longest
    starts = [place for place, line in enumerate(lines) if _CODE_START.match(line)]
    ends = [place for place, line in enumerate(lines) if _SCRIPT_END.search(line)]
    return "\n".join(lines[starts[0] : ends[-1] + 1]) + "\n" if starts and ends and ends[-1] > starts[0] else ""


def _is_heading(line: str) -> bool:
    """Whether a line is a file name and little else."""
    match = _PATH.search(line) if len(line) <= MAX_HEADING_CHARACTERS else None
    if match is None or re.search(r"[;=({]|\bimport\b|\bpython\b|\bnode\b", line):
        return False
    return len(re.sub(r"[\W_]+", " ", line[: match.start()] + line[match.end() :]).split()) <= 3


def _path_above(text: str) -> str:
    lines = [line for line in text.rstrip().splitlines()[-2:] if line.strip()]
    return _path_in_line(lines[-1]) if lines else ""


def _path_in(code: str) -> str:
    """The path in a comment on the first line."""
    first = code.lstrip().partition("\n")[0].strip()
    is_comment = first.startswith(("//", "#", "/*", "<!--"))
    return _path_in_line(first) if is_comment and _is_heading(first) else ""


def _path_in_line(line: str) -> str:
    match = _PATH.search(line) if len(line) <= MAX_HEADING_CHARACTERS else None
    return match[1] if match else ""


# --- One Python function, for HumanEval ---


def function_in_blocks(blocks: Sequence[str], name: str, given: str = "") -> tuple[str, str] | None:
    """The program of the last block that defines the function ``name``, and that block; ``None`` if there is none.

    The program is what the function needs, also from other blocks, without examples of its use: they may read input.
    ``given`` is the code that the model was asked to complete: it stays ahead, because it may have imports and helpers.
    A definition without a body (``pass``, a docstring) is none.
    """
    blocks = [textwrap.dedent(block) for block in blocks]
    for place, code in reversed(list(enumerate(blocks))):
        tree = parse_python(code)
        if tree and any(_defines(statement, name) for statement in tree.body):
            own, needed, bound = _needed_part(code, tree, {name, "setrecursionlimit"}, stub=name)
            provided = parse_python(given)
            known = bound | {other for statement in provided.body for other in _binds(statement)} if provided else bound
            missing = _missing_from(blocks, place, needed, known)
            return _hoisted(f"{given}\n\n{missing}{own}\n"), code
    return None


def body_in_blocks(blocks: Sequence[str], name: str, given: str) -> tuple[str, str] | None:
    """The same for a block that is only the body of the function, which ``given`` ends with, however it is indented."""
    for code in reversed([block for block in blocks if not re.search(rf"\bdef {name}\b", block)]):
        for body in (code, textwrap.indent(textwrap.dedent(code), "    "), "    " + code.lstrip()):
            if re.search(r"\breturn\b|\byield\b", body) and parse_python(given + body):
                return given + body, code
    return None


def unmarked_readings(text: str) -> Iterator[list[str]]:
    """The runs of Python in a ``plain_text`` that has them without proper fences: as it stands, then without marks."""
    if "</pre>" not in text and "</code>" not in text:
        yield list(_python_runs(text))
    yield list(_python_runs(_without_marks(text)))


def _without_marks(text: str) -> str:
    if "</pre>" in text or "</code>" in text:
        text = html.unescape(re.sub(r"</?(?:pre|code)[^<>]*>", "\n", text))
    return _MARKS.sub("\n", text)


def _python_runs(text: str) -> Iterator[str]:
    """Every run of lines that parses, as long as it can be, from a line that looks like code."""
    lines = text.split("\n")
    place = tried = 0
    while place < len(lines) and tried < MAX_RUNS:
        run: list[str] = []
        if _CODE_START.match(lines[place]):
            tried += 1
            run = _longest_run(lines[place:])
            if any(line.strip() for line in run):
                yield "\n".join(run) + "\n"
        place += max(1, len(run))


def _longest_run(lines: list[str]) -> list[str]:
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    end = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(indent)), len(lines))
    run = [line.removeprefix(indent) for line in lines[:end]]
    for _ in range(MAX_ENDS):
        tree, wrong_line = _parsed("\n".join(run) + "\n")
        if tree or not run:
            return run
        run = run[: max(0, min(wrong_line, len(run)) - 1)]
    return []


def _missing_from(blocks: Sequence[str], place: int, needed: set[str], known: set[str]) -> str:
    """What the other blocks define of the names ``needed`` that the block at ``place`` lacks; the nearest one above."""
    parts: list[str] = []
    known = known | set(dir(builtins))
    for code in (*reversed(blocks[:place]), *blocks[place + 1 :]):
        lacking = needed - known
        tree = parse_python(code) if lacking else None
        if tree:
            part, needs, binds = _needed_part(code, tree, lacking)
            needed, known = needed | needs, known | binds
            parts.insert(0, f"{part}\n\n" if part else "")
    return "".join(parts)


def _needed_part(code: str, tree: ast.Module, names: set[str], stub: str = "") -> tuple[str, set[str], set[str]]:
    """The statements that ``names`` need, the names that those need, and the names that they bind.

    ``stub``: the function of this name is left out where it has no body.
    """
    needed, bound, lines_kept = set(names), set[str](), set[int]()
    waiting = [statement for statement in tree.body if not (stub and _is_stub(statement, stub))]
    while taken := [statement for statement in waiting if _is_needed(statement, needed, stub)]:
        waiting = [statement for statement in waiting if statement not in taken]
        for statement in taken:
            needed |= _uses(statement)
            bound |= _binds(statement)
            decorators = getattr(statement, "decorator_list", [])
            first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
            lines_kept.update(range(first, (statement.end_lineno or first) + 1))
    kept = [line for number, line in enumerate(code.split("\n"), 1) if number in lines_kept]
    return "\n".join(kept), needed, bound


def _is_needed(statement: ast.stmt, needed: set[str], function: str) -> bool:
    if isinstance(statement, ast.ImportFrom) and (statement.module == "__future__" or statement.names[0].name == "*"):
        return True
    binds = _binds(statement)
    if isinstance(statement, ast.Import | ast.ImportFrom) and function in binds:
        return False  # a test that imports what was asked for
    uses_function = function in _uses(statement) and not isinstance(statement, _Definition | ast.Assign)
    return bool(binds & needed) and (function in binds or not uses_function)


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _binds(statement: ast.stmt) -> set[str]:
    """The names that a statement defines or changes the value of."""
    if isinstance(statement, _Definition):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, _Definition):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(_root(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names |= {_root(node.func), node.func.attr} & {_root(node.func), "setrecursionlimit"}
    return names - {""} - _TESTS


def _root(node: ast.expr) -> str:
    """``x`` of ``x.y[0].z``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _uses(statement: ast.stmt) -> set[str]:
    """The names from outside that a statement reads or changes."""
    nodes = list(ast.walk(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if isinstance(statement, _Definition):
        names -= {node.arg for node in nodes if isinstance(node, ast.arg)}
        names -= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {name for node in nodes if isinstance(node, ast.Global) for name in node.names}


def _defines(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
    return isinstance(statement, ast.FunctionDef) and statement.name == name and not _is_stub(statement, name)


def _is_stub(statement: ast.stmt, name: str) -> bool:
    """Whether it only announces the function ``name``."""
    if not isinstance(statement, ast.FunctionDef) or statement.name != name:
        return False
    nothing = (ast.Pass, ast.Raise)
    return all(
        isinstance(line, nothing) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in statement.body
    )


def _hoisted(program: str) -> str:
    """With its ``from __future__`` lines at the top, where Python wants them."""
    pattern = re.compile(r"^from __future__ import [^\n#;]+", re.MULTILINE)
    return "\n".join([*dict.fromkeys(pattern.findall(program)), pattern.sub("", program)])
