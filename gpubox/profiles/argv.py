"""Turns a Profile into the arguments of llama-server. Pure: asks no engine and reads no file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from gpubox.profiles.flag_values import multi_value_argv
from gpubox.profiles.profile import SAMPLING_FLAGS, FlagValue, Profile

FLAGS_WITHOUT_NO = frozenset({"metrics"})
"""Flags that gpubox adds by itself and llama-server has no ``--no-`` form of: false keeps gpubox from adding them."""
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW", re.I)
"""Names of environment variables whose values are never shown."""


def redacted_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` for display: values with a secret's name are ``***``."""
    return {name: "***" if SECRET_NAME.search(name) else value for name, value in env.items()}


def flag_argv(name: str, value: FlagValue, repeated: frozenset[str] = frozenset()) -> list[str]:
    """The arguments of one flag: ``ctx-size, 4096`` -> ``--ctx-size 4096``.

    True gives the bare option, False its ``--no-`` form, a tuple all its values. ``repeated`` names the flags that this
    engine wants once for each value, where newer builds take a list.
    """
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"]
    if isinstance(value, tuple):
        return multi_value_argv(name, map(argument_text, value), repeated)
    return [f"--{name}", argument_text(value)]


def server_argv(
    profile: Profile,
    model: Sequence[str],
    *,
    port: int | None = None,
    defaults: Mapping[str, FlagValue] | None = None,
    repeated: frozenset[str] = frozenset(),
) -> list[str]:
    """The arguments after the binary's name: model, address, the profile's flags in order, sampling, template kwargs.

    ``model`` are the arguments that name the model (``["--model", PATH]``). ``port`` replaces the profile's 0.
    ``defaults`` are flags that gpubox adds at the end. ``repeated``: see ``flag_argv``.
    """
    argv = [*model, "--host", profile.host, "--port", str(profile.port if port is None else port)]
    for name, value in profile.flags.items():
        if value is not False or name not in FLAGS_WITHOUT_NO:
            argv += flag_argv(name, value, repeated)
    for key, number in profile.sampling.items():
        if SAMPLING_FLAGS[key] not in profile.flags:
            argv += flag_argv(SAMPLING_FLAGS[key], number)
    if profile.chat.template_kwargs and "chat-template-kwargs" not in profile.flags:
        argv += ["--chat-template-kwargs", json.dumps(dict(profile.chat.template_kwargs))]
    for name, value in (defaults or {}).items():
        argv += flag_argv(name, value)
    return argv


def given_flags(argv: Sequence[str]) -> dict[str, str]:
    """The flags of a command line, as they are typed, with their values; empty without one. The binary is no flag."""
    flags: dict[str, str] = {}
    name = ""
    for word in argv[1:]:
        if word.startswith("-") and not re.match(r"-\.?\d", word):
            name = word
            flags.setdefault(name, "")
        elif name:
            flags[name] = f"{flags[name]} {word}".strip()
    return flags


def command_line(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """``argv``, binary included, as one shell line with the profile's environment in front."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    return " ".join([*assignments, *(shlex.quote(argument) for argument in argv)])


def argument_text(value: object) -> str:
    """A value as it is typed: ``2.0`` is ``2``."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
