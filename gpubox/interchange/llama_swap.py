"""Reads llama-swap's config.yaml: every model's ``cmd`` with its macros (its config.example.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpubox.errors import UsageError
from gpubox.interchange.batch import read_batch
from gpubox.interchange.limits import Budget
from gpubox.interchange.shell import Command

PORT_MACRO = "${PORT}"
"""The port that llama-swap chooses at each start."""
_MACRO = re.compile(r"\$\{([A-Za-z][\w.-]*)\}")
_MACRO_DEPTH = 16
_READ = {"cmd", "macros", "name", "description", "env", "aliases", "metadata", "proxy", "checkEndpoint", "cmdStop"}


@dataclass(frozen=True, slots=True)
class SwapModel:
    """One entry of ``models``."""

    name: str
    command: Command
    title: str
    description: str
    notes: tuple[str, ...]


def read_llama_swap(text: str) -> list[SwapModel]:
    """The models of the file. Raises UsageError where it is no YAML or has no ``models``."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"This is not valid YAML{where}: {getattr(error, 'problem', None) or 'it does not parse'}."
        ) from None
    except ValueError as error:  # a date or a number that Python cannot hold
        raise UsageError(f"This is not valid YAML: {error}.") from None
    models = values.get("models") if isinstance(values, dict) else None
    if not isinstance(models, dict) or not models:
        raise UsageError("There is no `models` table in this YAML.", "gpubox reads llama-swap's config.yaml.")
    budget = Budget()
    common = _macros(values.get("macros"))
    return [
        _model(str(name), entry, common, budget)
        for name, entry in models.items()
        if isinstance(entry, dict) and isinstance(entry.get("cmd"), str)
    ]


def _model(name: str, entry: Mapping[str, Any], common: Mapping[str, str], budget: Budget) -> SwapModel:
    macros = {"MODEL_ID": name, **common, **_macros(entry.get("macros"))}
    text = _expand(entry["cmd"], macros, budget).replace("${env.HOME}/", "~/")
    env = [_expand(line, macros, budget).partition("=") for line in _texts(entry.get("env"))]
    unresolved = tuple(dict.fromkeys(match[0] for match in _MACRO.finditer(text)))
    command = Command(tuple(_words(text)), {key: value for key, equals, value in env if equals}, unresolved)
    notes = []
    if aliases := _texts(entry.get("aliases")):
        notes.append(f"llama-swap also calls it {', '.join(aliases)}.")
    if others := sorted(str(key) for key in entry.keys() - _READ):
        notes.append(f"llama-swap's own settings were left out: {', '.join(others)}.")
    return SwapModel(name, command, _text(entry.get("name")), _text(entry.get("description")), tuple(notes))


def _words(text: str) -> list[str]:
    """``cmd`` as llama-swap splits it: comment lines dropped, quotes respected, nothing expanded."""
    lines = [line for line in text.splitlines() if not line.strip().startswith("#")]
    text = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    if re.search(r"[A-Za-z]:\\", text):
        return [word for command in read_batch(text) for word in command.words]
    return _split(text)


def _split(text: str) -> list[str]:
    # shlex's rules, but an open quote is not an error: it ends with the text.
    pieces = re.finditer(r"""\s+|'([^']*)'?|"((?:\\.|[^"\\])*)"?|\\(.)|([^\s'"\\]+|\\)""", text, re.S)
    words: list[str] = []
    open_word = False
    for piece in pieces:
        if piece[0].isspace():
            open_word = False
            continue
        single, double, escaped, plain = piece.groups()
        if double is not None:
            double = re.sub(r'\\(["\\$`])', r"\1", double)
        part = next(part for part in (single, double, escaped, plain) if part is not None)
        words[-1:] = [words[-1] + part] if open_word else [*words[-1:], part]
        open_word = True
    return words


def _macros(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        return {}
    return {str(name): _plain(value) for name, value in values.items() if isinstance(value, (str, int, float))}


def _plain(value: str | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expand(text: str, macros: Mapping[str, str], budget: Budget) -> str:
    def value(match: re.Match[str]) -> str:
        found = macros.get(match[1])
        budget.spend(len(found or ""))
        return match[0] if found is None else found

    for _ in range(_MACRO_DEPTH):
        expanded = _MACRO.sub(value, text)
        if expanded == text:
            break
        text = expanded
    return text


def _texts(value: Any) -> list[str]:
    # Never str() of a list: YAML's aliases make lists whose text is without end.
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
