"""Reads the commands of a Windows batch text, or of a PowerShell command line, without running anything."""

from __future__ import annotations

import re

from gpubox.errors import UsageError
from gpubox.interchange.format import Format, Reading
from gpubox.interchange.script import SERVER_VARIABLE, ExpansionBudget, ScriptAssignments, ScriptCommand

_SET = re.compile(r'@?set\s+(?:"([^"=]+)=([^"]*)"?|([^"=\s/][^=]*)=(.*))', re.I)
_VARIABLE = re.compile(r"%([A-Za-z_]\w*)%|!([A-Za-z_]\w*)!|%~?[a-z]*[\d*]")
_WORD = r'(?:"(?:\\"|[^"])*"?|\^.?|[^\s"&|<>^])+'
_TOKEN = re.compile(rf"\s*(?:(\d?>>?(?:&\d)?|<)|(&&?|\|\|?)|({_WORD}))", re.S)
_QUOTED = re.compile(r'"((?:\\"|[^"])*)"?|\^(.?)|([^"^]+)', re.S)
_POWERSHELL = re.compile(r"^[ \t]*(?:\$(?:env:)?\w+[ \t]*\+?=|Start-Process\b.*-Arg|param[ \t]*\()", re.M | re.I)
"""What only PowerShell has. Its command lines are read, its scripts are not."""
_SILENT = re.compile(r"@?\s*(?:rem\b|::|#|echo\s+off|(?:set|end)local\b|:\w+$)", re.I)


def looks_like_batch(text: str) -> bool:
    """Whether a pasted text is for Windows, not for a POSIX shell."""
    windows = re.search(r"\^[ \t]*\n|(?<!`)`[ \t]*\n|[A-Za-z]:\\|%[A-Za-z_]\w*%|^@echo|^[ \t]*& ", text, re.M | re.I)
    return bool(windows or _POWERSHELL.search(text))


def read_batch(text: str) -> Reading:
    """The commands and the ``set`` lines of ``text``.

    Raises UsageError for a PowerShell script, and if its variables expand to too much text.
    """
    if _POWERSHELL.search(text):
        raise UsageError("This is a PowerShell script.", "Paste the command line that it starts, with its values.")
    budget = ExpansionBudget()
    commands: list[ScriptCommand] = []
    variables = {"%*": ""}  # the script's own arguments: there are none
    assignments = ScriptAssignments()
    for line in re.sub(r"[\^`][ \t]*\n", " ", text).splitlines():
        if not line.strip() or _SILENT.match(line.strip()):
            continue
        unresolved: list[str] = []
        raw_line = line.strip().removeprefix("@")
        line = budget.expand(
            _VARIABLE, raw_line, lambda match: variables.get((match[1] or match[2] or match[0]).upper()), unresolved
        )
        if match := _SET.match(line):
            name, value = (match[1], match[2]) if match[1] else (match[3], match[4])
            variables[name.strip().upper()] = value.strip()
            assignments.add(name.strip(), raw_line)
            continue
        env = {name: value for name, value in variables.items() if SERVER_VARIABLE.match(name)}
        for words, dropped in _split(line):
            if words and words != [")"]:
                text = " ".join(words)
                commands.append(ScriptCommand(tuple(words), env, tuple(unresolved), (), text, raw_line, tuple(dropped)))
    return Reading(commands, assignments=assignments)


def _split(line: str) -> list[tuple[list[str], list[str]]]:
    """(words, redirections) of each command in a line."""
    commands: list[tuple[list[str], list[str]]] = [([], [])]
    skip = False
    for match in _TOKEN.finditer(line):
        redirection, end, word = match.groups()
        if redirection:
            skip = not redirection[-1].isdigit()  # "2>&1" has its target
            commands[-1][1].append(redirection)
        elif end:
            commands.append(([], []))
        elif skip:
            skip = False
            commands[-1][1][-1] += word
        else:
            commands[-1][0].append(_unquoted(word))
    return commands


def _unquoted(word: str) -> str:
    pieces = _QUOTED.findall(word)
    return "".join(quoted.replace('\\"', '"') + escaped + plain for quoted, escaped, plain in pieces)


FORMAT = Format(".bat", lambda text, path: read_batch(text), r".*\.(?:bat|cmd|ps1)", looks_like_batch)
