"""Reads the commands of a POSIX shell text without running anything.

It reads quotes, continuations, comments, assignments, arrays and simple ``$NAME`` expansions. What needs a shell
(``$(...)``, unset variables) stays as written and is listed in ``unresolved``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpubox.interchange.format import Format, Reading
from gpubox.interchange.script import (
    SERVER_VARIABLE,
    ExpansionBudget,
    ScriptAssignments,
    ScriptCommand,
    ScriptValue,
    joined_values,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)")
_REDIRECTION = re.compile(r"&>>?|\d*(?:<<<|<<-?|>>|>\||>&|<&|<>|[<>])")
_BRACED = re.compile(r"([A-Za-z_]\w*|[@*]|\d+)(\[[@*]\])?(?::?[-=](.*))?", re.S)
_NAMED = re.compile(r"\$([A-Za-z_]\w*|[@*#?\d])")
_RESERVED = {"if", "then", "else", "elif", "do", "while", "until", "{", "}", "!", "time"}
_DECLARES = {"export", "declare", "local", "readonly", "typeset"}
_ENDS = "\n;|&()"
_BREAKS = " \t\r<>" + _ENDS


def read_script(text: str, env: Mapping[str, str] | None = None) -> Reading:
    """The commands and the assignments of ``text``, in order. ``env`` is its environment.

    Raises UsageError if its variables expand to too much text.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("```"))  # a Markdown code block
    shell = _Shell("\n".join(lines), dict(env or {}), ExpansionBudget())
    return Reading(shell.commands(), assignments=shell.assignments)


