"""From the arguments of one llama-server to a profile, with notes about what a profile cannot hold."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpubox.engines.capabilities import find_refusals
from gpubox.engines.find import EMBEDDED
from gpubox.interchange.given_options import GivenOption, TargetEngine, read_options, update_options
from gpubox.interchange.import_notes import is_secret, omitted
from gpubox.interchange.reference_options import reference_options, variable_arguments
from gpubox.interchange.script import base_name
from gpubox.profiles.argv import SECRET_NAME, argument_text
from gpubox.profiles.flag_values import (
    LARGEST_WINS,
    SHARED_LISTS,
    TWO_WORD_FLAGS,
    accumulates,
    canonical_flag,
    split_values,
)
from gpubox.profiles.loader import ENV_NAME
from gpubox.profiles.profile import SAMPLING_FLAGS, SECRET_FLAGS, ChatDefaults, FlagValue, Profile, is_loopback
from gpubox.storage import read_json

REFERENCE_ENGINE = TargetEngine("llama.cpp build 11434", reference_options())
"""The engine of imports if the owner's engine is unknown."""
_SAMPLING = {reference_options().canonical(flag): key for key, flag in SAMPLING_FLAGS.items()}
_DEPENDENT = re.compile(r"\$[A-Za-z_{(]|`|%[A-Za-z_]\w*%")
_MACHINE_VARIABLES = {"PATH", "HOME", "PWD", "USER", "SHELL", "LANG", "TERM"}


@dataclass(frozen=True, slots=True)
class ImportedProfile:
    """A profile made from a foreign file."""

    profile: Profile
    notes: tuple[str, ...] = ()
    """What the profile cannot hold, and what the owner should check; without secrets."""


@dataclass(slots=True)
class ForeignSettings:
    """Another program's settings, as llama-server's arguments."""

    name: str = ""
    args: list[str] = field(default_factory=list)
    system: str = ""
    """The system prompt."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ProfileDraft:
    """A profile before it is complete."""

    notes: list[str] = field(default_factory=list)
    target: TargetEngine = REFERENCE_ENGINE
    title: str = ""
    system: str = ""
    """The system prompt."""
    engine: str = ""
    restart: bool = False
    model: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    env: dict[str, str] = field(default_factory=dict)
    flags: dict[str, FlagValue] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    template_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    port_word: str = ""
    flag_keys: dict[str, str] = field(default_factory=dict)
    """The canonical name of each flag -> its key in ``flags``."""
    given: list[str] = field(default_factory=list)
    """The canonical name of each option, in their order."""

    def finish(self, name: str) -> ImportedProfile:
        """The profile, with notes about its model and address."""
        if not self.model:
            self.notes.append("The source names no model: write `model` into it, or give `gpubox import` --model.")
        elif re.match(r"[A-Za-z]:\\|\\\\", self.model):
            self.notes.append(f"{self.model} is a Windows path: correct `model`.")
        elif "/" in self.model and not self.model.startswith(("/", "~", "hf:", "$")):
            self.notes.append(f"{self.model} is relative to the folder where it was started: write the whole path.")
        if not is_loopback(self.host):
            self.notes.append(
                f"host {self.host} lets other machines in: gpubox starts it only with an API key or --yes."
            )
        profile = Profile(
            name=profile_name(name or self.model or "imported"),
            title=self.title,
            model=self.model,
            engine=self.engine,
            host=self.host,
            port=self.port,
            restart=self.restart,
            env=self.env,
            flags=self.flags,
            sampling=self.sampling,
            chat=ChatDefaults(self.system, self.template_kwargs),
        )
        return ImportedProfile(profile, tuple(self.notes))


def draft_from_arguments(
    args: Sequence[str],
    env: Mapping[str, str],
    notes: Sequence[str] = (),
    port_word: str = "",
    target: TargetEngine = REFERENCE_ENGINE,
) -> ProfileDraft:
    """The draft of a server with the arguments ``args`` and the environment ``env``.

    ``port_word`` is llama-swap's macro for a port that it chooses at each start. Options get the long names and
    spellings of ``target``; unknown options are kept. Repeated options are combined as the engine does it. Never
    raises.
    """
    draft = ProfileDraft(notes=list(notes), port_word=port_word, target=target)
    args = [*_from_environment(env, draft), *args]
    options = read_options(args, target.capabilities, draft.notes)
    for given in update_options(options, target, draft.notes):
        _add_option(draft, given, target.capabilities.canonical(given.name))
    _note_order(draft)
    _note_refusals(draft)
    return draft


def profile_name(text: str) -> str:
    """A valid profile name from a title, a path, ``hf:user/repo:quant`` or another program's name."""
    text = base_name(text).removesuffix(".gguf")
    text = re.sub(r"-GGUF(?=:|$)", "", text, flags=re.I)
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._").lower()
    return text[:64] or "imported"


