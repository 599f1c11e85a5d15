"""The words of one llama-server command line -> a Profile, and what could not be carried over."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubox.engines.capabilities import find_refusals
from gpubox.engines.find import EMBEDDED
from gpubox.interchange.given_options import GivenOption, read_options
from gpubox.interchange.import_notes import is_secret, omitted
from gpubox.interchange.option_updates import TargetEngine, update_options
from gpubox.interchange.reference_options import reference_options, variable_arguments
from gpubox.profiles.argv import SECRET_NAME
from gpubox.profiles.multi_value_flags import (
    LARGEST_WINS,
    SHARED_LISTS,
    TWO_WORD_FLAGS,
    accumulates,
    canonical_flag,
    split_values,
)
from gpubox.profiles.profile import SAMPLING_FLAGS, SECRET_FLAGS, ChatDefaults, FlagValue, Profile, is_loopback

REFERENCE_ENGINE = TargetEngine("llama.cpp build 11434", reference_options())
"""What imports are written for where no engine of the owner's is known."""
_SAMPLING = {reference_options().canonical(flag): key for key, flag in SAMPLING_FLAGS.items()}
_DEPENDENT = re.compile(r"\$[A-Za-z_{(]|`|%[A-Za-z_]\w*%")
_EVERYWHERE = {"PATH", "HOME", "PWD", "USER", "SHELL", "LANG", "TERM"}
"""Variables that belong to the machine, not to a profile."""


@dataclass(frozen=True, slots=True)
class ImportedProfile:
    """A profile made of somebody's launch command."""

    profile: Profile
    notes: tuple[str, ...] = ()
    """What could not be carried over, and what the owner should look at. Holds no secret."""


@dataclass(slots=True)
class ProfileDraft:
    """A profile in the making."""

    notes: list[str] = field(default_factory=list)
    target: TargetEngine = REFERENCE_ENGINE
    model: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    env: dict[str, str] = field(default_factory=dict)
    flags: dict[str, FlagValue] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    template_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    port_word: str = ""
    kept_in: dict[str, str] = field(default_factory=dict)
    """One spelling of each flag -> its key in ``flags``."""
    given: list[str] = field(default_factory=list)
    """One spelling of each option, in the order they were given."""

    def note_address(self) -> None:
        """Says what is still to do about the model and the address, once they are what they will be."""
        if not self.model:
            self.notes.append("It names no model: write `model` into the profile, or give --model.")
        elif re.match(r"[A-Za-z]:\\|\\\\", self.model):
            self.notes.append(f"{self.model} is a path of Windows: correct `model`.")
        elif "/" in self.model and not self.model.startswith(("/", "~", "hf:", "$")):
            self.notes.append(f"{self.model} is relative to the folder it was started in: write the whole path.")
        if not is_loopback(self.host):
            self.notes.append(
                f"host {self.host} lets other machines in: gpubox starts it only with an API key or --yes."
            )

    def profile(self, name: str, **more: Any) -> Profile:
        return Profile(
            name=profile_name(name or self.model or "imported"),
            model=self.model,
            host=self.host,
            port=self.port,
            env=self.env,
            flags=self.flags,
            sampling=self.sampling,
            chat=ChatDefaults(more.pop("system", ""), self.template_kwargs),
            **more,
        )


def draft_from_arguments(
    args: Sequence[str],
    env: Mapping[str, str],
    notes: Sequence[str] = (),
    port_word: str = "",
    target: TargetEngine = REFERENCE_ENGINE,
) -> ProfileDraft:
    """What the arguments after ``llama-server`` and the environment it was given say.

    ``port_word`` is llama-swap's word for a port that it chooses at each start, ``target`` the engine that old
    spellings are brought to. Short options take their long name, unknown ones are kept, several values of an option
    become what the engine makes of them. Never raises.
    """
    draft = ProfileDraft(notes=list(notes), port_word=port_word, target=target)
    args = [*_from_environment(env, draft), *args]
    options = read_options(args, target.capabilities, draft.notes)
    for given in update_options(options, target, draft.notes):
        _take(draft, given, target.capabilities.canonical(given.name))
    _note_order(draft)
    _note_refusals(draft)
    return draft


