"""The words after ``llama-server`` -> its options with their values, as typed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpubox.engines.capabilities import Capabilities, Option
from gpubox.engines.renames import FORK_OPTIONS, MOVED, NEEDED_NO_VALUE
from gpubox.interchange.leftovers import left_out
from gpubox.interchange.recorded import long_name, recorded

_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_DASH = re.compile(r"^[–—]")


@dataclass(frozen=True, slots=True)
class Given:
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


def read_options(args: Sequence[str], engine: Capabilities, notes: list[str]) -> Iterator[Given]:
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
                notes.append(left_out(word, "it belongs to no option"))
            continue
        word, joined, value = word.partition("=")
        if joined and word.startswith("--"):
            yield Given(word, _spelled(word, engine, notes), (value,))
            continue
        word += joined + value  # "-x=y" is no form anybody has
        name = _spelled(word, engine, notes)
        wanted, option = _arity(name, engine)
        values = _values(args[at : at + 2], wanted, name, option, engine)
        at += len(values)
        if option is not None and option.value is not None and not values and option.long not in NEEDED_NO_VALUE:
            notes.append(f"{word} has no value here; llama.cpp's current builds want one ({option.value}).")
        yield Given(word, name, tuple(values))


def option_of(name: str, engine: Capabilities) -> Option | None:
    """The option called ``name`` in ``engine``, else in the recorded build; ``None`` where both have it no more."""
    for capabilities in (engine, recorded()):
        option = capabilities.option(name)
        if option is not None and option.removed is None:
            return option
    return None


def _arity(name: str, engine: Capabilities) -> tuple[int | None, Option | None]:
    """How many values the option takes (``None``: nobody knows), and what it is."""
    if option := option_of(name, engine):
        return 0 if option.value is None else len(option.value.split()) if option.value == "START END" else 1, option
    if name in MOVED:
        return MOVED[name].takes, None
    return (FORK_OPTIONS[name][0] if name in FORK_OPTIONS else None), None


def _values(
    rest: Sequence[str], wanted: int | None, name: str, option: Option | None, engine: Capabilities
) -> list[str]:
    if not rest or wanted == 0:
        return []
    if wanted is None:
        return [] if _OPTION.match(rest[0]) or _DASH.match(rest[0]) else [rest[0]]
    if option is not None and option.long in NEEDED_NO_VALUE and not _is_on_or_off(rest[0]):
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
    known = option_of(bare, engine) is not None or bare in MOVED or bare in FORK_OPTIONS
    return known or bool(re.fullmatch(r"--[a-z][a-z-]{2,}", word))


def _spelled(typed: str, engine: Capabilities, notes: list[str]) -> str:
    bare = typed.lstrip("-").replace("_", "-")
    if typed.startswith("--"):
        return bare
    if long := long_name(bare):
        return long
    if option := engine.option(bare):
        return option.long
    if bare in MOVED or bare in FORK_OPTIONS:
        return bare
    notes.append(f"{typed} is no short option gpubox knows; it is kept as --{bare}.")
    return bare
