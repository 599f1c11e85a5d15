"""Options of older builds -> what the engine takes today, with a note for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpubox.engines.capabilities import Capabilities
from gpubox.engines.replaced_flags import FORK_FLAGS, FORMER_SWITCHES, REPLACED_FLAGS, advice_for, current_value
from gpubox.interchange.given_options import GivenOption
from gpubox.interchange.import_notes import omitted

_ITS_OWN_WAY_TO_DRAFT = re.compile(r"eagle|mtp|dflash|dspark|medusa", re.I)
_NGRAM_KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")


@dataclass(frozen=True, slots=True)
class TargetEngine:
    """The engine that an import is written for."""

    name: str
    """As notes call it."""
    capabilities: Capabilities


@dataclass(slots=True)
class _Modes:
    """The old switches that are values of ``--load-mode`` today."""

    typed: list[str] = field(default_factory=list)

    @property
    def value(self) -> str:
        names = {word.lstrip("-") for word in self.typed}
        if names & {"direct-io", "dio"}:
            return "dio"
        if "mlock" in names:
            return "mlock" if "no-mmap" in names else "mmap+mlock"
        return "none" if "no-mmap" in names else "mmap"


def update_options(options: Iterable[GivenOption], target: TargetEngine, notes: list[str]) -> list[GivenOption]:
    """``options`` as ``target`` takes them. What it has in no form, and nobody knows, stays as typed.

    Where they need a fork that ``target`` is not, all of them stay: nobody knows how old that fork is.
    """
    options = list(options)
    if fork := _fork(options, target.capabilities):
        notes.append(
            f"{fork} needs a fork of llama.cpp: every flag stays as typed, and `engine` has to name that fork."
        )
        return options
    found: list[GivenOption] = []
    modes = _Modes()
    for given in options:
        if (
            REPLACED_FLAGS.get(given.name)
            and REPLACED_FLAGS[given.name].flag == "load-mode"
            and _moved(given, target.capabilities)
        ):
            if not modes.typed:
                found.append(GivenOption(given.typed, "load-mode"))
            modes.typed.append(given.typed)
        else:
            found += _one(given, target, notes, options)
    if modes.typed:
        found = [replace(g, values=(modes.value,)) if g.name == "load-mode" and not g.values else g for g in found]
        notes.append(f"{' '.join(modes.typed)} is --load-mode {modes.value} today.")
    return found + _drafting(found, target, notes)


def needs_fork(given: GivenOption, engine: Capabilities) -> bool:
    """Whether only a fork has this option, or this value of it."""
    if given.name in FORK_FLAGS:
        return engine.option(given.name) is None
    option = engine.option(given.name)
    value = given.value
    if not (option and value and option.allowed) or value in option.allowed:
        return False
    return advice_for(option.long, value)[1]


def _fork(options: Sequence[GivenOption], engine: Capabilities) -> str:
    return next((str(given) for given in options if needs_fork(given, engine)), "")


def _moved(given: GivenOption, engine: Capabilities) -> bool:
    """Whether the engine has the option no more, and the one in its place."""
    option = engine.option(given.name)
    if given.name not in REPLACED_FLAGS or (option is not None and option.removed is None):
        return False
    return not REPLACED_FLAGS[given.name].flag or engine.option(REPLACED_FLAGS[given.name].flag) is not None


def _one(
    given: GivenOption, target: TargetEngine, notes: list[str], options: Sequence[GivenOption]
) -> list[GivenOption]:
    if not _moved(given, target.capabilities):
        return [_with_value(given, target.capabilities, notes)]
    if given.name.startswith("spec-ngram-") and (kind := _ngram_kind(options)):
        name = given.name.replace("spec-ngram", f"spec-{kind}")
        notes.append(f"{given} is --{name} {given.value or ''} today.".replace("  ", " "))
        return [replace(given, name=name)]
    moved = REPLACED_FLAGS[given.name]
    if not moved.flag:
        notes.append(omitted(str(given), moved.why))
        return []
    values = (moved.value,) if moved.value else given.values
    now = replace(given, name=moved.flag, values=values)
    notes.append(f"{given} is --{' '.join([moved.flag, *values])} today.")
    return [now]


def _ngram_kind(options: Sequence[GivenOption]) -> str:
    kinds = {kind for given in options if given.name == "spec-type" for kind in (given.value or "").split(",")}
    return next((kind for kind in _NGRAM_KINDS if kinds & {kind}), "")


def _with_value(given: GivenOption, engine: Capabilities, notes: list[str]) -> GivenOption:
    """``given`` with the value that the engine wants where older builds wanted none or called it otherwise."""
    option = engine.option(given.name)
    if option is None:
        return given
    if option.value is not None and not given.values and option.long in FORMER_SWITCHES:
        notes.append(f"{given.typed} alone is --{option.long} on today.")
        return replace(given, values=("on",))
    value = given.value
    if value and option.allowed:
        words = [current_value(option.long, word) or word for word in value.split(",")]
        if value not in option.allowed and ",".join(words) != value and set(words) <= set(option.allowed):
            notes.append(f"{given} is --{option.long} {','.join(words)} today.")
            return replace(given, values=(",".join(words),))
    return given


def _drafting(options: Sequence[GivenOption], target: TargetEngine, notes: list[str]) -> list[GivenOption]:
    """The ``--spec-type`` that older builds took for granted beside a draft model; 11434 does not (measured)."""
    engine = target.capabilities
    kinds = engine.option("spec-type")
    names = {engine.canonical(given.name) for given in options}
    models = {engine.canonical("model-draft"), engine.canonical("hf-repo-draft")}
    draft = next((given for given in options if engine.canonical(given.name) in models), None)
    if draft is None or kinds is None or names & {"spec-type", "spec-default"}:
        return []
    if "draft-simple" not in (kinds.value or "") or _ITS_OWN_WAY_TO_DRAFT.search(draft.value or ""):
        return []
    notes.append("--spec-type draft-simple was added: a draft model alone drafts nothing today.")
    return [GivenOption("--spec-type", "spec-type", ("draft-simple",))]