def typed_value(text: str) -> int | float | str:
    """``text`` as a number if the number would be written in the same way, else unchanged."""
    if re.fullmatch(r"-?\d{1,18}", text) and str(int(text)) == text:
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+", text) and str(float(text)) == text and not float(text).is_integer():
        return float(text)
    return text


def _add_option(draft: ProfileDraft, given: GivenOption, canonical: str) -> None:
    name, value = given.name, given.value
    switch = canonical.removeprefix("no-")
    first = switch not in draft.given
    draft.given.append(switch)
    if canonical in SECRET_FLAGS:
        draft.notes.append(
            f"--{name} was left out, because profiles hold no secrets: set {SECRET_FLAGS[canonical]}"
            + (" or put the key into gpubox's api-key file (mode 0600)." if canonical == "api-key" else ".")
        )
    elif canonical == "api-key-file":
        draft.notes.append(
            f"--api-key-file {value or ''} was left out and not read: gpubox gives every engine its own key. Put"
            " the key into gpubox's api-key file (mode 0600)."
        )
    elif is_secret(name) and value and reference_options().option(name) is None:
        draft.notes.append(f"--{name} was left out, because it is named like a secret.")
    elif canonical in {"model", "hf-repo"} and value:
        _set_model(draft, canonical, value)
    elif canonical == "host" and value:
        _note_dropped(draft, given, "" if first else draft.host, value)
        draft.host = value
    elif canonical == "port" and value:
        _note_dropped(draft, given, "" if first else str(draft.port), value)
        _set_port(draft, value)
    elif canonical in _SAMPLING and value is not None and (number := _number(value)) is not None:
        _drop_flag(draft, given, switch)
        old = draft.sampling.get(_SAMPLING[canonical])
        _note_dropped(draft, given, "" if old is None else _text(old), value)
        draft.sampling[_SAMPLING[canonical]] = number
    elif canonical == "chat-template-kwargs" and value is not None and (kwargs := _flat_json(value)):
        for key in draft.template_kwargs.keys() & kwargs.keys():
            _note_dropped(draft, given, json.dumps({key: draft.template_kwargs[key]}), json.dumps({key: kwargs[key]}))
        draft.template_kwargs = {**draft.template_kwargs, **kwargs}
    else:
        if canonical in _SAMPLING:
            draft.sampling.pop(_SAMPLING[canonical], None)
        _set_flag(draft, given, canonical)


def _set_flag(draft: ProfileDraft, given: GivenOption, canonical: str) -> None:
    switch = canonical.removeprefix("no-")
    old = draft.flags.get(draft.flag_keys.get(switch, ""))
    if old is not None and accumulates(canonical) and given.value is not None and not isinstance(old, bool):
        items = old if isinstance(old, tuple) else tuple(split_values(canonical, _text(old)))
        draft.flags[draft.flag_keys[switch]] = (*items, *split_values(canonical, given.value))
        return
    value: FlagValue = True if given.value is None else typed_value(given.value)
    if canonical_flag(canonical) in TWO_WORD_FLAGS and len(given.values) > 1:
        value = tuple(map(typed_value, given.values))
    if canonical in LARGEST_WINS and isinstance(old, int) and isinstance(value, int) and old != value:
        draft.notes.append(f"--{given.name} is given as {old} and {value}: the larger one counts, as in llama-server.")
        value = max(old, value)
    else:
        _drop_flag(draft, given, switch)
    draft.flags[given.name] = value
    draft.flag_keys[switch] = given.name


def _drop_flag(draft: ProfileDraft, given: GivenOption, switch: str) -> None:
    """Drops the earlier value of a repeated flag, with a note."""
    name = draft.flag_keys.pop(switch, "")
    old = draft.flags.pop(name, None)
    if old is not None and (old is not True or name != given.name):
        dropped = f"--{name}" if isinstance(old, bool) else _text(old)
        kept = given.value if given.value is not None else f"--{given.name}"
        known = reference_options().option(given.name) or draft.target.capabilities.option(given.name)
        _note_dropped(
            draft, given, dropped, kept, "as in llama-server" if known else "though its engine may add them up"
        )


