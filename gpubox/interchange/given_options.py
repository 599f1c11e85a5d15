"""The arguments of llama-server as options and values, and those of older builds in the engine's spelling. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from gpubox.engines.capabilities import Capabilities, EngineOption
from gpubox.engines.replaced_flags import (
    FORK_FLAGS,
    FORK_NAMES,
    FORMER_SWITCHES,
    REPLACED_FLAGS,
    advice_for,
    current_value,
)
from gpubox.interchange.import_notes import omitted
from gpubox.interchange.reference_options import long_name, reference_options

_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_DASH = re.compile(r"^[–—]")
_SHAPE = re.compile(r"--[a-z][a-z0-9_.-]*|-[a-z][a-z0-9-]{0,7}")
"""What an option of a fork may look like; ``-FilePath`` is another program's."""


@dataclass(frozen=True, slots=True)
class GivenOption:
    """One option of a command line."""

    typed: str
    """As in the source, with dashes."""
    name: str
    """The long name, without dashes."""
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str | None:
        return self.values[0] if self.values else None

    def __str__(self) -> str:
        return " ".join([self.typed, *self.values])


def read_options(args: Sequence[str], engine: Capabilities, notes: list[str]) -> Iterator[GivenOption]:
    """Each option in ``args`` with its values. Stray words and missing values are noted in ``notes``.

    The number of values comes from ``engine``, else from the reference build, else from older builds and forks. An
    unknown option takes the next word unless that is an option; one that is not shaped like llama-server's is noted.
    """
    at = 0
    while at < len(args):
        word = _DASH.sub("--", args[at])  # web pages turn two dashes into one
        at += 1
        if not _OPTION.match(word):
            if word not in {"", "--", "-"}:
                notes.append(omitted(word, "no option takes it"))
            continue
        word, joined, value = word.partition("=")
        if joined and word.startswith("--") and _is_servers(word, engine):
            yield GivenOption(word, _long_name(word, engine, notes), (value,))
            continue
        word += joined + value  # no program has the form "-x=y"
        if not _is_servers(word, engine):
            values = [] if not args[at:] or _is_option(args[at], engine) else [args[at]]
            at += len(values)
            notes.append(omitted(" ".join([word, *values]), "no llama-server has such an option"))
            continue
        name = _long_name(word, engine, notes)
        count, option = _value_count(name, engine)
        values = _values(args[at : at + 2], count, option, engine)
        at += len(values)
        if option is not None and option.value is not None and not values and option.long not in FORMER_SWITCHES:
            notes.append(f"{word} has no value here; current builds of llama.cpp require one ({option.value}).")
        yield GivenOption(word, name, tuple(values))


def _is_servers(word: str, engine: Capabilities) -> bool:
    bare = word.lstrip("-").replace("_", "-")
    known = known_option(bare, engine) or long_name(bare) or bare in REPLACED_FLAGS or bare in FORK_FLAGS
    return bool(known) or _SHAPE.fullmatch(word) is not None


def known_option(name: str, engine: Capabilities) -> EngineOption | None:
    """The option ``name`` of ``engine``, else of the reference build, else ``None``."""
    for capabilities in (engine, reference_options()):
        option = capabilities.option(name)
        if option is not None and option.removed is None:
            return option
    return None


def _value_count(name: str, engine: Capabilities) -> tuple[int | None, EngineOption | None]:
    """The number of values of an option (``None``: unknown), and the option if it is known."""
    if (option := known_option(name, engine)) and not option.loose:
        return 2 if option.value == "START END" else int(option.value is not None), option
    if name in REPLACED_FLAGS:
        return REPLACED_FLAGS[name].takes, None
    return (FORK_FLAGS[name][0] if name in FORK_FLAGS else None), None


def _values(rest: Sequence[str], count: int | None, option: EngineOption | None, engine: Capabilities) -> list[str]:
    if not rest or count == 0:
        return []
    if count is None:
        return [] if _OPTION.match(rest[0]) or _DASH.match(rest[0]) else [rest[0]]
    if option is not None and option.long in FORMER_SWITCHES and not _is_on_or_off(rest[0]):
        return []  # in older builds it had no value
    return list(takewhile(lambda word: not _is_option(word, engine), rest[:count]))


def _is_on_or_off(word: str) -> bool:
    return word in {"on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"} or "$" in word


def _is_option(word: str, engine: Capabilities) -> bool:
    """Whether a word after an option is the next option; a value may begin with a dash, too."""
    if not (_OPTION.match(word) or _DASH.match(word)):
        return False
    bare = _DASH.sub("", word).lstrip("-").partition("=")[0].replace("_", "-")
    known = known_option(bare, engine) is not None or bare in REPLACED_FLAGS or bare in FORK_FLAGS
    return known or bool(re.fullmatch(r"--[a-z][a-z-]{2,}", word))


def _long_name(typed: str, engine: Capabilities, notes: list[str]) -> str:
    bare = typed.lstrip("-").replace("_", "-")
    if typed.startswith("--"):
        return bare if known_option(bare, engine) else FORK_NAMES.get(bare, bare)
    if long := long_name(bare):
        return long
    if option := engine.option(bare):
        return option.long
    if bare in REPLACED_FLAGS or bare in FORK_FLAGS:
        return FORK_NAMES.get(bare, bare)
    notes.append(f"{typed} is an unknown short option; the profile keeps it as --{bare}.")
    return bare


