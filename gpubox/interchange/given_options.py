"""The words after ``llama-server`` -> its options with their values, as typed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubox.engines.capabilities import Capabilities, EngineOption
from gpubox.engines.replaced_flags import FORK_FLAGS, FORMER_SWITCHES, REPLACED_FLAGS
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.reference_options import long_name, reference_options

_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_DASH = re.compile(r"^[–—]")


@dataclass(frozen=True, slots=True)
class GivenOption:
    """One option of a command line."""

    typed: str
    """As in the source, dashes included."""
    name: str
    """Without dashes; a short option has its long name."""
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str | None:
        return self.values[0] if self.values else None

    def __str__(self) -> str:
        return " ".join([self.typed, *self.values])


def read_options(args: Sequence[str], engine: Capabilities, notes: list[str]) -> Iterator[GivenOption]:
    """Each option in ``args`` with the values it takes; stray words and missing values go into ``notes``.

    How many values an option takes is what ``engine`` says, else the recorded llama.cpp, else what older builds and
    forks had; an option nobody knows takes the word after it unless that is an option, too.
    """
    at = 0
    while at < len(args):
        word = _DASH.sub("--", args[at])  # web pages make one dash of two
        at += 1
        if not _OPTION.match(word):
            if word not in {"", "--", "-"}:
                notes.append(omitted(word, "it belongs to no option"))
            continue
        word, joined, value = word.partition("=")
        if joined and word.startswith("--"):
            yield GivenOption(word, _spelled(word, engine, notes), (value,))
            continue
        word += joined + value  # "-x=y" is no form anybody has
        name = _spelled(word, engine, notes)
        wanted, option = _arity(name, engine)
        values = _values(args[at : at + 2], wanted, name, option, engine)
        at += len(values)
        if option is not None and option.value is not None and not values and option.long not in FORMER_SWITCHES:
            notes.append(f"{word} has no value here; llama.cpp's current builds want one ({option.value}).")
        yield GivenOption(word, name, tuple(values))


def known_option(name: str, engine: Capabilities) -> EngineOption | None:
    """The option called ``name`` in ``engine``, else in the recorded build; ``None`` where both have it no more."""
    for capabilities in (engine, reference_options()):
        option = capabilities.option(name)
        if option is not None and option.removed is None:
            return option
    return None


def _arity(name: str, engine: Capabilities) -> tuple[int | None, EngineOption | None]:
    """How many values the option takes (``None``: nobody knows), and what it is."""
    if option := known_option(name, engine):
        return 0 if option.value is None else len(option.value.split()) if option.value == "START END" else 1, option
    if name in REPLACED_FLAGS:
        return REPLACED_FLAGS[name].takes, None
    return (FORK_FLAGS[name][0] if name in FORK_FLAGS else None), None


def _values(
    rest: Sequence[str], wanted: int | None, name: str, option: EngineOption | None, engine: Capabilities
) -> list[str]:
    if not rest or wanted == 0:
        return []
    if wanted is None:
        return [] if _OPTION.match(rest[0]) or _DASH.match(rest[0]) else [rest[0]]
    if option is not None and option.long in FORMER_SWITCHES and not _is_on_or_off(rest[0]):
        return []  # the switch of an older build
    values: list[str] = []
    for word in rest[:wanted]:
        if _is_option(word, engine):
            break
        values.append(word)
    return values


def _is_on_or_off(word: str) -> bool:
    return word in {"on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"} or "$" in word


def _is_option(word: str, engine: Capabilities) -> bool:
    """Whether a word where a value belongs is the next option instead (a value may begin with a dash, too)."""
    if not (_OPTION.match(word) or _DASH.match(word)):
        return False
    bare = _DASH.sub("", word).lstrip("-").partition("=")[0].replace("_", "-")
    known = known_option(bare, engine) is not None or bare in REPLACED_FLAGS or bare in FORK_FLAGS
    return known or bool(re.fullmatch(r"--[a-z][a-z-]{2,}", word))


def _spelled(typed: str, engine: Capabilities, notes: list[str]) -> str:
    bare = typed.lstrip("-").replace("_", "-")
    if typed.startswith("--"):
        return bare
    if long := long_name(bare):
        return long
    if option := engine.option(bare):
        return option.long
    if bare in REPLACED_FLAGS or bare in FORK_FLAGS:
        return bare
    notes.append(f"{typed} is no short option gpubox knows; it is kept as --{bare}.")
    return bare
