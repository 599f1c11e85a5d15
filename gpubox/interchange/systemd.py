"""Reads the ``ExecStart=`` of a systemd service unit (systemd.service(5), systemd.syntax(7))."""

from __future__ import annotations

import re

from gpubox.interchange.limits import Budget
from gpubox.interchange.shell import Command

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


def read_unit(text: str) -> tuple[list[Command], list[str]]:
    """The commands that the unit starts, and what of it cannot be followed. Raises UsageError beyond all measure."""
    commands: list[Command] = []
    notes: list[str] = []
    env: dict[str, str] = {}
    lines: list[str] = []
    budget = Budget()
    for key, value in _assignments(text):
        if key == "Environment":
            for word in _words(value) if value else ():
                name, equals, content = word.partition("=")
                if equals:
                    env[name] = _specifiers(content)
        elif key == "EnvironmentFile":
            notes.append(f"The variables in {value.removeprefix('-')} are not in the profile.")
        elif key == "WorkingDirectory":
            notes.append(f"It ran in {_specifiers(value)}: relative paths are meant from there.")
        elif key == "ExecStart":
            lines = [*lines, value] if value else []  # an empty one takes back those before
    for line in lines:
        unresolved: list[str] = []
        words: list[str] = []
        for raw in _words(line.lstrip("-@:+!|")):
            words += _expanded(_specifiers(raw), env, unresolved, budget)
        commands.append(Command(tuple(words), env, tuple(unresolved)))
    return commands, notes


def _assignments(text: str) -> list[tuple[str, str]]:
    """``Key=value`` of each line; a line that ends with a backslash goes on, comments between do not end it."""
    found: list[tuple[str, str]] = []
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith(("#", ";")):
            continue
        line = pending + line
        if line.endswith("\\"):
            pending = line[:-1] + " "
            continue
        pending = ""
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"\s*\w+\s*", key):
            found.append((key.strip(), value.strip()))
    return found


def _words(text: str) -> list[str]:
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    at = 0
    while at < len(text):
        char, following = text[at], text[at + 1 : at + 2]
        at += 1
        if char.isspace() and not quote:
            if current is not None:
                words.append("".join(current))
            current = None
            continue
        current = [] if current is None else current
        if char == "\\" and following:
            # systemd keeps the backslash before what is no escape: patterns such as \.ffn_ stay whole
            current.append(_ESCAPES.get(following, f"\\{following}"))
            at += 1
        elif char == quote:
            quote = ""
        elif char in "\"'" and not quote:
            quote = char
        else:
            current.append(char)
    return words if current is None else [*words, "".join(current)]


def _specifiers(word: str) -> str:
    return re.sub(r"%[%h]", lambda match: "%" if match[0] == "%%" else "~", word)


def _expanded(word: str, env: dict[str, str], unresolved: list[str], budget: Budget) -> list[str]:
    if (alone := re.fullmatch(r"\$([A-Za-z_]\w*)", word)) and alone[1] in env:
        budget.spend(len(env[alone[1]]))
        return env[alone[1]].split()  # "$X" as a word of its own becomes several

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if match[0] == "$$":
            return "$"
        if name in env:
            budget.spend(len(env[name]))
            return env[name]
        unresolved.append(match[0])
        return match[0]

    return [_VARIABLE.sub(value, word)]