_NO_SIMPLE_DRAFT = re.compile(r"eagle|mtp|dflash|dspark|medusa", re.I)
_NGRAM_KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")


@dataclass(frozen=True, slots=True)
class TargetEngine:
    """The engine that an import is written for."""

    name: str
    """Its name in notes."""
    capabilities: Capabilities


def update_options(options: Iterable[GivenOption], target: TargetEngine, notes: list[str]) -> list[GivenOption]:
    """``options`` in the spelling of ``target``. Unknown options stay as typed.

    If they need a fork that ``target`` is not, all of them stay, because the age of that fork is unknown.
    """
    options = list(options)
    if fork := next((str(given) for given in options if needs_fork(given, target.capabilities)), ""):
        notes.append(f"{fork} needs a fork of llama.cpp: every flag is kept as typed. Name that fork in `engine`.")
        return options
    updated: list[GivenOption] = []
    loading = [given for given in options if _is_replaced(given, target.capabilities, "load-mode")]
    mode = _load_mode({given.name for given in loading})
    for given in options:
        if given not in loading:
            updated += _update(given, target, notes, options)
        elif given is loading[0]:
            updated.append(GivenOption(given.typed, "load-mode", (mode,)))
    if loading:
        notes.append(f"{' '.join(given.typed for given in loading)} is now --load-mode {mode}.")
    return updated + _draft_type(updated, target, notes)


def needs_fork(given: GivenOption, engine: Capabilities) -> bool:
    """Whether only a fork has this option, or this value of it."""
    if given.name in FORK_FLAGS:
        return engine.option(given.name) is None
    option = engine.option(given.name)
    value = given.value
    if not (option and value and option.allowed) or value in option.allowed:
        return False
    return advice_for(option.long, value)[1]


def _load_mode(switches: set[str]) -> str:
    """The value of ``--load-mode`` that replaces older builds' switches."""
    if switches & {"direct-io", "dio"}:
        return "dio"
    if "mlock" in switches:
        return "mlock" if "no-mmap" in switches else "mmap+mlock"
    return "none" if "no-mmap" in switches else "mmap"


def _is_replaced(given: GivenOption, engine: Capabilities, by: str | None = None) -> bool:
    """Whether the engine lacks the option and has its replacement, which is ``by`` if that is given."""
    option, replacement = engine.option(given.name), REPLACED_FLAGS.get(given.name)
    if replacement is None or (option is not None and option.removed is None) or by not in (None, replacement.flag):
        return False
    return not replacement.flag or engine.option(replacement.flag) is not None


def _update(
    given: GivenOption, target: TargetEngine, notes: list[str], options: Sequence[GivenOption]
) -> list[GivenOption]:
    if not _is_replaced(given, target.capabilities):
        return [_with_value(given, target.capabilities, notes)]
    if given.name.startswith("spec-ngram-") and (kind := _ngram_kind(options)):
        name = given.name.replace("spec-ngram", f"spec-{kind}")
        notes.append(f"{given} is now --{name} {given.value or ''}".rstrip() + ".")
        return [replace(given, name=name)]
    replacement = REPLACED_FLAGS[given.name]
    if not replacement.flag:
        notes.append(omitted(str(given), replacement.why))
        return []
    values = (replacement.value,) if replacement.value else given.values
    notes.append(f"{given} is now --{' '.join([replacement.flag, *values])}.")
    return [replace(given, name=replacement.flag, values=values)]


def _ngram_kind(options: Sequence[GivenOption]) -> str:
    kinds = {kind for given in options if given.name == "spec-type" for kind in (given.value or "").split(",")}
    return next((kind for kind in _NGRAM_KINDS if kinds & {kind}), "")


def _with_value(given: GivenOption, engine: Capabilities, notes: list[str]) -> GivenOption:
    """``given`` with the engine's value, if older builds had none or another name for it."""
    option = engine.option(given.name)
    if option is None:
        return given
    if option.value is not None and not given.values and option.long in FORMER_SWITCHES:
        notes.append(f"{given.typed} without a value is now --{option.long} on.")
        return replace(given, values=("on",))
    value = given.value
    if value and option.allowed:
        words = [current_value(option.long, word) or word for word in value.split(",")]
        if value not in option.allowed and ",".join(words) != value and set(words) <= set(option.allowed):
            notes.append(f"{given} is now --{option.long} {','.join(words)}.")
            return replace(given, values=(",".join(words),))
    return given


def _draft_type(options: Sequence[GivenOption], target: TargetEngine, notes: list[str]) -> list[GivenOption]:
    """The ``--spec-type`` that older builds implied with a draft model; build 11434 does not (measured)."""
    engine = target.capabilities
    kinds = engine.option("spec-type")
    names = {engine.canonical(given.name) for given in options}
    models = {engine.canonical("model-draft"), engine.canonical("hf-repo-draft")}
    draft = next((given for given in options if engine.canonical(given.name) in models), None)
    if draft is None or kinds is None or names & {"spec-type", "spec-default"}:
        return []
    if "draft-simple" not in (kinds.value or "") or _NO_SIMPLE_DRAFT.search(draft.value or ""):
        return []
    notes.append("--spec-type draft-simple was added: without it, current builds do not use the draft model.")
    return [GivenOption("--spec-type", "spec-type", ("draft-simple",))]
