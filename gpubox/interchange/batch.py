"""Reads the commands of a Windows batch text without running anything; PowerShell's line ends with a backtick too."""

from __future__ import annotations

import re

from gpubox.interchange.limits import Budget
from gpubox.interchange.shell import Command

_SET = re.compile(r'@?set\s+(?:"([^"=]+)=([^"]*)"?|([^"=\s/][^=]*)=(.*))', re.I)
_VARIABLE = re.compile(r"%([A-Za-z_]\w*)%|!([A-Za-z_]\w*)!|%~?[a-z]*[\d*]")
_WORD = r'(?:"(?:\\"|[^"])*"?|\^.?|[^\s"&|<>^])+'
_TOKEN = re.compile(rf"\s*(?:(\d?>>?(?:&\d)?|<)|(&&?|\|\|?)|({_WORD}))", re.S)
_QUOTED = re.compile(r'"((?:\\"|[^"])*)"?|\^(.?)|([^"^]+)', re.S)
_SILENT = re.compile(r"@?\s*(?:rem\b|::|echo\b|title\b|pause\b|setlocal\b|endlocal\b|chcp\b|cd\b|pushd\b|@?echo)", re.I)
_FOR_THE_SERVER = re.compile(r"(?:CUDA|GGML|LLAMA|HF|HIP|HSA|ROCR|VK|GPU|OMP|NVIDIA|SYCL|ONEAPI)_", re.I)
"""``set`` lines reach every program; these are meant for the server, the others are the script's own."""


def looks_like_batch(text: str) -> bool:
    """Whether a pasted text is Windows' rather than a POSIX shell's."""
    return bool(re.search(r"\^[ \t]*\n|`[ \t]*\n|[A-Za-z]:\\|%[A-Za-z_]\w*%|^@echo", text, re.M | re.I))


def read_batch(text: str) -> list[Command]:
    """The commands of ``text`` in order. Raises UsageError where its variables grow without measure."""
    budget = Budget()
    commands: list[Command] = []
    variables: dict[str, str] = {}
    for line in re.sub(r"[\^`][ \t]*\n", " ", text).splitlines():
        if not line.strip() or _SILENT.match(line.strip()):
            continue
        unresolved: list[str] = []
        line = _expand(line.strip(), variables, unresolved, budget)
        if match := _SET.match(line):
            name, value = (match[1], match[2]) if match[1] else (match[3], match[4])
            variables[name.strip().upper()] = value.strip()
            continue
        env = {name: value for name, value in variables.items() if _FOR_THE_SERVER.match(name)}
        commands += [Command(tuple(words), env, tuple(unresolved)) for words in _split(line) if words]
    return commands


def _expand(line: str, variables: dict[str, str], unresolved: list[str], budget: Budget) -> str:
    def value(match: re.Match[str]) -> str:
        name = (match[1] or match[2] or "").upper()
        if name in variables:
            budget.spend(len(variables[name]))
            return variables[name]
        if match[0] == "%*":  # the script's own arguments: none here
            return ""
        unresolved.append(match[0])
        return match[0]

    return _VARIABLE.sub(value, line)


def _split(line: str) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    skip = False
    for match in _TOKEN.finditer(line):
        redirection, end, word = match.groups()
        if redirection:
            skip = not redirection[-1].isdigit()  # "2>&1" names its target itself
        elif end:
            commands.append([])
        elif skip:
            skip = False
        else:
            commands[-1].append(_unquoted(word))
    return commands


def _unquoted(word: str) -> str:
    pieces = _QUOTED.findall(word)
    return "".join(quoted.replace('\\"', '"') + escaped + plain for quoted, escaped, plain in pieces)
