"""Replaces options of older builds by those of the engine, with a note for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpubox.engines.capabilities import Capabilities
from gpubox.engines.replaced_flags import FORK_FLAGS, FORMER_SWITCHES, REPLACED_FLAGS, advice_for, current_value
from gpubox.interchange.given_options import GivenOption
from gpubox.interchange.import_notes import omitted

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