class _Shell:
    def __init__(
        self, text: str, variables: dict[str, ScriptValue], budget: ExpansionBudget, read: set[str] | None = None
    ) -> None:
        self.text = text
        self.at = 0
        self.variables = variables
        self.budget = budget
        self.exported: set[str] = set()
        self.assignments = ScriptAssignments()
        self.read: set[str] = set() if read is None else read
        """The variables that the script itself uses."""
        self.dropped: list[str] = []
        self.own: dict[str, ScriptValue] = {}
        self.unresolved: list[str] = []
        self.depth = 0
        """Open ``if`` and ``case`` commands."""
        self.branched: dict[str, set[str]] = {}
        """Variable -> the variables set in branches that its value depends on."""
        self.used: set[str] = set()
        """The variables set in branches that the current command uses."""

    def commands(self) -> list[ScriptCommand]:
        commands = []
        while self.at < len(self.text):
            if command := self._command():
                commands.append(command)
        return commands

    def _command(self) -> ScriptCommand | None:
        words: list[str] = []
        self.own, self.unresolved, self.dropped = {}, [], []
        self.used = set()
        self._blanks()
        start = self.at
        dependencies: dict[str, set[str]] = {}
        while True:
            self._blanks()
            if self.at >= len(self.text):
                break
            if match := _REDIRECTION.match(self.text, self.at):
                begin, self.at = self.at, match.end()
                self._blanks()
                used = set(self.used)
                self.word()
                self.used = used  # the redirection is not part of the server
                self.dropped.append(self.text[begin : self.at])
            elif self.text[self.at] in _ENDS:
                self.at += 1
                break
            elif (not words or words[0] in _DECLARES) and (match := _ASSIGNMENT.match(self.text, self.at)):
                begin, self.at = self.at, match.end()
                used, self.used = self.used, set()
                old, value = self._lookup(match[1]) if match[2] == "+=" else None, self._value()
                self.assignments.add(match[1], self.text[begin : self.at], appends=match[2] == "+=")
                self.own[match[1]] = value if old is None else joined_values(old, value)
                dependencies[match[1]], self.used = self.used, used
                if match[2] == "+=":
                    dependencies[match[1]] |= self.branched.get(match[1], set())
            else:
                for word in self.word():
                    if words or word not in _RESERVED:
                        words.append(word)
                    self.depth += word == "if" and not words
        self.depth = max(0, self.depth + (words[:1] == ["case"]) - (words[:1] in (["fi"], ["esac"])))
        if not words or words[0] in _DECLARES or words[0] == ":":
            self.variables.update(self.own)
            self.branched |= {name: used | ({name} if self.depth else set()) for name, used in dependencies.items()}
            if words and (words[0] == "export" or "-x" in words):
                self.exported |= self.own.keys() | set(words[1:])
            return None
        exported = {name for name in self.exported & self.variables.keys() if self._is_for_programs(name)}
        values = {name: self.variables[name] for name in sorted(exported)} | self.own
        env = {name: value for name, value in values.items() if isinstance(value, str)}
        sets = [self.used, *(dependencies.get(name) or self.branched.get(name, set()) for name in env)]
        return ScriptCommand(
            tuple(words),
            env,
            tuple(dict.fromkeys(self.unresolved)),
            tuple(sorted(set().union(*sets))),
            self.text[start : self.at].strip(" \t\n;&|"),
            dropped=tuple(self.dropped),
        )

    def _is_for_programs(self, name: str) -> bool:
        """Whether an exported variable is for programs, not for the script itself."""
        return name not in self.read or bool(SERVER_VARIABLE.match(name))

    def _blanks(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _value(self) -> ScriptValue:
        """The right side of an assignment."""
        if not self.text.startswith("(", self.at):
            return "".join(self.word(split=False))
        self.at += 1
        items: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            self._blanks()
            if words := self.word():
                items += words
            elif not self.text.startswith(")", self.at):
                self.at += 1  # the end of a line, or a character that no list holds
        self.at += 1
        return items

    def word(self, *, split: bool = True) -> list[str]:
        """Reads one word; returns its fields after expansion: none, one or several."""
        fields = _Fields(self.budget)
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _BREAKS:
                break
            if char == "'":
                end = self.text.find("'", self.at + 1)
                end = len(self.text) if end < 0 else end
                fields.add(self.text[self.at + 1 : end])
                self.at = end + 1
            elif char == '"':
                self._double_quoted(fields)
            elif char == "\\":
                fields.add(self.text[self.at + 1 : self.at + 2].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                self._expand(fields, split=split)
            else:
                fields.add(char)
                self.at += 1
        return fields.done()

    def _double_quoted(self, fields: _Fields) -> None:
        self.at += 1
        lists = False
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in {"$", "`", '"', "\\", "\n"}:
                fields.add(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                lists |= self._expand(fields, split=False)
            else:
                fields.add(char)
                self.at += 1
        self.at += 1
        if not lists:
            fields.add("")  # "" is a field, an empty "$@" is none

    def _expand(self, fields: _Fields, *, split: bool) -> bool:
        """Expands the reference at this place into ``fields``. Returns whether it is a list of fields."""
        start = self.at
        if self.text.startswith("$'", start):
            self.at += 1  # $'...': its escapes are not read
            return False
        raw, name, default = self._reference()
        self.budget.spend(len(raw))
        self.at = start + len(raw)
        value: ScriptValue | None = self._lookup(name)
        self.used |= self.branched.get(name, set())
        if name == "HOME" and value is None and not fields.current:
            value = "~"
        if not value and default is not None:
            value = "".join(_Shell(default, dict(self.variables), self.budget, self.read).word(split=False))
            if re.match(r"\$\{\w+:?=", raw):
                self.variables[name] = value
                self.assignments.add(name, f"{name}={default}")
        if value is None:
            fields.add(raw)
            if raw != "$":
                self.unresolved.append(raw)
        elif isinstance(value, list) and (split or name in "@*" or "[@]" in raw):
            fields.extend(value)
            return True
        elif split and isinstance(value, str):
            fields.extend_split(value)
        else:
            fields.add(" ".join(value) if isinstance(value, list) else value)
        return False

    def _reference(self) -> tuple[str, str, str | None]:
        """The reference at this place: (as written, name of the variable or ``""``, default value)."""
        text, start = self.text, self.at
        if text[start] == "`":
            end = text.find("`", start + 1)
            return text[start : end + 1 if end > 0 else None], "", None
        if text.startswith("$(", start):
            return text[start : _closing(text, start + 1, "()")], "", None
        if text.startswith("${", start):
            raw = text[start : _closing(text, start + 1, "{}")]
            match = _BRACED.fullmatch(raw[2:-1])
            return (raw, match[1], match[3]) if match else (raw, "", None)
        match = _NAMED.match(text, start)
        return (match[0], match[1], None) if match else ("$", "", None)

    def _lookup(self, name: str) -> ScriptValue | None:
        if name in {"@", "*"}:
            return []  # the script's own arguments: there are none
        self.read.add(name)
        return self.own.get(name, self.variables.get(name))


class _Fields:
    """Collects the fields that one word expands to."""

    def __init__(self, budget: ExpansionBudget) -> None:
        self._budget = budget
        self._fields: list[str] = []
        self._parts: list[str] = []
        self._started = False

    @property
    def current(self) -> str:
        return "".join(self._parts)

    def add(self, text: str) -> None:
        self._budget.spend(len(text) + 1)
        self._parts.append(text)
        self._started = True

    def extend(self, values: list[str]) -> None:
        for i, value in enumerate(values):
            if i:
                self._flush()
            self.add(value)

    def extend_split(self, text: str) -> None:
        if text[:1].isspace():
            self._flush()
        self.extend(text.split())
        if text[-1:].isspace():
            self._flush()

    def _flush(self) -> None:
        if self._started:
            self._fields.append(self.current)
        self._parts, self._started = [], False

    def done(self) -> list[str]:
        self._flush()
        return self._fields


def _closing(text: str, at: int, pair: str) -> int:
    """The index after the bracket that closes the one at ``at``; the end of the text if none does."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    return len(text)


FORMAT = Format("a command line, .sh", lambda text, path: read_script(text), r".*\.(?:ba)?sh")
