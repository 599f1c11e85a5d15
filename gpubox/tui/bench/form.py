"""The form of a benchmark run: its rows, and the arguments of ``gpubox bench`` that their values make. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpubox.bench.options import KIND_OPTIONS, URL_KINDS, BenchOption

PROFILE, SECOND = "profile", "second"
"""The rows that choose one of the owner's profiles."""


@dataclass(frozen=True, slots=True)
class PlanField:
    """One row of the form: a choice if it has ``choices``, else a text."""

    name: str
    label: str
    about: str
    choices: tuple[tuple[str, str], ...] = ()
    """(value, its words); the first is the default."""
    empty: str = ""
    """What stands in an empty text field."""
    option: BenchOption | None = None
    """The option of the command line; ``None`` for a profile."""


def _fields(kind: str) -> tuple[PlanField, ...]:
    profiles = [PlanField(PROFILE, "profile", "Profile to measure")]
    if kind == "ab":
        profiles = [PlanField(PROFILE, "A", "First side"), PlanField(SECOND, "B", "none: A after a change")]
    options = [option for option in KIND_OPTIONS[kind] if option.in_form]
    return (*profiles, *(PlanField(o.label, o.label, o.help, o.choices, o.default or o.example, o) for o in options))


PLAN_FIELDS = {kind: _fields(kind) for kind in KIND_OPTIONS}


def plannable_kinds(known: Sequence[str], *, url: bool = False) -> list[str]:
    """The kinds of ``known`` that have a form; with ``url`` only those that measure a server by its address."""
    return [kind for kind in PLAN_FIELDS if kind in known and (not url or kind in URL_KINDS)]


def bench_arguments(kind: str, values: Mapping[str, str], url: str | None = None) -> list[str]:
    """The arguments of ``gpubox bench``. With ``url`` they measure the server there instead of a profile."""
    arguments = [kind]
    for field in PLAN_FIELDS[kind]:
        value = values.get(field.name, "").strip()
        option = field.option
        if option is None:
            if url and field.name == PROFILE:
                arguments += ["--url", url]
            elif value and not url:
                arguments.append(value)
        elif value and option.type == "switch":
            arguments.append(value)
        elif value:
            for part in value.split() if option.repeated else [value]:
                arguments += [f"--{option.name}", part]
    return arguments


def bench_command_line(arguments: Sequence[str]) -> str:
    """The command line that does the same in a terminal."""
    return shlex.join(["gpubox", "bench", *arguments])