def profile_name(text: str) -> str:
    """A profile's name made of a title, a path, ``hf:user/repo:quant`` or another program's name for it."""
    text = re.split(r"[\\/]", text)[-1].removesuffix(".gguf")
    text = re.sub(r"-GGUF(?=:|$)", "", text, flags=re.I)
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._").lower()
    return text[:64] or "imported"


def typed_value(text: str) -> int | float | str:
    """``text`` as a number where the number is written the same way again, else as it is."""
    if re.fullmatch(r"-?\d{1,18}", text) and str(int(text)) == text:
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+", text) and str(float(text)) == text and not float(text).is_integer():
        return float(text)
    return text


def _take(draft: ProfileDraft, given: GivenOption, canonical: str) -> None:
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
            f"--api-key-file {value or ''} was left out: gpubox gives every engine its own key, and no other file's was"
            " read. Put the key into gpubox's api-key file (mode 0600)."
        )
    elif is_secret(name) and value and reference_options().option(name) is None:
        draft.notes.append(f"--{name} was left out, because its name says that it is a secret.")
    elif canonical in {"model", "hf-repo"} and value:
        _take_model(draft, canonical, value)
    elif canonical == "host" and value:
        _say_dropped(draft, given, "" if first else draft.host, value)
        draft.host = value
    elif canonical == "port" and value:
        _say_dropped(draft, given, "" if first else str(draft.port), value)
        _take_port(draft, value)
    elif canonical in _SAMPLING and value is not None and (number := _number(value)) is not None:
        _forget_flag(draft, given, switch)
        old = draft.sampling.get(_SAMPLING[canonical])
        _say_dropped(draft, given, "" if old is None else _text(old), value)
        draft.sampling[_SAMPLING[canonical]] = number
    elif canonical == "chat-template-kwargs" and value is not None and (kwargs := _flat_json(value)):
        for key in draft.template_kwargs.keys() & kwargs.keys():
            _say_dropped(draft, given, json.dumps({key: draft.template_kwargs[key]}), json.dumps({key: kwargs[key]}))
        draft.template_kwargs = {**draft.template_kwargs, **kwargs}
    else:
        if canonical in _SAMPLING:
            draft.sampling.pop(_SAMPLING[canonical], None)
        _take_flag(draft, given, canonical)


def _take_flag(draft: ProfileDraft, given: GivenOption, canonical: str) -> None:
    switch = canonical.removeprefix("no-")
    old = draft.flags.get(draft.kept_in.get(switch, ""))
    if old is not None and accumulates(canonical) and given.value is not None and not isinstance(old, bool):
        items = old if isinstance(old, tuple) else tuple(split_values(canonical, _text(old)))
        draft.flags[draft.kept_in[switch]] = (*items, *split_values(canonical, given.value))
        return
    value: FlagValue = True if given.value is None else typed_value(given.value)
    if canonical_flag(canonical) in TWO_WORD_FLAGS and len(given.values) > 1:
        value = tuple(map(typed_value, given.values))
    if canonical in LARGEST_WINS and isinstance(old, int) and isinstance(value, int) and old != value:
        draft.notes.append(f"--{given.name} is given as {old} and {value}: the larger one counts, as in llama-server.")
        value = max(old, value)
    else:
        _forget_flag(draft, given, switch)
    draft.flags[given.name] = value
    draft.kept_in[switch] = given.name


def _forget_flag(draft: ProfileDraft, given: GivenOption, switch: str) -> None:
    """Drops what stood before the last of several, and says so."""
    name = draft.kept_in.pop(switch, "")
    old = draft.flags.pop(name, None)
    if old is not None and (old is not True or name != given.name):
        before = f"--{name}" if isinstance(old, bool) else _text(old)
        now = given.value if given.value is not None else f"--{given.name}"
        known = reference_options().option(given.name) or draft.target.capabilities.option(given.name)
        _say_dropped(
            draft, given, before, now, ", as in llama-server" if known else ", though its engine may add them up"
        )


