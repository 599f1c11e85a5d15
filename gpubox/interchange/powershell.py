"""Reads the commands of a PowerShell text without running anything.

It reads variables, ``$env:NAME``, arrays with ``+=``, splatting, ``&``, backticks at the end of a line and
``Start-Process`` (about_Parsing, about_Quoting_Rules, about_Splatting). What only PowerShell can evaluate stays as
written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpubox.interchange.format import Format, Reading
from gpubox.interchange.script import (
    ExpansionBudget,
    ScriptAssignments,
    ScriptCommand,
    ScriptValue,
    joined_values,
    joined_words,
)

_EVALUATED = re.compile(r"\(|\[|[A-Za-z]+-[A-Za-z]+\b|(?:if|switch|foreach)\b")
_ASSIGNMENT = re.compile(r"(?:\[[\w.\[\]]+\]\s*)?\$(env:)?\{?(\w+)\}?\s*(\+?=)\s*(.*)", re.S | re.I)
_PARAMETER = re.compile(r"""\$()(\w+)\s*(=)\s*("[^"]*"|'[^']*'|[^\s,)]+)""")
_STARTS = re.compile(r"&|(?:Start-Process|saps)\b", re.I)
"""In ``$process = Start-Process ...`` a command runs."""
_JOINED_PATH = re.compile(r"\(?\s*Join-Path\s+([^()]+?)\)?", re.S | re.I)
_REDIRECTION = re.compile(r"[\d*]?>>?(?:&\d)?(.*)", re.S)
_VARIABLE = re.compile(r"`(.)|\$\{(env:)?(\w+)\}|\$(env:)?(\w+)|\$\((?:[^()]|\([^()]*\))*\)", re.I | re.S)
_TOKEN = re.compile(
    r"""\s+|(?P<open>@\()|(?P<single>'(?:[^']|'')*'?)|(?P<double>"(?:`.|""|[^"`])*"?)|(?P<comma>,)"""
    r"""|(?P<splat>@\w+)|(?P<plain>(?:`.|\$\((?:[^()]|\([^()]*\))*\)|[^\s,'"`])+|`)""",
    re.S,
)


def looks_like_powershell(text: str) -> bool:
    """Whether a pasted text is PowerShell: other shells have no ``$name =``."""
    return bool(re.search(r"^[ \t]*\$(?:env:)?\w+[ \t]*\+?=|^[ \t]*(?:Start-Process|param[ \t]*\()", text, re.M | re.I))


def read_powershell(text: str) -> Reading:
    """The commands and assignments of ``text``. Raises UsageError if its variables expand to too much text."""
    return _PowerShell().read(text)


class _PowerShell:
    def __init__(self) -> None:
        self.variables: dict[str, ScriptValue] = {}
        self.env: dict[str, str] = {}
        self.assignments = ScriptAssignments()
        self.unresolved: list[str] = []
        self.evaluated: set[str] = set()
        """Right sides that only PowerShell can evaluate, as written."""
        self.budget = ExpansionBudget()

    def read(self, text: str) -> Reading:
        commands: list[ScriptCommand] = []
        for statement in _statements(text):
            self.unresolved = []
            match = _ASSIGNMENT.fullmatch(statement)
            if match and not _STARTS.match(match[4]):
                self._assign(match, statement)
                continue
            if re.match(r"param\s*\(", statement, re.I):
                for parameter in _PARAMETER.finditer(statement):
                    self._assign(parameter, parameter[0])
                continue
            command, dropped = _without_output(match[4] if match else statement)
            words = self._words(command)
            if words[:1] in (["&"], ["."]):
                words = words[1:]
            if words and words[0].lower() in {"start-process", "saps"}:
                words = _start_process(words)
            unresolved = tuple(dict.fromkeys(self.unresolved))
            if words:
                words = [f"${match[2]}", "=", *words] if match else words
                commands.append(ScriptCommand(tuple(words), dict(self.env), unresolved, (), statement, dropped=dropped))
        return Reading(commands, assignments=self.assignments)

    def _assign(self, match: re.Match[str], statement: str) -> None:
        env, name, operator, right = match.groups()
        value = self._value(right)
        if env:
            self.env[name] = value if isinstance(value, str) else " ".join(value)
            return
        old = self.variables.get(name.lower())
        if operator == "+=" and old is not None:
            value = joined_values(old, value)
        self.variables[name.lower()] = value
        self.assignments.add(name, statement, appends=operator == "+=")

    def _value(self, text: str) -> ScriptValue:
        text = text.strip()
        if text.startswith("@("):
            return self._words(text.removeprefix("@(").removesuffix(")"), commas=True)
        if joined := _JOINED_PATH.fullmatch(text):
            parts = [word for word in self._words(joined[1]) if not re.fullmatch(r"-(?:Child)?Path", word, re.I)]
            return "\\".join(part.strip("\\") for part in parts)
        if _EVALUATED.match(text):
            self.evaluated.add(text)
            return text
        words = self._words(text, commas=True)
        return words[0] if len(words) == 1 and "," not in text else words if "," in text else " ".join(words)

    def _words(self, text: str, *, commas: bool = False) -> list[str]:
        """The words of a command; with ``commas`` the items of a list."""
        pieces: list[str | None] = []
        for token in _TOKEN.finditer(text):
            piece = self._piece(token)
            if token["comma"] and not commas:
                while pieces and pieces[-1] is None:  # a comma belongs to the words around it
                    pieces.pop()
                pieces += [","] if pieces else []
            elif isinstance(piece, str) and not commas:
                pieces.append(piece)
            else:
                for item in [piece] if isinstance(piece, str) else piece:
                    pieces += [None, item]
                pieces.append(None)
        return joined_words(pieces)

    def _piece(self, token: re.Match[str]) -> ScriptValue:
        """The value of a quoted text, a variable or a plain text; no items for other tokens."""
        plain = token["plain"]
        if token["single"]:
            return token["single"].strip("'").replace("''", "'")
        if token["double"]:
            return self._expand(token["double"][1:].removesuffix('"').replace('""', '"'))
        if token["splat"]:
            return self._lookup(token["splat"][1:], token["splat"])
        if not plain or plain in {"(", ")"}:
            return []
        bare = re.fullmatch(r"\$(\w+)", plain)
        return self._lookup(bare[1], plain) if bare else self._expand(plain)

    def _lookup(self, name: str, raw: str) -> ScriptValue:
        value = self.variables.get(name.lower())
        if value is None:
            self.unresolved.append(raw)
            return raw
        if isinstance(value, str) and value in self.evaluated:
            self.unresolved.append(value)
        self.budget.spend(sum(map(len, value)))
        return value

    def _expand(self, text: str) -> str:
        def replacement(match: re.Match[str]) -> str:
            if match[1]:
                return {"n": "\n", "t": "\t", "0": ""}.get(match[1], match[1])
            env, name = match[2] or match[4], match[3] or match[5]
            if name and env:
                if name in self.env:
                    return self.env[name]
                if name.upper() in {"USERPROFILE", "HOME"}:
                    return "~"
            elif name:
                if name.lower() == "home" and "home" not in self.variables:
                    return "~"
                value = self._lookup(name, match[0])
                return value if isinstance(value, str) else " ".join(value)
            self.unresolved.append(match[0])
            return match[0]

        return _VARIABLE.sub(replacement, text)


