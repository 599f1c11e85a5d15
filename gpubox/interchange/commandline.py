"""The words of one llama-server command line -> a Profile, and what could not be carried over."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpubox.engines.capabilities import judge
from gpubox.engines.find import EMBEDDED
from gpubox.interchange.recorded import long_name, long_names, option_of_variable, recorded
from gpubox.profiles.argv import SAMPLING_FLAGS, SECRET_NAME
from gpubox.profiles.loader import SECRET_FLAGS
from gpubox.profiles.model import Chat, FlagValue, Profile, is_loopback

_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_SAMPLING = {recorded().canonical(flag): key for key, flag in SAMPLING_FLAGS.items()}
_DEPENDENT = re.compile(r"\$[A-Za-z_{(]|`|%[A-Za-z_]\w*%")
_TRUE, _FALSE = {"1", "true", "on", "enabled"}, {"0", "false", "off", "disabled"}
_EVERYWHERE = {"PATH", "HOME", "PWD", "USER", "SHELL", "LANG", "TERM"}
"""Variables that belong to the machine, not to a profile."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A profile made of somebody's launch command."""

    profile: Profile
    notes: tuple[str, ...] = ()
    """What could not be carried over, and what the owner should look at. Holds no secret."""


@dataclass(slots=True)
class Draft:
    """A profile in the making."""

    notes: list[str] = field(default_factory=list)
    model: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    env: dict[str, str] = field(default_factory=dict)
    flags: dict[str, FlagValue] = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)
    template_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    port_word: str = ""

    def profile(self, name: str, **more: Any) -> Profile:
        return Profile(
            name=profile_name(name or self.model or "imported"),
            model=self.model,
            host=self.host,
            port=self.port,
            env=self.env,
            flags=self.flags,
            sampling=self.sampling,
            chat=Chat(template_kwargs=self.template_kwargs),
            **more,
        )


def read_arguments(
    args: Sequence[str], env: Mapping[str, str], notes: Sequence[str] = (), port_word: str = ""
) -> Draft:
    """What the arguments after ``llama-server`` and the environment it was given say.

    ``port_word`` is llama-swap's word for a port that it chooses at each start.

    Short options take their long name, long ones stay as typed, unknown ones are kept. Never raises.
    """
    draft = Draft(notes=list(notes), port_word=port_word)
    args = [*_from_environment(env, draft), *args]
    given: dict[str, str] = {}
    for typed, value in _options(args, draft.notes):
        name = _spelled(typed, draft.notes)
        canonical = recorded().canonical(name)
        switch = canonical.removeprefix("no-")
        if switch in given:
            draft.notes.append(f"--{name} is given more than once: the last one counts, as in llama-server.")
            _forget(draft, switch, given[switch])
        given[switch] = name
        _take(draft, name, canonical, value)
    if not draft.model:
        draft.notes.append("It names no model: write `model` into the profile, or give --model.")
    elif re.match(r"[A-Za-z]:\\|\\\\", draft.model):
        draft.notes.append(f"{draft.model} is a path of Windows: correct `model`.")
    elif "/" in draft.model and not draft.model.startswith(("/", "~", "hf:", "$")):
        draft.notes.append(f"{draft.model} is relative to the folder it was started in: write the whole path.")
    if not is_loopback(draft.host):
        draft.notes.append(f"host {draft.host} lets other machines in: gpubox starts it only with an API key or --yes.")
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


def _options(args: Sequence[str], notes: list[str]) -> Iterator[tuple[str, str | None]]:
    """Each option as typed (with its dashes) and its value."""
    at = 0
    while at < len(args):
        word = re.sub(r"^[–—]", "--", args[at])  # web pages make one dash of two
        at += 1
        if not _OPTION.match(word):
            if word not in {"", "--", "-"}:
                notes.append(f"{word!r} belongs to no option and was left out.")
            continue
        word, joined, value = word.partition("=")
        if joined and word.startswith("--"):
            yield word, value
            continue
        word += joined + value  # "-x=y" is no form anybody has
        option = recorded().option(word)
        takes = None if option is None else option.value
        following = args[at] if at < len(args) and not re.match(r"-{1,2}[A-Za-z]|[–—]", args[at]) else None
        if takes == "START END":
            notes.append(f"{word} takes two values, which a profile cannot hold: left out.")
            at += 2
        elif option is not None and takes is None:
            yield word, None
        else:
            if following is not None:
                at += 1
            elif option is not None:
                notes.append(f"{word} has no value here; llama.cpp's current builds want one ({takes}).")
            yield word, following


