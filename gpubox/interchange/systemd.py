"""Reads the ``ExecStart=`` of a systemd service unit (systemd.service(5), systemd.syntax(7))."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpubox.interchange.import_notes import omitted
from gpubox.interchange.script import ExpansionBudget, ScriptCommand

_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


_RESTARTS = {"always", "on-failure", "on-abnormal", "on-watchdog", "on-abort", "on-success"}


@dataclass(slots=True)
class ServiceUnit:
    """What a service unit says."""

    commands: list[ScriptCommand] = field(default_factory=list)
    title: str = ""
    restart: bool = False
    notes: list[str] = field(default_factory=list)
    """What of it cannot be followed, and what has no place in a profile."""


def read_unit(text: str) -> ServiceUnit:
    """The commands that the unit starts, and the rest of it by name. Raises UsageError beyond all measure."""
    unit = ServiceUnit()
    env: dict[str, str] = {}
    lines: list[str] = []
    budget = ExpansionBudget()
    for section, key, value in unit_assignments(text):
        if key == "Environment" and section:
            for word in unit_words(value) if value else ():
                name, equals, content = word.partition("=")
                if equals:
                    env[name] = _specifiers(content)
        elif key == "EnvironmentFile":
            unit.notes.append(f"EnvironmentFile={value}: its variables are not in the profile.")
        elif key == "WorkingDirectory":
            unit.notes.append(f"WorkingDirectory={_specifiers(value)}: relative paths are meant from there.")
        elif key == "ExecStart":
            lines = [*lines, value] if value else []  # an empty one takes back those before
        elif key == "Description" and value and not unit.title:
            unit.title = value.replace("%%", "%").removeprefix("llama-server: ")
        elif key == "Restart" and value in _RESTARTS:
            unit.restart = True
            unit.notes.append(f"Restart={value} is restart = true in the profile.")
        else:
            unit.notes.append(omitted(f"{key}={value}" if section else f"{key} {value}".strip(), _why(section, key)))
    for line in lines:
        unresolved: list[str] = []
        words: list[str] = []
        for raw in unit_words(line.lstrip("-@:+!|")):
            words += _expanded(_specifiers(raw), env, unresolved, budget)
        unit.commands.append(ScriptCommand(tuple(words), env, tuple(unresolved), text=line))
    return unit


def _why(section: str, key: str) -> str:
    return "the service manager's own" if section else "" if key else "it is no line of a unit"


def unit_assignments(text: str) -> list[tuple[str, str, str]]:
    """(section, key, value) of each line; one that ends with a backslash goes on, comments between do not end it.

    A line that is no assignment has no section and no value.
    """
    found: list[tuple[str, str, str]] = []
    section = ""
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith(("#", ";")) or not (pending or line.strip()):
            continue
        line = pending + line
        if line.endswith("\\"):
            pending = line[:-1] + " "
            continue
        pending = ""
        if match := re.fullmatch(r"\s*\[([\w -]+)\]\s*", line):
            section = match[1]
            continue
        key, equals, value = line.partition("=")
        if equals and section and re.fullmatch(r"\s*[\w-]+\s*", key):
            found.append((section, key.strip(), value.strip()))
        else:
            found.append(("", line.strip(), ""))
    return found


def unit_words(text: str) -> list[str]:
    """The words of a value as systemd splits them (systemd.syntax(7), "Quoting")."""
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


def _expanded(word: str, env: dict[str, str], unresolved: list[str], budget: ExpansionBudget) -> list[str]:
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