def _without_output(statement: str) -> tuple[str, tuple[str, ...]]:
    """A command without its redirections and the programs that get its output, and those."""
    kept, dropped = "", []
    tokens = iter(_TOKEN.finditer(statement))
    for token in tokens:
        plain = token["plain"] or ""
        if plain.startswith("|"):
            dropped.append(statement[token.start() :])
            break
        if redirection := _REDIRECTION.fullmatch(plain):
            target = (
                ""
                if redirection[1] or "&" in plain
                else "".join(t[0] for t in (next(tokens, ()), next(tokens, ())) if t)
            )
            dropped.append(plain + target)
        else:
            kept += token[0]
    return kept, tuple(dropped)


def _statements(text: str) -> Iterator[str]:
    """The statements of ``text``, without comments, with continued lines joined; those of each block on their own."""
    text = re.sub(r"<#.*?(?:#>|\Z)", "", text, flags=re.S)
    text = re.sub(r"`[ \t]*\n", " ", text)
    current: list[str] = []
    depth = 0
    for token in re.finditer(
        r"""'(?:[^']|'')*'?|"(?:`.|""|[^"`])*"?|`.|\$\{[^}]*\}|@\{[^}]*\}|(?<!\S)\#[^\n]*|[(){}\n;]|[^'"`(){}\n;\#$@]+|[#$@]""",
        text,
        re.S,
    ):
        piece = token[0]
        if piece.startswith("#") and len(piece) > 1:
            continue
        depth = max(0, depth + (piece == "(") - (piece == ")"))
        if piece in {"\n", ";", "{", "}"} and depth == 0:
            if statement := "".join(current).strip():
                yield statement
            current = []
        else:
            current.append(piece)
    if statement := "".join(current).strip():
        yield statement


def _start_process(words: list[str]) -> list[str]:
    """The command that ``Start-Process`` starts; the options of Start-Process stay before it, for the note."""
    program = ""
    arguments: list[str] = []
    before = [words[0]]
    at = 1
    while at < len(words):
        word = words[at]
        at += 1
        if word.lower() in {"-filepath", "-file"} and at < len(words):
            program, at = words[at], at + 1
        elif word.lower() in {"-argumentlist", "-args"}:
            while at < len(words) and not re.fullmatch(
                r"-(?:NoNewWindow|Wait|PassThru|WindowStyle|Verb|Redirect\w+|WorkingDirectory)", words[at], re.I
            ):
                items = words[at].split() if not arguments and " " in words[at] else [words[at]]
                arguments += [item for piece in items for item in piece.split(",") if item]
                at += 1
        elif not word.startswith("-") and not program:
            program = word
        else:
            before.append(word)
    return [*before, program, *arguments]


FORMAT = Format(".ps1", lambda text, path: read_powershell(text), r".*\.ps1", looks_like_powershell)