def _note_dropped(
    draft: ProfileDraft, given: GivenOption, old: str, new: str, like: str = "as in llama-server"
) -> None:
    if old and old != new:
        repeated = f"--{given.name} is given more than once"
        draft.notes.append(f"{repeated}: the last value, {new}, counts, {like}; {old} was dropped.")


def _note_order(draft: ProfileDraft) -> None:
    """Notes where several flags fill one list in turns: in a profile each flag stands once, so the order changes."""
    for family in SHARED_LISTS:
        order = [canonical_flag(name) for name in draft.given if canonical_flag(name) in family]
        runs = [name for at, name in enumerate(order) if at == 0 or order[at - 1] != name]
        if len(runs) > len(set(runs)):
            names = " and ".join(f"--{name}" for name in dict.fromkeys(runs))
            draft.notes.append(
                f"{names} alternate here; a profile has each flag once, so the order of their values changed."
            )


def _note_refusals(draft: ProfileDraft) -> None:
    for refusal in find_refusals(draft.target.capabilities, draft.flags):
        hint = f" ({refusal.hint})" if refusal.hint else ""
        draft.notes.append(f"--{refusal.flag} is kept, but {draft.target.name} refuses it: {refusal.why}{hint}.")


def _set_model(draft: ProfileDraft, canonical: str, value: str) -> None:
    new = f"hf:{value}" if canonical == "hf-repo" else value
    same_option = draft.given.count(canonical) > 1
    if draft.model and not same_option:
        draft.notes.append(f"The source names two models; {value} was left out.")
        return
    if draft.model and draft.model != new:
        draft.notes.append(f"--{canonical} is given more than once: the last one counts; {draft.model} was dropped.")
    draft.model = new


def _set_port(draft: ProfileDraft, value: str) -> None:
    if value.isdecimal() and int(value) <= 65535:
        draft.port = int(value)
    elif value == draft.port_word:
        draft.notes.append(f"llama-swap chooses the port at each start; the profile has {draft.port}.")
    else:
        draft.notes.append(f"{value} is not a port number; the profile has {draft.port}.")


def _from_environment(env: Mapping[str, str], draft: ProfileDraft) -> list[str]:
    """The arguments of llama-server's own variables; all other variables go into the draft's ``env``."""
    args: list[str] = []
    for name, value in env.items():
        if SECRET_NAME.search(name):
            draft.notes.append(f"The variable {name} was left out, because profiles hold no secrets.")
        elif (arguments := variable_arguments(name, value)) is not None:
            args += arguments
            if not arguments:
                draft.notes.append(omitted(f"{name}={value}", "it is the default"))
        elif _DEPENDENT.search(value):
            draft.notes.append(omitted(f"{name}={value}", "its value depends on other variables"))
        elif not ENV_NAME.fullmatch(name):
            draft.notes.append(omitted(f"{name}={value}", "no shell takes this name"))
        elif name in _MACHINE_VARIABLES:
            draft.notes.append(omitted(f"{name}={value}", "it belongs to the machine, not to a profile"))
        else:
            draft.env[name] = value
            if name.startswith("LLAMA_ARG_"):
                draft.notes.append(f"{name} stays in [env], but {draft.target.name} has no such variable.")
    return args


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 2**53 else None


def _text(value: FlagValue) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else argument_text(value)


def _flat_json(text: str) -> dict[str, bool | int | float | str] | None:
    """The JSON object of plain values in ``text``, else ``None``."""
    try:
        values = read_json(text)
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()  # half of a surrogate pair cannot be encoded
    except ValueError:
        return None
    if isinstance(values, dict) and all(isinstance(v, (bool, int, float, str)) for v in values.values()):
        return values
    return None


def match_engine(binary: str, engines: Mapping[str, str]) -> tuple[str, str]:
    """The name of the engine with the path ``binary`` (``""``: none of ``engines``), and a note about it."""
    if binary == "gpubox.engines.embedded_server":
        return EMBEDDED, ""
    name = next((name for name, path in engines.items() if path == binary), "")
    if name or not re.search(r"[\\/]", binary):
        return name, ""
    way = "the profile has the default engine" if "\\" in binary else (
        "to use that build, name it under [engines] in config.toml and in `engine`"
    )  # fmt: skip
    return "", f"The source runs {binary}: {way}."