def _spelled(typed: str, notes: list[str]) -> str:
    bare = typed.lstrip("-").replace("_", "-")
    if typed.startswith("--"):
        return bare
    long = long_name(bare)
    if long is None:
        notes.append(f"{typed} is no short option gpubox knows; it is kept as --{bare}.")
    return long or bare


def _take(draft: Draft, name: str, canonical: str, value: str | None) -> None:
    if canonical in SECRET_FLAGS:
        draft.notes.append(
            f"--{name} was left out, because profiles hold no secrets: set {SECRET_FLAGS[canonical]}"
            + (" or put the key into gpubox's api-key file (mode 0600)." if canonical == "api-key" else ".")
        )
    elif canonical in {"model", "hf-repo"} and value:
        _take_model(draft, canonical, value)
    elif canonical == "host" and value:
        draft.host = value
    elif canonical == "port" and value:
        _take_port(draft, value)
    elif canonical in _SAMPLING and value is not None and (number := _number(value)) is not None:
        draft.sampling[_SAMPLING[canonical]] = number
    elif canonical == "chat-template-kwargs" and value is not None and (kwargs := _flat_json(value)):
        draft.template_kwargs = kwargs
    else:
        draft.flags[name] = True if value is None else typed_value(value)
        for refusal in judge(recorded(), {name: draft.flags[name]}):
            hint = f" ({refusal.hint})" if refusal.hint else ""
            draft.notes.append(f"--{name} is kept as it is, but llama.cpp build 11434 refuses it: {refusal.why}{hint}.")


def _take_model(draft: Draft, canonical: str, value: str) -> None:
    if draft.model:
        draft.notes.append(f"It names two models; {value} was left out.")
    else:
        draft.model = f"hf:{value}" if canonical == "hf-repo" else value


def _take_port(draft: Draft, value: str) -> None:
    if value.isdecimal() and int(value) <= 65535:
        draft.port = int(value)
    elif value == draft.port_word:
        draft.notes.append(f"llama-swap chooses the port at each start; the profile has {draft.port}.")
    else:
        draft.notes.append(f"The port is written as {value}; the profile has {draft.port}.")


def _forget(draft: Draft, switch: str, name: str) -> None:
    draft.flags.pop(name, None)
    draft.sampling.pop(_SAMPLING.get(switch, ""), None)
    if switch in {"model", "hf-repo"}:
        draft.model = ""
    elif switch == "chat-template-kwargs":
        draft.template_kwargs = {}


def _from_environment(env: Mapping[str, str], draft: Draft) -> list[str]:
    """llama-server's own variables as arguments, which a later argument overrides; the others stay in ``env``."""
    words: list[str] = []
    for name, value in env.items():
        option = option_of_variable(name)
        if SECRET_NAME.search(name):
            draft.notes.append(f"The variable {name} was left out, because profiles hold no secrets.")
        elif option is not None and name.startswith("LLAMA_ARG_"):
            words += flag_words(option.long, value)
        elif _DEPENDENT.search(value):
            draft.notes.append(f"The variable {name} was left out: its value depends on others.")
        elif name not in _EVERYWHERE:
            draft.env[name] = value
    return words


def flag_words(name: str, value: str) -> list[str]:
    """``name = value`` of an INI file or of the environment as llama-server's words for it."""
    option = recorded().option(name)
    dashed = f"-{name}" if option and name.replace("_", "-") not in long_names() else f"--{name}"
    bare = option.value is None if option else value.lower() in {"true", "false"}
    if not bare:
        return [dashed, value]
    if value.lower() in _TRUE:
        return [dashed]
    if value.lower() not in _FALSE:
        return [dashed, value]
    return [f"--no-{name}"] if option is None or option.negatives else []


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) < 2**53 else None


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


def engine_of(binary: str, engines: Mapping[str, str]) -> tuple[str, str]:
    """The name of the engine that ``binary`` is (``""``: none of ``engines``), and what to say of it."""
    if binary == "gpubox.engines.embedded_server":
        return EMBEDDED, ""
    for name, path in engines.items():
        if path == binary:
            return name, ""
    if not re.search(r"[\\/]", binary):
        return "", ""
    return "", f"It ran {binary}: to use that build, name it under [engines] in config.toml and in `engine`."