def _say_dropped(
    draft: ProfileDraft, given: GivenOption, old: str, new: str, but: str = ", as in llama-server"
) -> None:
    if old and old != new:
        last = f"--{given.name} is given more than once: the last one, {new}, counts"
        draft.notes.append(f"{last}{but}; {old} was dropped.")


def _note_order(draft: ProfileDraft) -> None:
    """Says where a list that several flags fill got another order, because a flag stands in a profile only once."""
    for family in SHARED_LISTS:
        order = [canonical_flag(name) for name in draft.given if canonical_flag(name) in family]
        runs = [name for at, name in enumerate(order) if at == 0 or order[at - 1] != name]
        if len(runs) > len(set(runs)):
            names = " and ".join(f"--{name}" for name in dict.fromkeys(runs))
            draft.notes.append(
                f"{names} take turns here; in the profile each stands once, so that their order changed."
            )


def _note_refusals(draft: ProfileDraft) -> None:
    for refusal in find_refusals(draft.target.capabilities, draft.flags):
        hint = f" ({refusal.hint})" if refusal.hint else ""
        kept = f"--{refusal.flag} is kept as it is"
        draft.notes.append(f"{kept}, but {draft.target.name} refuses it: {refusal.why}{hint}.")


def _take_model(draft: ProfileDraft, canonical: str, value: str) -> None:
    new = f"hf:{value}" if canonical == "hf-repo" else value
    same_option = draft.given.count(canonical) > 1
    if draft.model and not same_option:
        draft.notes.append(f"It names two models; {value} was left out.")
        return
    if draft.model and draft.model != new:
        draft.notes.append(f"--{canonical} is given more than once: the last one counts; {draft.model} was dropped.")
    draft.model = new


def _take_port(draft: ProfileDraft, value: str) -> None:
    if value.isdecimal() and int(value) <= 65535:
        draft.port = int(value)
    elif value == draft.port_word:
        draft.notes.append(f"llama-swap chooses the port at each start; the profile has {draft.port}.")
    else:
        draft.notes.append(f"The port is written as {value}; the profile has {draft.port}.")


def _from_environment(env: Mapping[str, str], draft: ProfileDraft) -> list[str]:
    """llama-server's own variables as arguments, which a later argument overrides; the others stay in ``env``."""
    words: list[str] = []
    for name, value in env.items():
        if SECRET_NAME.search(name):
            draft.notes.append(f"The variable {name} was left out, because profiles hold no secrets.")
        elif (arguments := variable_arguments(name, value)) is not None:
            words += arguments
            if not arguments:
                draft.notes.append(omitted(f"{name}={value}", "it is the default"))
        elif _DEPENDENT.search(value):
            draft.notes.append(omitted(f"{name}={value}", "its value depends on others"))
        elif name in _EVERYWHERE:
            draft.notes.append(omitted(f"{name}={value}", "it belongs to the machine, not to a profile"))
        else:
            draft.env[name] = value
            if name.startswith("LLAMA_ARG_"):
                draft.notes.append(f"{name} stays in [env], but {draft.target.name} has no such variable.")
    return words


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 2**53 else None


def _text(value: FlagValue) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _flat_json(text: str) -> dict[str, bool | int | float | str] | None:
    """The JSON object of plain values in ``text``, or ``None`` for anything else."""
    try:
        values = json.loads(text)
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    if isinstance(values, dict) and all(isinstance(v, (bool, int, float, str)) for v in values.values()):
        return values
    return None


def match_engine(binary: str, engines: Mapping[str, str]) -> tuple[str, str]:
    """The name of the engine that ``binary`` is (``""``: none of ``engines``), and what to say of it."""
    if binary == "gpubox.engines.embedded_server":
        return EMBEDDED, ""
    for name, path in engines.items():
        if path == binary:
            return name, ""
    if not re.search(r"[\\/]", binary):
        return "", ""
    return "", f"It ran {binary}: to use that build, name it under [engines] in config.toml and in `engine`."
